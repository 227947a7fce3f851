"""Tokens that read over HTTP: the store's functions for them, and what each has open in this process.

Not here: what the login of a token may read (`rights`).
"""

import asyncio
import hashlib
import re
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus

import psycopg
from psycopg.conninfo import make_conninfo

from millrace.event_store.sql_functions import SqlFunctions
from millrace.own_pages import Refused
from millrace.postgres.connecting import lasting

# programs that search texts for secrets know tokens by it
PREFIX = "mrs_"
TOKEN = re.compile(PREFIX + "[A-Za-z0-9_-]{43}")
CHANNEL = "event_store_stream_tokens"
# of one token in one process
MOST_CONNECTIONS = 1_000
MOST_BYTES_A_SECOND = 64_000_000


def made_token() -> str:
    """Return a new token, of 32 random bytes."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> bytes:
    """Return the only thing of a token that is stored."""
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True)
class StreamToken:
    """A token as operators see it.

    Attributes:
        fault: Why it gives nothing; None while it is good.
    """

    token_id: int
    name: str | None
    login: str
    made_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None
    fault: str | None


class TokenStore(SqlFunctions):
    """The functions for tokens. Every method raises the `MillraceError` of its SQL function."""

    def add_stream_token(self, hash_: bytes, login: str, name: str | None = None, days: int = 90) -> int:
        """Let the token with a hash read with the rights of a login; return its number."""
        call = "select event_store_platform.add_stream_token(%s, %s, %s, %s)"
        return self._value(int, call, (hash_, login, name, days))

    def revoke_stream_token(self, token_id: int, reason: str | None = None) -> bool:
        """End a token with its sessions and connections; return whether it was good."""
        return self._value(bool, "select event_store_platform.revoke_stream_token(%s, %s)", (token_id, reason))

    def stream_tokens(self) -> list[StreamToken]:
        """Return all tokens, the oldest first."""
        return self._all(StreamToken, "select * from event_store_platform.stream_tokens()")


@asynccontextmanager
async def revocations(dsn: str) -> AsyncIterator[AsyncIterator[int]]:
    """Listen for revoked tokens from here on, as a member of event_store_owner; yield an iterator of their numbers.

    The iterator raises psycopg's OperationalError once the session is lost: some may have been missed.
    """
    in_utf8 = make_conninfo(dsn, client_encoding="utf8")
    async with await psycopg.AsyncConnection.connect(lasting(in_utf8), autocommit=True) as connection:
        await connection.execute(f"listen {CHANNEL}".encode())
        yield _revoked(connection)


async def _revoked(connection: psycopg.AsyncConnection) -> AsyncIterator[int]:
    # any login may notify: the store knows what is true
    call = "select token_id from event_store_platform.stream_tokens() where token_id::text = any (%s) and revoked_at is not null"
    while True:
        # words that come during the query are in the next answer
        words = [told.payload async for told in connection.notifies(stop_after=1)]
        async for (token_id,) in await connection.execute(call, (words,)):
            yield token_id


@dataclass(eq=False)
class Connection:
    """A connection of a token.

    Attributes:
        ended: Set once the connection must close: its token was revoked.
    """

    _token: "_Open"
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def spend(self, size: int) -> None:
        """Wait until the token may send this many bytes more; up to a second's bytes go at once."""
        now = asyncio.get_running_loop().time()
        self._token.spent_until = max(self._token.spent_until, now - 1) + size / MOST_BYTES_A_SECOND
        await asyncio.sleep(max(0, self._token.spent_until - now))


@dataclass
class _Open:
    """What a token has open; `spent_until` is the moment up to which its bytes are used."""

    connections: set[Connection] = field(default_factory=set)
    spent_until: float = 0


class Connections:
    """The connections of each token in this process.

    Attributes:
        hears: Whether revocations are heard; while they are not, no connection is opened.
    """

    def __init__(self) -> None:
        self._open = defaultdict[int, _Open](_Open)
        # a token may be revoked between the look at its rights and the opening
        self._revoked = set[int]()
        self.hears = False

    @asynccontextmanager
    async def open(self, token_id: int) -> AsyncIterator[Connection]:
        """Hold a connection of a token for this block.

        Raises:
            Refused: The token is revoked, or has too many.
        """
        if not self.hears:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "The event store does not answer: try again in a moment.")
        if token_id in self._revoked:
            raise Refused(HTTPStatus.UNAUTHORIZED, "It is revoked.")
        token = self._open[token_id]
        if len(token.connections) >= MOST_CONNECTIONS:
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"This token has {MOST_CONNECTIONS:,} connections, the most at once: close some, or use another token.",
            )
        connection = Connection(token)
        token.connections.add(connection)
        try:
            yield connection
        finally:
            # its entry stays: closing and opening gives no more bytes
            token.connections.discard(connection)

    async def watch(self, dsn: str) -> None:
        """End the connections of each token that is revoked, until the session is lost; then end all.

        Raises:
            psycopg.OperationalError: It is lost: call again.
        """
        try:
            async with revocations(dsn) as revoked:
                self.hears = True
                async for token_id in revoked:
                    self._revoked.add(token_id)
                    self._end(token_id)
        finally:
            self.hears = False
            for token_id in [*self._open]:
                self._end(token_id)

    def _end(self, token_id: int) -> None:
        for connection in self._open[token_id].connections:
            connection.ended.set()
