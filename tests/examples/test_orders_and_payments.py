"""The read models of orders and payments: an order with its customer, a payment with its order, the days."""

from typing import TYPE_CHECKING

from millrace.assets.declarations import declared
from millrace.testing import given
from tests.support.factories import Connect, rows
from tests.support.sql_calls import BatchEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = declared("millrace.examples.shop", ["read_models"]).models


def test_an_order_has_the_name_of_its_customer(dsn: str, spark: "SparkSession", connect: Connect) -> None:
    placed = BatchEvent("order", "o-1", "order_placed", data={"customer_id": "c-1", "channel": "web"})
    ordered = given(placed.alone, dsn=dsn, spark=spark)
    for model in ("customers", "orders"):
        ordered.when(SHOP[model])
    named = "select customer_id, o.customer, c.orders from read_models.orders o join read_models.customers c using (customer_id)"
    assert rows(connect(), named) == [("c-1", None, 1)]
    ordered.given(BatchEvent("customer", "c-1", "customer_registered", data={"name": "Ada"}).alone)
    ordered.when(SHOP["customers"])
    assert rows(connect(), named) == [("c-1", "Ada", 1)]


def test_a_payment_shows_its_order_and_counts_on_its_day(dsn: str, spark: "SparkSession", connect: Connect) -> None:
    whose = {"order_id": "o-1", "customer_id": "c-1"}
    paid = given(
        BatchEvent("order", "o-1", "order_placed", data={"customer_id": "c-1", "channel": "web"}).alone,
        BatchEvent("payment", "p-1", "payment_requested", data={**whose, "amount": 9.95, "method": "ideal"}).alone,
        BatchEvent("payment", "p-2", "payment_requested", data={**whose, "order_id": "o-2", "amount": 5, "method": "card"}).alone,
        BatchEvent("payment", "p-1", "payment_failed", data={**whose, "reason": "declined"}).alone,
        BatchEvent("payment", "p-1", "payment_requested", data={**whose, "amount": 9.95, "method": "card"}).alone,
        dsn=dsn, spark=spark,
    )  # fmt: skip
    for model in ("customers", "orders"):
        paid.when(SHOP[model])
    shown = (
        "select payment_id, order_id, method, attempts, took is null, order_status from read_models.payments order by 1"
    )
    paid.when(SHOP["payments"])
    waiting = ("p-2", "o-2", "card", 1, True, None)
    assert rows(connect(), shown) == [("p-1", "o-1", "card", 2, True, "order_placed"), waiting]
    paid.given(
        BatchEvent("payment", "p-1", "payment_received", data={**whose, "amount": 9.95}).alone,
        BatchEvent("order", "o-1", "order_confirmed", data={"total": 9.95}).alone,
    )
    for model in ("orders", "payments", "revenue"):
        paid.when(SHOP[model])
    assert rows(connect(), shown) == [("p-1", "o-1", "card", 2, False, "order_confirmed"), waiting]
    revenue = """
        select r.day = date_trunc('day', e.created_at, 'Europe/Amsterdam'), r.payments, r.amount::text
        from read_models.revenue r, event_store.events e where e.event = 'payment_received'
    """
    assert rows(connect(), revenue) == [(True, 1, "9.95")]
