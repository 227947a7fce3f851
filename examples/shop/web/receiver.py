"""A receiver of pushes: the warehouse, which packs confirmed orders, and accepts only signed events.

    millrace view secret warehouse warehouse.secret     # the file is for the warehouse
    uvicorn --factory my_warehouse:app                  # app = lambda: warehouse(dsn, secret)

It answers 204 when the event is stored, 401 to a request without a valid signature, 413 to a body larger than any
event. An event may come again when an answer was lost: the warehouse knows its id, and packs nothing twice.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg_pool import AsyncConnectionPool
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TABLE = "create table if not exists parcels (event_id uuid primary key, order_id text not null)"
# an event's data have at most 1 MiB
LARGEST = 2 * 2**20


class Warehouse:
    """Receives events; it has a database of its own."""

    def __init__(self, dsn: str, secret: str) -> None:
        self._pool = AsyncConnectionPool(dsn, open=False)
        self._secret = Webhook(secret)

    async def received(self, request: Request) -> Response:
        """Verify the raw body before it is parsed; then store the event, if it is new."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST:
                return Response(status_code=413)
        try:
            event = self._secret.verify(body, dict(request.headers))
        except WebhookVerificationError:
            return Response(status_code=401)
        if event["event"] == "order_confirmed":
            async with self._pool.connection() as connection:
                await connection.execute(
                    "insert into parcels values (%s, %s) on conflict do nothing",
                    (event["event_id"], event["decider_id"]),
                )
        return Response(status_code=204)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Keep connections open while the server runs."""
        async with self._pool:
            async with self._pool.connection() as connection:
                await connection.execute(TABLE)
            yield


def warehouse(dsn: str, secret: str) -> Starlette:
    """Return the receiver.

    Args:
        dsn: The warehouse's own database.
        secret: The content of the file that `millrace view secret` wrote.
    """
    place = Warehouse(dsn, secret)
    return Starlette(routes=[Route("/events", place.received, methods=["POST"])], lifespan=place.lifespan)
