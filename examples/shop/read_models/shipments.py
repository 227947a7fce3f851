"""The shipments of the example shop."""

from millrace import any_, first, last, max_, min_, read_model, stream_id


@read_model(view="shipments", deciders=["shipment"], key=["shipment_id"])
class Shipments:
    """One row per shipment: whose it is, where it stands, when it was last heard of."""

    shipment_id = stream_id()
    order_id = first("data.order_id")
    carrier = first("data.carrier")
    status = last("event")
    delivered = any_("final")
    prepared_at = min_("created_at")
    changed_at = max_("created_at")
