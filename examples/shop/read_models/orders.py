"""The orders of the example shop, beside the names of their customers."""

from millrace import count, last, lookup, min_, read_model, stream_id, sum_
from millrace.examples.shop.read_models.customers import Customers


@read_model(view="orders", deciders=["order"], key=["order_id"], indexes=["customer_id", ("status", "placed_at")])
class Orders:
    """One row per order: whose it is, where it stands and what it is worth."""

    order_id = stream_id()
    customer_id = last("data.customer_id", events=["order_placed"])
    customer = lookup(Customers, on="customer_id", column="name")
    status = last("event")
    lines = count(events=["order_line_added"])
    total = sum_("data.amount", type="decimal(18,2)", events=["order_line_added"])
    placed_at = min_("created_at")
