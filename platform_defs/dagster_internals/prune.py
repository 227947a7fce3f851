"""Prunes old runs, and old evaluations of checks: Dagster itself keeps both for ever.

When a run is deleted, Dagster forgets its materializations and shows assets without a newer one as missing. So a run is
kept while it has the newest materialization of an asset or of one of its partitions.

An evaluation of a check outlives its run, and some belong to no run. Dagster has no call that deletes them, so they are
deleted from its tables. Their names are written here: dagster is pinned. The newest evaluation of each check stays.
"""

from datetime import UTC, datetime, timedelta

import dagster as dg
from sqlalchemy import text

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
CHUNK = 100
# The newest row by id may be planned but not evaluated: then the newest evaluated row stays, too.
FORGET_EVALUATIONS = text("""
delete from asset_check_executions
where coalesce(evaluation_event_timestamp, create_timestamp) < :before
  and id not in (
    select max(id) from asset_check_executions group by asset_key, check_name, partition
    union all
    select max(id) from asset_check_executions
    where evaluation_event_storage_id is not null group by asset_key, check_name, partition
  )
""")
# the events of runs are deleted with their runs
FORGET_THEIR_EVENTS = text("""
delete from event_logs
where dagster_event_type = 'ASSET_CHECK_EVALUATION' and run_id = '' and timestamp < :before
  and id not in (
    select evaluation_event_storage_id from asset_check_executions where evaluation_event_storage_id is not null
  )
""")


class PruneConfig(dg.Config):
    """How long runs and evaluations of checks are kept, in days."""

    keep_days: float = 7


@dg.op(description="Deletes what is older than keep_days: finished runs with their events, evaluations of checks.")
def prune_old_runs(context: dg.OpExecutionContext, config: PruneConfig) -> int:
    """Delete old finished runs, oldest first, then old evaluations; after a kill at any point the next run resumes."""
    before = datetime.now(UTC) - timedelta(days=config.keep_days)
    old = dg.RunsFilter(statuses=list(FINISHED), created_before=before)
    newest = runs_with_the_newest(context.instance)
    deleted, cursor = 0, None
    while records := context.instance.get_run_records(old, limit=CHUNK, ascending=True, cursor=cursor):
        for record in records:
            if (run := record.dagster_run.run_id) in newest:
                # the next page cannot begin at a deleted run
                cursor = run
            else:
                context.instance.delete_run(run)
                deleted += 1
    context.log.info("deleted %d runs that were created before %s", deleted, before.isoformat())
    context.log.info("deleted %d evaluations of checks", forget_evaluations(context.instance, before))
    return deleted


def forget_evaluations(instance: dg.DagsterInstance, before: datetime) -> int:
    """Delete older evaluations, except the newest one of each check, and return their number."""
    # Dagster writes times in UTC, without a zone
    values = {"before": before.astimezone(UTC).replace(tzinfo=None)}
    with instance.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        deleted = connection.execute(FORGET_EVALUATIONS, values).rowcount
        connection.execute(FORGET_THEIR_EVENTS, values)
    return int(deleted)


def runs_with_the_newest(instance: dg.DagsterInstance) -> set[str]:
    """Return the runs that have the newest materialization of an asset, or of one of its partitions."""
    found = set()
    for key in instance.all_asset_keys():
        if newest := instance.get_latest_materialization_event(key):
            found.add(newest.run_id)
        kind = dg.DagsterEventType.ASSET_MATERIALIZATION
        ids = sorted(instance.get_latest_storage_id_by_partition(key, kind).values())
        for first in range(0, len(ids), CHUNK):
            chunk = dg.AssetRecordsFilter(key, storage_ids=ids[first : first + CHUNK])
            found |= {record.run_id for record in instance.fetch_materializations(chunk, limit=CHUNK).records}
    return found


@dg.job(name="prune_runs", description="Deletes old finished runs of Dagster whose results others replaced.")
def prune_runs() -> None:
    """Run the op."""
    prune_old_runs()
