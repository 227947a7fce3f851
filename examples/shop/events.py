"""The events of the example shop: those of customers, orders, payments and shipments, and which of them end a stream.

Not here: the order in which they happen (`lives`).

Ids are `customer-…`, `order-…`, `payment-…` and `shipment-…`; every event of a payment or shipment names its order and
its customer.
"""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from millrace import EventStore
from millrace.event_schemas import event, register_events
from millrace.personal import Personal

Euros = Annotated[Decimal, Field(ge=0, decimal_places=2)]


class Whose(BaseModel):
    """The order and the customer that an event is about."""

    order_id: str
    customer_id: str


@event(decider="customer")
class CustomerRegistered(BaseModel):
    """A customer was registered."""

    name: str


@event(decider="customer")
class EmailGiven(BaseModel):
    """A customer gave an address for mails, which only programs with the customer's key can read."""

    customer_id: str
    email: Annotated[str, Personal(of="customer_id", kind="customer")]


@event(decider="order")
class OrderPlaced(BaseModel):
    """A customer began an order."""

    customer_id: str
    channel: Literal["web", "app", "phone", "store"]


@event(decider="order")
class OrderLineAdded(BaseModel):
    """A product was put on the order."""

    product: str
    quantity: int = Field(ge=1)
    amount: Euros = Field(description="Quantity times price.")


@event(decider="order")
class OrderConfirmed(BaseModel):
    """The shop took the order on."""

    total: Euros = Field(description="The sum of its lines' amounts.")


@event(decider="order")
class OrderCancelled(BaseModel):
    """The order will not be delivered."""

    reason: str


@event(decider="payment")
class PaymentRequested(Whose):
    """The customer was asked to pay."""

    amount: Euros
    method: Literal["card", "ideal", "invoice", "paypal"]


@event(decider="payment")
class PaymentReceived(Whose):
    """The customer paid."""

    amount: Euros


@event(decider="payment")
class PaymentFailed(Whose):
    """The payment did not work; it may be requested again."""

    reason: str


@event(decider="shipment")
class ShipmentPrepared(Whose):
    """A parcel was packed."""

    carrier: str


@event(decider="shipment")
class ShipmentDispatched(Whose):
    """The carrier took the parcel."""


@event(decider="shipment")
class ShipmentDelivered(Whose):
    """The customer has the parcel."""


SHOP = (
    CustomerRegistered, EmailGiven, OrderPlaced, OrderLineAdded, OrderConfirmed, OrderCancelled, PaymentRequested,
    PaymentReceived, PaymentFailed, ShipmentPrepared, ShipmentDispatched, ShipmentDelivered,
)  # fmt: skip
FINAL = {("order", "order_cancelled"), ("payment", "payment_received"), ("shipment", "shipment_delivered")}


def register_shop(store: EventStore) -> None:
    """Register the shop's events with their schemas; a second call is a no-op."""
    register_events(store, SHOP)
