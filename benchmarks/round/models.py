"""Forty read models of the kinds that a shop has: columns by stream and across streams, and folds."""

from dataclasses import replace
from typing import Any, cast

from millrace import any_, avg, count, field, first, fold, last, max_, min_, read_model, stream_id, sum_
from millrace.ops import ReadModel
from millrace.rows import FoldEvent, State


@read_model(view="orders", deciders=["order"], key=["order_id"])
class Orders:
    """One row per order."""

    order_id = stream_id()
    customer_id = last("data.customer_id", events=["order_placed"])
    status = last("event")
    lines = count(events=["order_line_added"])
    total = sum_("data.amount", type="decimal(18,2)", events=["order_line_added"])
    placed_at = min_("created_at")


@read_model(view="customers", deciders=["order", "payment"], key=["customer_id"])
class Customers:
    """One row per customer."""

    customer_id = field("data.customer_id")
    orders = count(events=["order_placed"])
    paid = sum_("data.amount", type="decimal(18,2)", events=["payment_received"])
    mean_payment = avg("data.amount", type="decimal(18,2)", events=["payment_received"])
    failed_payments = count(events=["payment_failed"])
    last_seen_at = max_("created_at")


@read_model(view="shipments", deciders=["shipment"], key=["shipment_id"])
class Shipments:
    """One row per shipment."""

    shipment_id = stream_id()
    order_id = first("data.order_id")
    carrier = first("data.carrier")
    status = last("event")
    delivered = any_("final")
    prepared_at = min_("created_at")
    changed_at = max_("created_at")


@read_model(view="payments", deciders=["payment"], key=["payment_id"])
class Payments:
    """One row per payment."""

    payment_id = stream_id()
    method = last("data.method")
    amount = max_("data.amount", type="decimal(18,2)")
    failures = count(events=["payment_failed"])
    status = last("event")


@read_model(view="products", deciders=["order"], key=["product"], events=["order_line_added"])
class Products:
    """One row per product."""

    product = field("data.product")
    sold = sum_("data.quantity", type="bigint")
    worth = sum_("data.amount", type="decimal(18,2)")
    first_sold = min_("created_at")


@read_model(view="channels", deciders=["order"], key=["channel"], events=["order_placed"])
class Channels:
    """One row per channel."""

    channel = field("data.channel")
    orders = count()
    last_order = last("decider_id")


@fold(
    view="order_flow",
    deciders=["order"],
    key="order_id",
    columns={"status": "string", "steps": "bigint", "cents": "bigint"},
)
def order_flow(state: State | None, event: FoldEvent) -> State:
    """Where an order stands."""
    before = state or {"steps": 0, "cents": 0}
    cents = round(event.data["amount"] * 100) if event.event == "order_line_added" else 0
    return {"steps": before["steps"] + 1, "cents": before["cents"] + cents, "status": event.event}


@fold(view="parcels", deciders=["shipment"], key="shipment_id", columns={"at": "string", "seen": "bigint"})
def parcels(state: State | None, event: FoldEvent) -> State:
    """Where a parcel is."""
    return {"seen": (state or {"seen": 0})["seen"] + 1, "at": event.event}


# mypy takes a decorated class for a plain class
_KINDS: list[Any] = [Orders, Customers, Shipments, order_flow, Payments, Products, Channels, parcels]


def models(number: int) -> list[ReadModel]:
    """Return `number` models; from the ninth on the kinds repeat, as separate models."""
    found = []
    for place in range(number):
        again, kind = divmod(place, len(_KINDS))
        model = cast("ReadModel", _KINDS[kind])
        suffix = f"_{again}" if again else ""
        found.append(replace(model, name=f"{model.name}{suffix}", view=f"{model.view}{suffix}"))
    return found
