"""The orders of the example shop by status: groups of the rows of its orders."""

from millrace import count, rollup, row, sum_
from millrace.examples.shop.read_models.orders import Orders


@rollup(of=Orders, key=["status"])
class OrdersByStatus:
    """One row per status: the orders that have it now, and what they are worth."""

    status = row("status")
    orders = count()
    worth = sum_("total", type="decimal(18,2)")
