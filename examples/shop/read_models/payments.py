"""The payments of the example shop, beside the orders that they are for."""

from millrace import computed, count, first, last, lookup, max_, min_, read_model, stream_id
from millrace.examples.shop.read_models.orders import Orders


@read_model(view="payments", deciders=["payment"], key=["payment_id"])
class Payments:
    """One row per payment: for which order, how long it took, and where the order stands now."""

    payment_id = stream_id()
    order_id = first("data.order_id")
    method = last("data.method")
    attempts = count(events=["payment_requested"])
    requested_at = min_("created_at")
    received_at = max_("created_at", events=["payment_received"])
    took = computed("received_at - requested_at")
    order_status = lookup(Orders, on="order_id", column="status")
