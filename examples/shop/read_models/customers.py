"""The customers of the example shop: a key that crosses streams, orders and payments."""

from millrace import avg, count, field, max_, read_model, sum_


@read_model(view="customers", deciders=["order", "payment"], key=["customer_id"])
class Customers:
    """One row per customer: what was ordered, what was paid, over all orders and payments."""

    customer_id = field("data.customer_id")
    orders = count(events=["order_placed"])
    paid = sum_("data.amount", type="decimal(18,2)", events=["payment_received"])
    mean_payment = avg("data.amount", type="decimal(18,2)", events=["payment_received"])
    failed_payments = count(events=["payment_failed"])
    last_seen_at = max_("created_at")
