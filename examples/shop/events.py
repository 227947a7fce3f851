"""The example domain: a shop with orders, payments and shipments.

Belongs here: which events its deciders may append and which of them end a stream. Not here: in which order they happen;
that is `lives`.

Ids are `order-…`, `payment-…` and `shipment-…`; every event of a payment or shipment names its order and its customer.
"""

from dataclasses import dataclass

from millrace import EventStore
from millrace.rows import DeciderEvent


@dataclass(frozen=True)
class ShopEvent:
    """An event of the shop; `final` ones close their stream."""

    decider: str
    event: str
    description: str
    final: bool = False


SHOP = (
    ShopEvent(
        "order",
        "order_placed",
        "A customer began an order. data: customer_id, channel (web, app, phone or store).",
    ),
    ShopEvent(
        "order",
        "order_line_added",
        "A product was put on the order. data: product, quantity, amount (quantity times price, two decimals).",
    ),
    ShopEvent("order", "order_confirmed", "The shop took the order on. data: total (the sum of its lines' amounts)."),
    ShopEvent("order", "order_cancelled", "The order will not be delivered. data: reason.", final=True),
    ShopEvent(
        "payment",
        "payment_requested",
        "The customer was asked to pay. data: order_id, customer_id, amount, method (card, ideal, invoice or paypal).",
    ),
    ShopEvent("payment", "payment_received", "The customer paid. data: order_id, customer_id, amount.", final=True),
    ShopEvent(
        "payment",
        "payment_failed",
        "The payment did not work; it may be requested again. data: order_id, customer_id, reason.",
    ),
    ShopEvent("shipment", "shipment_prepared", "A parcel was packed. data: order_id, customer_id, carrier."),
    ShopEvent("shipment", "shipment_dispatched", "The carrier took the parcel. data: order_id, customer_id."),
    ShopEvent(
        "shipment", "shipment_delivered", "The customer has the parcel. data: order_id, customer_id.", final=True
    ),
)

FINAL = frozenset((known.decider, known.event) for known in SHOP if known.final)


def register_shop(store: EventStore) -> list[DeciderEvent]:
    """Register the shop's events and return them as registered; again: no-op."""
    return store.register_decider_events(
        DeciderEvent(known.decider, known.event, 1, known.description) for known in SHOP
    )
