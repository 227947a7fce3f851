"""The server over a store with read models, and logins."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from millrace import count, field, last, lookup, read_model, stream_id
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.feed import tell_replaced
from millrace.read_models.stored.versions import ensure_version
from millrace.streams.app import serving_streams
from millrace.streams.followers import Followers
from millrace.streams.tokens import TokenStore, hash_of, made_token
from tests.support.logins import Login, logins
from tests.support.patience import patience, wait_until


@read_model(view="streamed", deciders=["order"], key=["order_id"], feed=True)
class Streamed:
    """One row per order."""

    order_id = stream_id()
    placed = count()
    customer = last("data.customer")


STREAMED = cast("ReadModel", Streamed)


@read_model(view="looking", deciders=["invoice"], key=["invoice_id"], feed=True)
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
    """The server: its address, and the store."""

    url: str
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
    """Serve two read models with a feed and one without."""
    for model in (STREAMED, cast("ReadModel", Looking), cast("ReadModel", ByCustomer)):
        ensure_version(orders.connection, model)
        with orders.connection.transaction():
            tell_replaced(orders.connection, model)
    orders.sequence_events()
    # the rights of a drain are enough
    operator = login("event_store_owner")
    followers = Followers(make_conninfo(dsn, user=operator.info.user))
    with serving_streams(followers, "127.0.0.1", 0, ["proxy.example.com"]) as port:
        found = Served(f"http://127.0.0.1:{port}", TokenStore(operator))
        first = found.token(login("event_store_reader").info.user)
        path = "/views/streamed?offset=now"
        wait_until(lambda: found.get(path, first).status_code == 200, "it hears of revocations")
        orders.connection.execute("delete from event_store.stream_tokens")
        yield found
