"""Tokens that read over HTTP: the store's functions for them, and what each has open in this process.

Not here: what the login of a token may read (`rights`).
"""

import asyncio
import hashlib
import re
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any

import psycopg

from millrace.event_store.sql_functions import SqlFunctions
from millrace.own_pages import Refused
from millrace.patience import ASK_S, LOOK_S

# programs that search texts for secrets know tokens by it
PREFIX = "mrs_"
TOKEN = re.compile(PREFIX + "[A-Za-z0-9_-]{43}")
CHANNEL = "event_store_stream_tokens"
REVOKED = "select token_id from event_store_platform.stream_tokens() where token_id::text = any (%s) and revoked_at is not null"
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


@dataclass
class Open:
    """The connections of a token.

    Attributes:
        tasks: A task for each.
        spent_until: The moment up to which its bytes are used.
    """

    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    spent_until: float = 0

    async def spend(self, size: int) -> None:
        """Wait until the token may send this many bytes more; up to a second's bytes go at once."""
        now = asyncio.get_running_loop().time()
        self.spent_until = max(self.spent_until, now - 1) + size / MOST_BYTES_A_SECOND
        await asyncio.sleep(max(0, self.spent_until - now))


class Connections:
    """The connections of each token in this process.

    Attributes:
        hears: Set while revocations are heard; while they are not, no connection is opened.
    """

    def __init__(self) -> None:
        self._open = defaultdict[int, Open](Open)
        # a token may be revoked between the look at its rights and the opening
        self._revoked = set[int]()
        self.hears = asyncio.Event()

    @asynccontextmanager
    async def open(self, token_id: int) -> AsyncIterator[Open]:
        """Hold a connection of a token for this block, which ends once the token is revoked.

        Raises:
            Refused: The token is or was revoked, or has too many connections.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                await self.hears.wait()
        self._require_good(token_id)
        token, task = self._open[token_id], asyncio.current_task()
        assert task is not None
        if len(token.tasks) >= MOST_CONNECTIONS:
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"This token has {MOST_CONNECTIONS:,} connections, the most at once: close some, or use another token.",
            )
        token.tasks.append(task)
        try:
            yield token
        except asyncio.CancelledError:
            if task not in token.tasks:
                task.uncancel()
                self._require_good(token_id)
            raise
        finally:
            # the entry stays: closing and opening gives no more bytes
            if task in token.tasks:
                token.tasks.remove(task)

    def _require_good(self, token_id: int) -> None:
        if not self.hears.is_set():
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "The event store does not answer: try again in a moment.")
        if token_id in self._revoked:
            raise Refused(HTTPStatus.UNAUTHORIZED, "It is revoked.")

    async def watch(self, dsn: str) -> None:
        """End the connections of each token that is revoked, as a member of event_store_owner; does not return.

        While that is not heard, no connection is open.
        """
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                    await self._hear(connection)
            except psycopg.Error:
                await asyncio.sleep(LOOK_S)

    async def _hear(self, connection: psycopg.AsyncConnection) -> None:
        await connection.execute(f"listen {CHANNEL}".encode())
        self.hears.set()
        try:
            while True:
                # words that come during the query are in the next answer
                words = [told.payload async for told in connection.notifies(stop_after=1)]
                # any login may notify: the store knows what is true
                async for (token_id,) in await connection.execute(REVOKED, (words,)):
                    self._revoked.add(token_id)
                    self._end(token_id)
        finally:
            self.hears.clear()
            for token_id in [*self._open]:
                self._end(token_id)

    def _end(self, token_id: int) -> None:
        tasks, self._open[token_id].tasks = self._open[token_id].tasks, []
        for task in tasks:
            task.cancel()
