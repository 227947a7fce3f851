"""The customers as they are now in the customer database: a captured table, collapsed."""

from millrace import fold
from millrace.rows import FoldEvent, State


@fold(
    view="crm_customers",
    key="record_key",
    deciders=["table:public.customers"],
    columns={
        "customer_id": "bigint",
        "name": "string",
        "email": "string",
        "city": "string",
        "newsletter": "boolean",
        "updated_at": "timestamp",
    },
)
def crm_customers(state: State | None, event: FoldEvent) -> State | None:
    """One row per customer that is in the captured table: its columns as the last change left them."""
    if event.event in ("deleted", "truncated", "schema_changed"):
        return None
    # keep the old value of each column that an update lacks
    known = {column: (state or {}).get(column) for column in event.data.get("unavailable", ())}
    return {**known, **event.data["record"]}
