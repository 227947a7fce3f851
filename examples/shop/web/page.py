"""A page that places orders and shows them, including events that were just appended, and shows customers.

    uvicorn --factory my_shop:app        # app = lambda: page(dsn)

Each form carries the id of its command: a form that is sent twice places one order. After an append the page waits
until the read model `orders` has the event. It is shown without if that takes too long, or needs an operator.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from html import escape
from typing import Any, LiteralString
from urllib.parse import parse_qs
from uuid import UUID, uuid4

from psycopg.errors import UndefinedTable
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from millrace import AsyncEventStore, handle
from millrace.errors import NeverSeen
from millrace.examples.shop.deciders.order import ORDER, Confirm, Place, Refused
from millrace.examples.shop.lives import PRODUCTS
from millrace.personal import Forgotten, Sealer

FORM = """
<form method="post" action="/orders">
<input type="hidden" name="command_id" value="{command_id}">
<input name="customer_id" required>
<select name="product" multiple required>{options}</select>
<button>Order</button>
</form>
"""
SHOWN = """
<h1>{order_id}</h1>
<p>{lines} lines, {total} euros: {status}</p>
<form method="post" action="/orders/{order_id}/confirm"><button>Confirm</button></form>
"""
ORDER_ROW: LiteralString = "select order_id, status, lines, total from read_models.orders where order_id = %s"
CUSTOMER = "<h1>{customer_id}</h1><p>{name}, {email}</p>"
CUSTOMER_ROW: LiteralString = "select customer_id, name, email from read_models.customers where customer_id = %s"


class Page:
    """The pages of one event store."""

    def __init__(self, dsn: str, wait_s: float, sealer: Sealer | None) -> None:
        self._pool = AsyncConnectionPool(dsn, open=False)
        self._store = AsyncEventStore(self._pool, sealer=sealer)
        self._wait_s = wait_s

    async def form(self, _: Request) -> Response:
        """Show the products."""
        options = "".join(f"<option>{escape(product)}</option>" for product in PRODUCTS)
        return HTMLResponse(FORM.format(command_id=uuid4(), options=options))

    async def place(self, request: Request) -> Response:
        """Place an order, and go to its page."""
        fields = parse_qs((await request.body()).decode())
        try:
            command_id = UUID(fields["command_id"][0])
            command = Place(fields["customer_id"][0], tuple((product, 1) for product in fields["product"]))
        except (KeyError, ValueError):
            return HTMLResponse("<p>Fill in the form.</p>", 400)
        return await self._handled(f"order-{command_id}", command, command_id)

    async def confirm(self, request: Request) -> Response:
        """Confirm an order, and go to its page."""
        return await self._handled(request.path_params["order_id"], Confirm())

    async def show(self, request: Request) -> Response:
        """Show an order as the read model has it."""
        row = await self._row(ORDER_ROW, request.path_params["order_id"])
        if row is None:
            return HTMLResponse("<p>This order is not shown yet, or does not exist.</p>", 404)
        return HTMLResponse(SHOWN.format(**{name: escape(str(value)) for name, value in row.items()}))

    async def customer(self, request: Request) -> Response:
        """Show a customer, whose address is sealed in the read model."""
        row = await self._row(CUSTOMER_ROW, request.path_params["customer_id"])
        if row is None:
            return HTMLResponse("<p>This customer is not shown yet, or does not exist.</p>", 404)
        (opened,) = await self._store.open_rows([row])
        if isinstance(opened["email"], dict):
            opened["email"] = "forgotten" if isinstance(opened["email"], Forgotten) else "sealed"
        return HTMLResponse(CUSTOMER.format(**{name: escape(str(value)) for name, value in opened.items()}))

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Keep connections open while the server runs."""
        async with self._pool:
            yield

    async def _row(self, query: LiteralString, identity: str) -> dict[str, Any] | None:
        """Return a row of a read model; None if the read model is not built yet, too."""
        with suppress(UndefinedTable):
            async with self._pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(query, (identity,))
                return await cursor.fetchone()
        return None

    async def _handled(self, order_id: str, command: Place | Confirm, command_id: UUID | None = None) -> Response:
        try:
            handled = await handle(self._store, ORDER, order_id, command, command_id=command_id)
        except Refused as refused:
            return HTMLResponse(f"<p>{escape(str(refused))}</p>", 409)
        # the order is placed even if the read model waits for an operator
        with suppress(NeverSeen):
            await self._store.wait_for("orders", handled, timeout_s=self._wait_s)
        return RedirectResponse(f"/orders/{order_id}", 303)


def page(dsn: str, wait_s: float = 5.0, sealer: Sealer | None = None) -> Starlette:
    """Return the page.

    Args:
        dsn: The event store; the login is a member of event_store_writer, event_store_reader, and with a sealer of
            event_store_personal.
        wait_s: The most seconds that a page waits for the read model.
        sealer: Opens the addresses of customers.
    """
    pages = Page(dsn, wait_s, sealer)
    routes = [
        Route("/", pages.form),
        Route("/orders", pages.place, methods=["POST"]),
        Route("/orders/{order_id}", pages.show),
        Route("/customers/{customer_id}", pages.customer),
        Route("/orders/{order_id}/confirm", pages.confirm, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=pages.lifespan)
