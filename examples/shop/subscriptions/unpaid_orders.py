"""What happens to orders that are not paid: the shop waits for a while, and gives them up.

    millrace run handlers millrace.examples.shop.subscriptions.unpaid_orders

`millrace scheduled list process:unpaid_orders` lists the orders that are waited for; `millrace show history
process:unpaid_orders ID` shows the steps of one.
"""

from datetime import timedelta
from typing import ClassVar

from millrace import Event
from millrace.commands import Do, RefusedCommand, on, on_late, on_refused, process, starts
from millrace.examples.shop.deciders.order import ORDER, Cancel

# the simulated customers that pay mostly do so within ten seconds
PATIENCE = timedelta(seconds=20)


@process(view="unpaid_orders", key={"order": "decider_id", "payment": "data.order_id"})
class UnpaidOrders:
    """Cancels an order that is not paid in time."""

    key: ClassVar[str]
    refund: bool = False

    @starts("order_placed")
    def placed(self, _: Event, do: Do) -> None:
        """Wait for the payment."""
        do.timer("pay", after=PATIENCE, event="payment_overdue")

    @on("payment_received", wait=PATIENCE)
    @on("order_cancelled")
    def over(self, _: Event, do: Do) -> None:
        """End, because the order is paid or given up."""
        do.cancel("pay")
        do.end()

    @on("payment_overdue")
    def overdue(self, _: Event, do: Do) -> None:
        """Give the order up."""
        do.command(ORDER, self.key, Cancel("not paid"))
        do.end()

    @on_refused(Cancel)
    def confirmed(self, _: RefusedCommand, do: Do) -> None:
        """End: the shop took the order on at this moment."""
        do.end()

    @on_late("payment_received")
    def late(self, _: Event, __: Do) -> None:
        """Note that the customer gets the money back."""
        self.refund = True
