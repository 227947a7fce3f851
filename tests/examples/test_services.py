"""The example shop for authors of services: mails, a warehouse that receives pushes, and a page; all over HTTP."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import psycopg
import pytest
import requests
import uvicorn
from starlette.applications import Starlette

from millrace.assets.declarations import declared
from millrace.commands.decider import Emit
from millrace.commands.handle import handle
from millrace.event_store import Json, StreamEvents
from millrace.event_store.key_rotation import KeyStore
from millrace.event_store.platform import PlatformStore
from millrace.examples.shop.deciders.order import ORDER, Cancel, Confirm, Place, Refused
from millrace.examples.shop.events import register_shop
from millrace.examples.shop.simulator import simulate
from millrace.examples.shop.subscriptions.mails import make_mails, write_mail
from millrace.examples.shop.subscriptions.unpaid_orders import PATIENCE, UnpaidOrders
from millrace.examples.shop.web.page import page
from millrace.examples.shop.web.receiver import LARGEST, warehouse
from millrace.handlers.push import push_events
from millrace.handlers.store import PushStore
from millrace.operations.privacy import forget, init
from millrace.personal import Sealer
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.read_models.stored.versions import ensure_version
from millrace.signing import made_secret, signed
from millrace.testing import event, given
from tests.support.factories import rows, start, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.handlers.declaration import Subscription

MODELS = declared("millrace.examples.shop", ["read_models"]).models
CUSTOMERS, ORDERS = MODELS["customers"], MODELS["orders"]
TWO = Place("customer-7", (("whisk", 1), ("kettle", 2)))


@pytest.fixture
def shop(store: PlatformStore) -> PlatformStore:
    register_shop(store)
    return store


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, loop="asyncio", ws="none", log_level="error"))
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    wait_until(lambda: server.started or not running.is_alive(), "the server listens")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        running.join(patience())


def test_an_order_is_placed_with_its_lines_and_confirmed_once(dsn: str) -> None:
    placed = given(dsn=dsn).when(ORDER, "order-1", TWO)
    placed.then(
        Emit("order_placed", {"customer_id": "customer-7", "channel": "web"}),
        Emit("order_line_added", {"product": "whisk", "quantity": 1, "amount": 9.95}),
        Emit("order_line_added", {"product": "kettle", "quantity": 2, "amount": 99.98}),
    )
    given(dsn=dsn).when(ORDER, "order-1", Confirm()).then(Emit("order_confirmed", {"total": 109.93}))
    given(dsn=dsn).when(ORDER, "order-1", Confirm()).then()


def test_what_cannot_be_done_to_an_order_is_refused(dsn: str) -> None:
    orders = given(event("order", "placed", "order_placed"), event("order", "gone", "order_cancelled"), dsn=dsn)
    for order, command in (
        ("placed", TWO),
        ("gone", Confirm()),
        ("new", Confirm()),
        ("new", Cancel("not paid")),
        ("new", Place("customer-7", ())),
        ("new", Place("customer-7", (("unicorn", 1),))),
        ("new", Place("customer-7", (("whisk", 0),))),
    ):
        with pytest.raises(Refused):
            orders.when(ORDER, order, command)


def test_an_order_that_is_taken_on_has_one_mail(shop: PlatformStore, dsn: str) -> None:
    make_mails(shop.connection)
    for order_id in ("order-1", "order-2"):
        handle(shop, ORDER, order_id, TWO)
    handle(shop, ORDER, "order-1", Confirm())
    assert given(dsn=dsn).when(write_mail).handled == 1
    assert given(dsn=dsn).when(write_mail).handled == 0
    mail = ("order-1", "We took it on. It comes to 109.93 euros.")
    assert rows(shop.connection, "select order_id, body from mails") == [mail]


def test_an_order_that_is_not_paid_in_time_is_cancelled(shop: PlatformStore, dsn: str) -> None:
    def paid(number: int) -> StreamEvents:
        whose: dict[str, Json] = {"order_id": f"order-{number}", "customer_id": "customer-7"}
        return event("payment", f"payment-{number}", "payment_received", **whose, amount=5)

    def heard(number: int) -> list[str]:
        events = shop.read("process:unpaid_orders", f"order-{number}")
        return [step.data["heard"].split()[0] for step in events if step.event == "step"]

    # to type checkers it is still its class
    unpaid = cast("Subscription", UnpaidOrders)
    for number in range(4):
        handle(shop, ORDER, f"order-{number}", TWO)
    handle(shop, ORDER, "order-1", Cancel("changed mind"))
    for events in ([], [paid(0)]):
        given(*events, dsn=dsn).when(unpaid)
    later = given(dsn=dsn).later(PATIENCE)
    # at this moment an operator takes it on
    handle(shop, ORDER, "order-3", Confirm())
    later.when(unpaid)
    given(paid(2), dsn=dsn).when(unpaid)
    assert [heard(number)[1:] for number in range(4)] == [
        ["payment_received"],
        ["order_cancelled"],
        ["payment_overdue", "payment_received"],
        ["payment_overdue", "refused"],
    ]
    reasons = "select decider_id, data->>'reason' from event_store.events where event = 'order_cancelled' order by 1"
    assert rows(shop.connection, reasons) == [("order-1", "changed mind"), ("order-2", "not paid")]
    assert [*shop.read("process:unpaid_orders", "order-2")][-1].data["state"] == {"refund": True}


def test_the_warehouse_takes_signed_events_once_and_no_others(
    shop: PlatformStore, dsn: str, spares: Callable[[], str], postgres: EmbeddedPostgres
) -> None:
    own, secret = postgres.dsn(spares()), made_secret()
    for order_id in ("order-1", "order-2"):
        handle(shop, ORDER, order_id, TWO)
        handle(shop, ORDER, order_id, Confirm())
    with served(warehouse(own, secret)) as url:
        shop.register_view("warehouse", "-infinity", 30, 0, f"{url}/events", deciders=["order"])
        PushStore(shop.connection).set_push_secret("warehouse", secret)
        report = push_events(dsn, "warehouse", budget_s=patience(), idle_s=0, allowed=["127.0.0.1"])
        assert report.events == 8
        body = b'{"event": "order_confirmed", "event_id": "%s", "decider_id": "order-3"}' % str(uuid4()).encode()
        for key, status in ((made_secret(), 401), (secret, 204), (secret, 204)):
            headers = signed("message-1", body, [key])
            assert requests.post(f"{url}/events", body, headers=headers, timeout=patience()).status_code == status
            with psycopg.connect(own) as connection:
                packed = [order_id for (order_id,) in rows(connection, "select order_id from parcels order by 1")]
            assert packed == ["order-1", "order-2", "order-3"][: 2 if status == 401 else 3]
        assert requests.post(f"{url}/events", b"x" * (LARGEST + 1), timeout=patience()).status_code == 413
        assert requests.post(f"{url}/events", body, timeout=patience()).status_code == 401


def test_a_page_shows_what_was_just_ordered(shop: PlatformStore, dsn: str, spark: "SparkSession") -> None:
    # its table and the one that it looks up exist, empty
    for model in (CUSTOMERS, ORDERS):
        ensure_version(shop.connection, model)

    def drain(events: int) -> None:
        wait_until(lambda: value(shop.connection, "select count(*) from event_store.events") == events, "it is placed")
        given(dsn=dsn, spark=spark).when(ORDERS, batch_events=1000)

    with served(page(dsn, wait_s=patience())) as url, requests.Session() as browser:
        form = browser.get(url, timeout=patience()).text
        command_id = form.partition('name="command_id" value="')[2][:36]
        order = {"command_id": command_id, "customer_id": "customer-7", "product": ["whisk", "kettle"]}
        for drained in (start(lambda: drain(3)), None):
            # a form that is sent twice places one order
            answer = browser.post(f"{url}/orders", order, timeout=2 * patience())
            assert (answer.status_code, answer.url) == (200, f"{url}/orders/order-{command_id}")
            assert "2 lines, 59.94 euros: order_line_added" in answer.text
            if drained is not None:
                drained.result(patience())
        drained = start(lambda: drain(4))
        confirmed = browser.post(f"{answer.url}/confirm", timeout=2 * patience())
        assert "2 lines, 59.94 euros: order_confirmed" in confirmed.text
        drained.result(patience())


def test_a_page_shows_the_address_of_a_customer_until_it_is_forgotten(
    shop: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    privacy = KeyStore(shop.connection)
    init(privacy, tmp_path)
    simulated = simulate(dsn, rate=None, events=1, seed=1, keys=tmp_path, stop=threading.Event())
    ((customer, data),) = rows(
        shop.connection, "select decider_id, data from event_store.events where event = 'email_given'"
    )
    assert (simulated.events, list(data["email"])) == (2, ["$sealed"])

    def shown(sealer: Sealer | None) -> str:
        with served(page(dsn, sealer=sealer)) as url:
            return requests.get(f"{url}/customers/{customer}", timeout=patience()).text

    assert "not shown yet" in shown(None)
    given(dsn=dsn, spark=spark).when(CUSTOMERS, batch_events=1000)
    assert shown(None).endswith(", sealed</p>")
    assert shown(Sealer.from_folder(tmp_path)).endswith(f", {customer}@example.com</p>")
    forget(privacy, tmp_path, f"customer:{customer}", "asked")
    assert shown(Sealer.from_folder(tmp_path)).endswith(", forgotten</p>")


@pytest.mark.usefixtures("shop")
def test_a_page_says_what_is_late_or_refused(dsn: str) -> None:
    order = {"command_id": str(uuid4()), "customer_id": "customer-7", "product": "whisk"}
    with served(page(dsn, wait_s=0)) as url:
        answer = requests.post(f"{url}/orders", order, timeout=patience())
        assert (answer.status_code, [each.status_code for each in answer.history]) == (404, [303])
        assert "not shown yet" in answer.text
        unknown = requests.post(f"{url}/orders/order-0/confirm", timeout=patience())
        assert (unknown.status_code, unknown.text) == (409, "<p>There is no such order, or it was cancelled.</p>")
        assert requests.post(f"{url}/orders", {"product": "whisk"}, timeout=patience()).status_code == 400
        refused = requests.post(f"{url}/orders", order | {"product": "<b>", "command_id": uuid4()}, timeout=patience())
        assert (refused.status_code, "&lt;b&gt;" in refused.text) == (409, True)
