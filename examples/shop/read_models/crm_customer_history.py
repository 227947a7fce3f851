"""The history of each customer in the customer database: every captured change."""

from millrace import field, last, read_model, stream_id


@read_model(view="crm_customer_history", deciders=["table:public.customers"], key=["record_key", "seq"])
class CrmCustomerHistory:
    """One row per change of a customer: what was done when, and how the row was then."""

    record_key = stream_id()
    seq = field("offset")
    action = last("event")
    committed_at = last("data.committed_at", type="timestamp")
    customer_id = last("data.record.customer_id", type="bigint")
    name = last("data.record.name")
    email = last("data.record.email")
    city = last("data.record.city")
    newsletter = last("data.record.newsletter", type="boolean")
