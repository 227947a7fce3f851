"""The orders of the example shop."""

from millrace import count, last, min_, read_model, stream_id, sum_


@read_model(view="orders", deciders=["order"], key=["order_id"])
class Orders:
    """One row per order: where it stands and what it is worth."""

    order_id = stream_id()
    customer_id = last("data.customer_id", events=["order_placed"])
    status = last("event")
    lines = count(events=["order_line_added"])
    total = sum_("data.amount", type="decimal(18,2)", events=["order_line_added"])
    placed_at = min_("created_at")
