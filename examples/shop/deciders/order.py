"""What may happen to an order of the shop: commands, and the events that they lead to."""

from dataclasses import dataclass
from decimal import Decimal

from millrace import Decider, Emit, Event
from millrace.examples.shop.lives import PRODUCTS


class Refused(Exception):
    """The state of the order does not allow this."""


@dataclass(frozen=True)
class Place:
    """Begin an order of some products, each with its quantity."""

    customer_id: str
    quantities: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Confirm:
    """Take the order on."""


@dataclass(frozen=True)
class Cancel:
    """Give the order up."""

    reason: str


@dataclass(frozen=True)
class Order:
    """The state of an order that decisions need: its last event, and the sum of its lines."""

    last: str | None = None
    total: Decimal = Decimal()


def decide(command: Place | Confirm | Cancel, order: Order) -> list[Emit]:
    """Return the events that a command leads to; a second confirmation or cancellation leads to none.

    Raises:
        Refused: It cannot be done; the text tells the customer why.
    """
    if isinstance(command, Place):
        if order.last is not None:
            raise Refused("This order was placed before.")
        return _placed(command)
    if isinstance(command, Cancel):
        if order.last in {None, "order_confirmed"}:
            raise Refused("There is no such order, or the shop took it on.")
        cancelled = Emit("order_cancelled", {"reason": command.reason}, final=True)
        return [] if order.last == "order_cancelled" else [cancelled]
    if order.last in {None, "order_cancelled"}:
        raise Refused("There is no such order, or it was cancelled.")
    return [] if order.last == "order_confirmed" else [Emit("order_confirmed", {"total": float(order.total)})]


def evolve(order: Order, event: Event) -> Order:
    """Return the order after an event."""
    amount = Decimal(str(event.data["amount"])) if event.event == "order_line_added" else Decimal()
    return Order(event.event, order.total + amount)


ORDER = Decider(name="order", initial=Order(), decide=decide, evolve=evolve)


def _placed(command: Place) -> list[Emit]:
    if not command.quantities:
        raise Refused("An order has at least one product.")
    events = [Emit("order_placed", {"customer_id": command.customer_id, "channel": "web"})]
    for product, quantity in command.quantities:
        if product not in PRODUCTS or quantity < 1:
            raise Refused(f"We do not sell {quantity} of {product!r}.")
        line = {"product": product, "quantity": quantity, "amount": quantity * PRODUCTS[product] / 100}
        events.append(Emit("order_line_added", line))
    return events
