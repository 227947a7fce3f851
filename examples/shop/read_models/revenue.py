"""The daily revenue of the example shop, in the time zone of its city."""

from millrace import bucket, count, read_model, sum_


@read_model(view="revenue", deciders=["payment"], events=["payment_received"], key=["day"])
class Revenue:
    """One row per day in Amsterdam: the payments that were received."""

    day = bucket("created_at", every="1 day", zone="Europe/Amsterdam")
    payments = count()
    amount = sum_("data.amount", type="decimal(18,2)")
