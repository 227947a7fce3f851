"""Names of jobs, tags and checks for processes that do without Spark, which `jobs`, `sensors` and `checks` import."""

ALL_CHECKS, DRAIN = "apply_schema", "drain"
VIEW_TAG, PARTITION_TAG = "millrace/view", "dagster/partition"
SLOTS = "slots_are_healthy"
# checks that show the findings of one kind of `standing.sql`
OF_STORE = {
    "log_is_not_held_up": "log_held", "messages_are_settled": "overdue", "leases_are_in_time": "expired_lease",
    "no_dead_letters": "dead_letters", "no_quarantined_changes": "quarantine",
    "nothing_is_overdue": "not_fired",
}  # fmt: skip
