"""What a request may read over HTTP: that of its token's login, asked of Postgres at each connection.

    Authorization: Bearer …    the token that `millrace streams token add` showed
    a cookie                   for a browser's EventSource, which sends no headers: `GET /session` with the token sets
                               it for 15 minutes

A token in a URL is refused: logs and histories keep URLs. Names and pages are checked as those of the UI.

Not here: tokens, and what each has open (`tokens`).
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, LiteralString
from urllib.parse import parse_qsl

import psycopg
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

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


@dataclass(frozen=True)
class Access:
    """What the login of a token may read, as of the moment of each call."""

    login: str
    token_id: int
    _connection: psycopg.AsyncConnection

    async def may_model(self, name: str) -> tuple[str, ...]:
        """Return the columns of a read model that the login may select; there is its whole key among them.

        Raises:
            Refused: It may not read the model, or there is none; or the model has row security.
        """
        # no name has a NUL, which Postgres does not take
        call = "select columns, hidden_keys, guarded_by from event_store_platform.stream_rights(%s, %s)"
        found = await _row(self._connection, call, (self.login, name.replace("\0", "\ufffd")))
        columns, hidden, guarded_by = found or (None, None, None)
        if not columns:
            fault = f"{self.login} may not select from a read model {name[:100]!r}, or there is none."
        elif guarded_by:
            fault = f"{guarded_by} has row security, which a stream does not apply: read it by SQL."
        elif hidden:
            fault = f"{self.login} may not select {', '.join(hidden)}, of the key of read model {name}."
        else:
            return tuple(columns)
        raise Refused(HTTPStatus.FORBIDDEN, fault)

    async def may_log(self) -> None:
        """Require that the login reads the log: a member of event_store_reader does.

        Raises:
            Refused: It is none.
        """
        call = "select reads_log from event_store_platform.stream_rights(%s)"
        if not any(await _row(self._connection, call, (self.login,)) or ()):
            raise Refused(HTTPStatus.FORBIDDEN, f"{self.login} is no member of event_store_reader, which reads events.")


@dataclass(frozen=True)
class Permission:
    """A permission to read a path.

    Attributes:
        login: The login with the rights.
        token_id: Its token: see `Connections.open`.
        columns: The columns of the read model that it may select; None for a path of the log.
    """

    login: str
    token_id: int
    columns: tuple[str, ...] | None


class TokenRights:
    """Decides on each request by its token.

    Args:
        connect: Lends a connection, as `AsyncConnectionPool.connection` does, of a member of event_store_owner.
        pages: The names of this server.
    """

    def __init__(self, connect: Connect, pages: OwnPages) -> None:
        self._connect, self._pages = connect, pages

    async def may(self, request: Request) -> Permission:
        """Return the permission to read a route: of a model if it has the parameter `model`, else of the log.

        Raises:
            Refused: The request has none.
        """
        # what has no token costs no connection
        shown_token(request.scope, self._pages)
        async with self._connect() as connection:
            opened = await access(connection, request.scope, self._pages)
            model = request.path_params.get("model")
            columns = None if model is None else await opened.may_model(model)
            if model is None:
                await opened.may_log()
        return Permission(opened.login, opened.token_id, columns)


async def access(
    connection: psycopg.AsyncConnection, scope: Scope, pages: OwnPages, *, by_cookie: bool = True
) -> Access:
    """Return the access of a request.

    Args:
        connection: As a login that is a member of event_store_owner; the access uses it, too.
        scope: The request.
        pages: The names of this server.
        by_cookie: Whether the cookie of a browser is enough.

    Raises:
        Refused: The request gives none; the text has the remedy.
    """
    token, is_session = shown_token(scope, pages, by_cookie=by_cookie)
    call = "select token_id, login, fault from event_store_platform.use_stream_token(%s, %s)"
    found = await _row(connection, call, (hash_of(token), is_session))
    token_id, login, fault = found or (None, None, "There is no such token, or the cookie has expired.")
    if fault:
        raise Refused(HTTPStatus.UNAUTHORIZED, f"This token gives nothing. {fault}")
    return Access(login, token_id, connection)


def shown_token(scope: Scope, pages: OwnPages, *, by_cookie: bool = True) -> tuple[str, bool]:
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


def session_route(connect: Connect, pages: OwnPages) -> Route:
    """Return the route `/session`, which gives a browser a cookie for a token.

    Args:
        connect: Lends a connection, as `AsyncConnectionPool.connection` does.
        pages: The names of this server.
    """

    async def session(request: Request) -> Response:
        secret = made_token()
        # not by the cookie: a session would renew itself for ever
        shown_token(request.scope, pages, by_cookie=False)
        async with connect() as connection:
            opened = await access(connection, request.scope, pages, by_cookie=False)
            call = "select event_store_platform.open_stream_session(%s, %s)"
            (lasts_s,) = await _row(connection, call, (opened.token_id, hash_of(secret))) or (None,)
        if lasts_s is None:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "This token has too many cookies: use another token.")
        answer = Response(status_code=HTTPStatus.NO_CONTENT, headers=PRIVATE)
        answer.set_cookie(
            cookie_name(request.scope, COOKIE),
            secret,
            max_age=lasts_s,
            # any other name is that of a proxy, which speaks TLS
            secure=not pages.required_host(request.scope).startswith(LOOPBACK_NAMES),
            httponly=True,
            samesite="strict",
        )
        return answer

    return Route("/session", session)


async def refused(request: Request, error: Exception) -> Response:  # noqa: ARG001 - as Starlette calls it
    """Answer a refusal: a handler of exceptions for Starlette."""
    assert isinstance(error, Refused)
    more = {"WWW-Authenticate": "Bearer"} if error.status is HTTPStatus.UNAUTHORIZED else {}
    return PlainTextResponse(f"{error.text}\n", error.status, headers={**PRIVATE, **more})


async def _row(
    connection: psycopg.AsyncConnection, call: LiteralString, arguments: tuple[object, ...]
) -> tuple[Any, ...] | None:
    return await (await connection.execute(call, arguments)).fetchone()
