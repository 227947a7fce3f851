"""A small server with the access of streams, over a store with read models, and logins."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import cast

import httpx
import psycopg
import pytest
import uvicorn
from psycopg.conninfo import make_conninfo
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from millrace import count, field, last, lookup, read_model, stream_id
from millrace.event_store.platform import PlatformStore
from millrace.own_pages import OwnPages, Refused
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.versions import ensure_version
from millrace.streams.rights import PRIVATE, TokenRights, access, refused, session_route
from millrace.streams.tokens import Connections, TokenStore, hash_of, made_token
from tests.support.logins import Login, logins
from tests.support.patience import patience, wait_until


@read_model(view="streamed", deciders=["order"], key=["order_id"])
class Streamed:
    """One row per order."""

    order_id = stream_id()
    placed = count()
    customer = last("data.customer")


STREAMED = cast("ReadModel", Streamed)


@read_model(view="looking", deciders=["invoice"], key=["invoice_id"])
class Looking:
    """One row per invoice, with the customer of its order."""

    invoice_id = stream_id()
    order = last("data.order")
    customer = lookup(STREAMED, on="order", column="customer")


@read_model(view="by_customer", deciders=["order"], key=["customer", "day"])
class ByCustomer:
    """One row per customer and day, of all orders."""

    customer = field("data.customer")
    day = field("data.day")
    placed = count()


@dataclass(frozen=True)
class Served:
    """The server: its address, the connections of tokens in it, and the store."""

    url: str
    connections: Connections
    store: TokenStore

    def token(self, login: str, **options: int) -> str:
        made = made_token()
        self.store.add_stream_token(hash_of(made), login, "a test", **options)
        return made

    def get(self, path: str, token: str | None = None, **headers: str) -> httpx.Response:
        more = {} if token is None else {"Authorization": f"Bearer {token}"}
        told = {**more, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return httpx.get(f"{self.url}{path}", headers=told, timeout=patience(), trust_env=False)


@pytest.fixture
def login(orders: PlatformStore) -> Iterator[Login]:
    """Yield an opener of sessions as a new user with only the given roles."""
    with logins(orders.connection) as made:
        yield made


@pytest.fixture
def served(orders: PlatformStore, login: Login, dsn: str) -> Iterator[Served]:
    """Serve the columns of models, the rights to the log, and connections that stay open."""
    for model in (STREAMED, cast("ReadModel", Looking), cast("ReadModel", ByCustomer)):
        ensure_version(orders.connection, model)
    # the rights of a drain are enough
    operator = login("event_store_owner")
    with serving(make_conninfo(dsn, user=operator.info.user)) as (url, connections):
        yield Served(url, connections, TokenStore(operator))


@contextmanager
def serving(dsn: str) -> Iterator[tuple[str, Connections]]:
    pages, connections = OwnPages("this server", ["proxy.example.com"]), Connections()

    @asynccontextmanager
    async def connect() -> AsyncIterator[psycopg.AsyncConnection]:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            yield connection

    rights = TokenRights(connect, pages)

    async def columns(request: Request) -> Response:
        return JSONResponse((await rights.may(request)).columns, headers=PRIVATE)

    async def follow(request: Request) -> Response:
        async with connect() as connection:
            opened = await access(connection, request.scope, pages)

        async def sent() -> AsyncIterator[str]:
            async with connections.open(opened.token_id) as held:
                yield "open\n"
                await held.ended.wait()
                yield "ended\n"

        return StreamingResponse(sent(), headers=PRIVATE)

    @asynccontextmanager
    async def watched(_app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(connections.watch(dsn))
        yield
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    routes = [Route("/models/{model:path}", columns), Route("/log", columns), Route("/follow", follow)]
    app = Starlette(
        routes=[*routes, session_route(connect, pages)], exception_handlers={Refused: refused}, lifespan=watched
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server started")
        (port,) = (each.getsockname()[1] for one in server.servers for each in one.sockets)
        wait_until(lambda: connections.hears, "it hears of revocations")
        yield f"http://127.0.0.1:{port}", connections
    finally:
        server.should_exit = True
        thread.join()
