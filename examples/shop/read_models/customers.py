"""The customers of the example shop: a key that crosses streams, their own, orders and payments."""

from millrace import avg, count, field, last, max_, read_model, sum_


@read_model(view="customers", deciders=["customer", "order", "payment"], key=["customer_id"])
class Customers:
    """One row per customer: the name, and what was ordered and paid, over all orders and payments."""

    customer_id = field({"customer": "decider_id", "order": "data.customer_id", "payment": "data.customer_id"})
    name = last("data.name", events=["customer_registered"])
    email = last("data.email", events=["email_given"])
    orders = count(events=["order_placed"])
    paid = sum_("data.amount", type="decimal(18,2)", events=["payment_received"])
    mean_payment = avg("data.amount", type="decimal(18,2)", events=["payment_received"])
    failed_payments = count(events=["payment_failed"])
    last_seen_at = max_("created_at")
