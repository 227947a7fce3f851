"""The paths, and the server that answers them: GET and HEAD, as Durable Streams 1.0 has the reading half."""

import asyncio
import re
import socket
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

import psycopg
import uvicorn
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from millrace.errors import Malformed, MillraceError, PositionOutOfRange, UnknownView
from millrace.own_pages import OwnPages, Refused
from millrace.patience import AWAY_S, FAREWELL_S, WATCH_S
from millrace.postgres.connecting import lasting
from millrace.streams import sse
from millrace.streams.followers import Batch, Followers
from millrace.streams.reading import Feed, Row, Stream, Topic, View
from millrace.streams.rights import PRIVATE, Rights
from millrace.streams.tokens import Connections

TABLE = Path(__file__).with_name("table.html").read_text()
# no script but its own
POLICY = "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; form-action 'none'; " + "; ".join(
    f"{kind}-src 'sha256-{b64encode(sha256(part.encode()).digest()).decode()}'"
    for kind, part in zip(("style", "script"), re.findall(r"<(?:style|script)>(.*?)</", TABLE, re.DOTALL), strict=True)
)
# sessions that ask for rights
ASKING = 4
LIVE = (None, "long-poll", "sse")


class _Answer:
    """Answers a path for the token of a request, until the token is revoked."""

    def __init__(self, followers: Followers, rights: Rights, connections: Connections) -> None:
        self._followers, self._rights, self._connections = followers, rights, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, begun = Request(scope, receive), False
        token_id = await self._rights.token_of(request)
        try:
            async with self._connections.open(token_id) as held:

                async def sent(message: Message) -> None:
                    nonlocal begun
                    await held.spend(len(message.get("body", b"")))
                    begun = True
                    await send(message)

                response = await _answered(self._followers, request, _topic(**request.path_params))
                await response(scope, receive, sent)
        except Refused:
            # the connection closes without the end of an answer
            if not begun:
                raise


def streams_app(followers: Followers, hosts: Iterable[str] = ()) -> Starlette:
    """Return the app that reads for clients, each with the rights of its token's login.

    Args:
        followers: Where it is read.
        hosts: Further names of this server, as of `OwnPages`.
    """
    connections, dsn = Connections(), lasting(make_conninfo(followers.dsn, client_encoding="utf8"))
    pool = AsyncConnectionPool(
        dsn,
        min_size=0,
        max_size=ASKING,
        open=False,
        check=AsyncConnectionPool.check_connection,
        kwargs={"autocommit": True, "options": f"-c statement_timeout={AWAY_S}s"},
    )
    rights = Rights(pool.connection, OwnPages("the streams", hosts))
    answer = _Answer(followers, rights, connections)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with followers.running(), pool:
            watching = asyncio.create_task(connections.watch(dsn))
            yield
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    paths = (
        "/streams/{decider}/{decider_id:path}",
        "/models/{model}/{key:path}",
        "/models/{model}",
        "/views/{view:path}",
    )
    routes = [Route(path, answer, methods=["GET"]) for path in paths]
    routes += [Route("/session", rights.session), Route("/", _table)]
    kinds = (Refused, HTTPException, MillraceError, psycopg.Error)
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=dict.fromkeys(kinds, _refused))


@contextmanager
def serving_streams(followers: Followers, host: str, port: int, hosts: Iterable[str] = ()) -> Iterator[int]:
    """Serve the streams of an event store.

    Args:
        followers: Where it is read: of an event store, as a member of event_store_owner.
        host: The address to listen at.
        port: Where to listen; 0 for any free port.
        hosts: Further names of this server.

    Yields:
        The port.

    Raises:
        MillraceError: The port is taken, or the address is not of this machine.
    """
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise MillraceError(
            f"Streams cannot be served at {host}:{port}: {error.strerror or error}.",
            hint="State another port, or an address of this machine.",
        ) from error
    server = uvicorn.Server(
        uvicorn.Config(
            streams_app(followers, hosts),
            loop="asyncio",
            ws="none",
            log_level="warning",
            # a path with its query would be written down
            access_log=False,
            timeout_graceful_shutdown=FAREWELL_S,
        )
    )
    thread = threading.Thread(target=server.run, args=([listening],), name="streams over HTTP")
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        followers.stop()
        server.should_exit = True
        thread.join()
        listening.close()


def _topic(decider: str = "", decider_id: str = "", model: str = "", key: str | None = None, view: str = "") -> Topic:
    if model:
        return Feed(model) if key is None else Row(f"model:{model}", key)
    return View(view) if view else Stream(decider, decider_id)


async def _answered(followers: Followers, request: Request, topic: Topic) -> Response:
    offset, live = _asked(request)
    if request.method == "HEAD":
        place = await followers.place(topic, "now")
        return Response(headers={**PRIVATE, "Content-Type": "application/json", "Stream-Next-Offset": str(place)})
    place = await followers.place(topic, offset)
    if offset == "now" and live is None and place is not None:
        return _json(Batch(place, (), up_to_date=True))
    batch = await followers.after(topic, place, alone=live is None)
    given = request.query_params.get("cursor")
    if live == "sse":
        stream = sse.events(followers, topic, batch, given)
        return StreamingResponse(stream, headers={**PRIVATE, **sse.HEADERS})
    if live == "long-poll":
        return await _polled(followers, topic, batch, given)
    tag = f'"{offset}:{batch.place}:{batch.up_to_date:d}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={**PRIVATE, "ETag": tag})
    return _json(batch, ETag=tag)


async def _polled(followers: Followers, topic: Topic, batch: Batch, given: str | None) -> Response:
    """Return the next messages, or none if none come in time."""
    until = time.monotonic() + WATCH_S
    while not batch and (left := until - time.monotonic()) > 0 and not followers.stopped:
        later = await followers.later(topic, batch, left)
        if later is None:
            break
        batch = later
    return _json(batch, 200 if batch else 204, **{"Stream-Cursor": sse.cursor(given)})


def _json(batch: Batch, status: int = 200, **headers: str) -> Response:
    headers |= {**PRIVATE, "Content-Type": "application/json", "Stream-Next-Offset": str(batch.place)}
    if batch.up_to_date:
        headers["Stream-Up-To-Date"] = "true"
    if status == 204:
        return Response(status_code=204, headers=headers)
    return StreamingResponse(_array(batch), status, headers)


async def _array(batch: Batch) -> AsyncIterator[bytes]:
    yield b"["
    for piece in sse.pieces(batch):
        yield piece
    yield b"]"


def _asked(request: Request) -> tuple[str, str | None]:
    """Return the offset and the live mode that a request names."""
    for name in ("offset", "live"):
        if len(request.query_params.getlist(name)) > 1:
            raise HTTPException(400, f"Name {name} once.")
    live = request.query_params.get("live")
    if live not in LIVE:
        raise HTTPException(400, "live must be long-poll or sse.")
    # a browser that connects again sends it, and the address of before
    offset = request.headers.get("last-event-id") or request.query_params.get("offset")
    if offset is None and live is not None:
        raise HTTPException(400, "A live read needs an offset: -1 for all, now, or the last Stream-Next-Offset.")
    return "-1" if offset is None else offset, live


AWAY = HTTPException(503, "The event store does not answer now.", {"Retry-After": "1"})
# what a request may be told of the store's errors
ANSWERS: tuple[tuple[type[Exception], HTTPException], ...] = (
    (UnknownView, HTTPException(404, "There is no such view.")),
    (PositionOutOfRange, HTTPException(410, "Events behind this offset were purged. Begin again with offset=-1.")),
    (Malformed, HTTPException(400, "The path has characters that no stream has.")),
    (psycopg.errors.InsufficientPrivilege, HTTPException(403, "The login of this process may not read it.")),
    # another version of the read model serves since a moment
    (psycopg.errors.UndefinedTable, AWAY),
    (psycopg.errors.UndefinedColumn, AWAY),
    (psycopg.OperationalError, AWAY),
)


async def _table(_: Request) -> Response:
    """Answer with the page that shows a read model, which asks for a token itself."""
    return HTMLResponse(TABLE, headers={**PRIVATE, "Content-Security-Policy": POLICY})


async def _refused(_: Request, error: Exception) -> Response:
    """Answer with the error, in one sentence."""
    if isinstance(error, Refused):
        more = {"WWW-Authenticate": "Bearer"} if error.status is HTTPStatus.UNAUTHORIZED else None
        error = HTTPException(error.status, error.text, more)
    told = next((answer for kind, answer in ANSWERS if isinstance(error, kind)), error)
    if not isinstance(told, HTTPException):
        raise error
    return PlainTextResponse(f"{told.detail}\n", told.status_code, {**PRIVATE, **(told.headers or {})})
