"""Forgetting old runs: Dagster itself keeps every run and its events for ever.

Belongs here: which runs are forgotten. Not here: the event store, which forgets nothing.
"""

from datetime import UTC, datetime, timedelta

import dagster as dg

from millrace.platform_defs.sensors import UNFINISHED

FINISHED = tuple(status for status in dg.DagsterRunStatus if status not in UNFINISHED)
CHUNK = 100


class PruneConfig(dg.Config):
    """How long runs are kept, in days."""

    keep_days: float = 7


@dg.op(description="Deletes finished runs that are older than keep_days, with their logs and events.")
def prune_old_runs(context: dg.OpExecutionContext, config: PruneConfig) -> int:
    """Delete old finished runs, oldest first; killed anywhere, the next one goes on."""
    before = datetime.now(UTC) - timedelta(days=config.keep_days)
    old = dg.RunsFilter(statuses=list(FINISHED), created_before=before)
    deleted = 0
    while records := context.instance.get_run_records(old, limit=CHUNK, ascending=True):
        for record in records:
            context.instance.delete_run(record.dagster_run.run_id)
        deleted += len(records)
    context.log.info("deleted %d runs that were created before %s", deleted, before.isoformat())
    return deleted


@dg.job(name="prune_runs", description="Deletes old finished runs of Dagster.")
def prune_runs() -> None:
    """Run the op."""
    prune_old_runs()
