"""What a request may read over HTTP: that of its token's login, asked of Postgres at each connection.

    Authorization: Bearer …    the token that `millrace streams token add` showed
    a cookie                   for a browser's EventSource, which sends no headers: `GET /session` with the token sets
                               it for 15 minutes

A token in a URL is refused: logs and histories keep URLs. Names and pages are checked as those of the UI.

Not here: tokens, and what each has open (`tokens`).
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus
from typing import Any, LiteralString
from urllib.parse import parse_qsl

import psycopg
from starlette.requests import Request
from starlette.responses import Response

from millrace.own_pages import (
    LOOPBACK_NAMES,
    OwnPages,
    Refused,
    Scope,
    bearer,
    cookie_name,
    cookies,
    only,
    require_small_head,
)
from millrace.streams.tokens import PREFIX, TOKEN, hash_of, made_token

Connect = Callable[[], AbstractAsyncContextManager[psycopg.AsyncConnection]]

COOKIE = "streams"
# of each answer: nothing keeps it, and no page of another origin gets it as an image or a script
PRIVATE = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
IN_URLS = {"token", "access_token"}


class Rights:
    """Decides on each request by its token.

    Args:
        connect: Lends a connection, as `AsyncConnectionPool.connection` does, of a member of event_store_owner.
        pages: The names of this server.
    """

    def __init__(self, connect: Connect, pages: OwnPages) -> None:
        self._connect, self._pages = connect, pages

    async def token_of(self, request: Request) -> int:
        """Return the token by which a request may read: a model if its route has the parameter `model`, else the log.

        Raises:
            Refused: It may not.
        """
        async with self._used(request) as (connection, token_id, login):
            model = request.path_params.get("model")
            # no name has a NUL, which Postgres does not take
            call = "select event_store_platform.stream_fault(%s, %s)"
            ((fault,),) = await _rows(connection, call, (login, model and model.replace("\0", "\ufffd")))
        if fault is not None:
            raise Refused(HTTPStatus.FORBIDDEN, fault)
        return token_id

    async def session(self, request: Request) -> Response:
        """Give a browser a cookie for a token."""
        secret = made_token()
        # not by the cookie: a session would renew itself for ever
        async with self._used(request, by_cookie=False) as (connection, token_id, _):
            call = "select event_store_platform.open_stream_session(%s, %s)"
            ((lasts_s,),) = await _rows(connection, call, (token_id, hash_of(secret)))
        if lasts_s is None:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "This token has too many cookies: use another token.")
        answer = Response(status_code=HTTPStatus.NO_CONTENT, headers=PRIVATE)
        answer.set_cookie(
            cookie_name(request.scope, COOKIE),
            secret,
            max_age=lasts_s,
            # any other name is that of a proxy, which speaks TLS
            secure=not self._pages.required_host(request.scope).startswith(LOOPBACK_NAMES),
            httponly=True,
            samesite="strict",
        )
        return answer

    @asynccontextmanager
    async def _used(
        self, request: Request, *, by_cookie: bool = True
    ) -> AsyncIterator[tuple[psycopg.AsyncConnection, int, str]]:
        """Yield a connection, and the good token of a request with its login."""
        # what has no token costs no connection
        token, is_session = shown_token(request.scope, self._pages, by_cookie=by_cookie)
        async with self._connect() as connection:
            call = "select token_id, login, fault from event_store_platform.use_stream_token(%s, %s)"
            found = await _rows(connection, call, (hash_of(token), is_session))
            ((token_id, login, fault),) = found or [(0, "", "There is no such token, or the cookie has expired.")]
            if fault is not None:
                raise Refused(HTTPStatus.UNAUTHORIZED, f"This token gives nothing. {fault}")
            yield connection, token_id, login


def shown_token(scope: Scope, pages: OwnPages, *, by_cookie: bool) -> tuple[str, bool]:
    """Return the token that a request shows, and whether it is that of a session.

    Raises:
        Refused: It shows none as it should, or comes from elsewhere.
    """
    require_small_head(scope)
    pages.require(scope)
    query = scope["query_string"].decode("latin-1")
    if PREFIX in f"{scope['path']}?{query}" or IN_URLS & {name for name, _ in parse_qsl(query, keep_blank_values=True)}:
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            "A token in a URL is refused: logs and histories keep URLs. Revoke this one (millrace streams token revoke), and"
            " send another as 'Authorization: Bearer …', or from a browser to /session first.",
        )
    is_session = by_cookie and only(scope, b"authorization") is None
    shown = cookies(scope, cookie_name(scope, COOKIE)) if is_session else [bearer(scope) or ""]
    if len(shown) != 1 or not TOKEN.fullmatch(shown[0]):
        raise Refused(
            HTTPStatus.UNAUTHORIZED,
            "Send 'Authorization: Bearer …' with a token of `millrace streams token add`; a browser gets a cookie for it from"
            " /session.",
        )
    return shown[0], is_session


async def _rows(
    connection: psycopg.AsyncConnection, call: LiteralString, arguments: tuple[object, ...]
) -> list[tuple[Any, ...]]:
    return await (await connection.execute(call, arguments)).fetchall()
