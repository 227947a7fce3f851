"""Read models with and without a feed, and a server of them for tokens of several logins."""

from dataclasses import dataclass
from typing import cast

import httpx

from millrace import count, field, last, lookup, read_model, stream_id
from millrace.read_models.declared.declaration import ReadModel
from millrace.streams.tokens import TokenStore, hash_of, made_token
from tests.support.patience import patience


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


MODELS = (STREAMED, cast("ReadModel", Looking), cast("ReadModel", ByCustomer))


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
