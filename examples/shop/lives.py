"""Plans the lives of the shop's orders, from placed to delivered or cancelled: only its random generator decides."""

import random
from dataclasses import dataclass

from millrace.examples.shop.events import FINAL
from millrace.rows import Json

# few enough that customers order again and keys cross streams
CUSTOMERS = 200
NAMES = ("Ada", "Bram", "Chiara", "Dogan", "Elif", "Femke", "Goran", "Hanna", "Ivo", "Joke", "Kees", "Lena")
CHANNELS = ("web", "web", "web", "app", "app", "phone", "store")
CARRIERS = ("DHL", "PostNL", "UPS", "GLS")
METHODS = ("card", "card", "ideal", "paypal", "invoice")
# products and their prices in cents
PRODUCTS = {
    "apron": 1895,
    "bread knife": 3450,
    "casserole": 8990,
    "coffee grinder": 5475,
    "cutting board": 2199,
    "kettle": 4999,
    "measuring cup": 725,
    "oven glove": 1249,
    "pepper mill": 2760,
    "whisk": 995,
}


@dataclass(frozen=True)
class Step:
    """One future event of a life."""

    decider: str
    decider_id: str
    event: str
    data: Json

    @property
    def final(self) -> bool:
        """Whether the event closes its stream."""
        return (self.decider, self.event) in FINAL


@dataclass(frozen=True)
class Life:
    """An order's life: the first event of its customer, the events it is placed with, and the rest."""

    customer: Step
    start: tuple[Step, ...]
    rest: tuple[Step, ...]


def plan_life(chance: random.Random, number: str) -> Life:
    """Plan the life of order `order-<number>`: placed, paid for, confirmed, delivered; or cancelled, or left.

    Args:
        chance: The random generator that decides everything.
        number: The end of its ids.
    """
    order, payment, shipment = f"order-{number}", f"payment-{number}", f"shipment-{number}"
    buyer = chance.randint(1, CUSTOMERS)
    customer = f"customer-{buyer:03}"
    # a customer has one name in all lives
    name = f"{NAMES[buyer % len(NAMES)]} {chr(ord('A') + buyer // len(NAMES))}."
    registered = Step("customer", customer, "customer_registered", {"name": name})
    whose = {"order_id": order, "customer_id": customer}
    start = [Step("order", order, "order_placed", {"customer_id": customer, "channel": chance.choice(CHANNELS)})]
    cents = 0
    for product in chance.sample(sorted(PRODUCTS), chance.randint(1, 5)):
        quantity = chance.choice((1, 1, 1, 2, 3))
        cents += quantity * PRODUCTS[product]
        line = {"product": product, "quantity": quantity, "amount": quantity * PRODUCTS[product] / 100}
        start.append(Step("order", order, "order_line_added", line))
    amount = {"amount": cents / 100}

    def cancelled(reason: str) -> Life:
        return Life(registered, tuple(start), (*rest, Step("order", order, "order_cancelled", {"reason": reason})))

    rest: list[Step] = []
    if chance.random() < 0.06:
        return cancelled("changed mind")
    while True:
        request = {**whose, **amount, "method": chance.choice(METHODS)}
        rest.append(Step("payment", payment, "payment_requested", request))
        if chance.random() < 0.04:
            # the process `unpaid_orders` will cancel it
            return Life(registered, tuple(start), tuple(rest))
        if chance.random() >= 0.15:
            break
        failed = {**whose, "reason": chance.choice(("declined", "insufficient funds", "expired"))}
        rest.append(Step("payment", payment, "payment_failed", failed))
        if chance.random() < 0.4:
            return cancelled("payment failed")
    rest.append(Step("payment", payment, "payment_received", {**whose, **amount}))
    rest.append(Step("order", order, "order_confirmed", {"total": cents / 100}))
    rest.append(Step("shipment", shipment, "shipment_prepared", {**whose, "carrier": chance.choice(CARRIERS)}))
    rest.append(Step("shipment", shipment, "shipment_dispatched", dict(whose)))
    rest.append(Step("shipment", shipment, "shipment_delivered", dict(whose)))
    return Life(registered, tuple(start), tuple(rest))
