"""The schedules: jobs that run by the clock."""

import dagster as dg

from millrace.assets.partitions import log_partition_key
from millrace.event_store.key_rotation import KeyStore
from millrace.operations.privacy import WEEKLY
from millrace.platform_defs.dagster_internals.prune import prune_runs
from millrace.platform_defs.jobs import APPLY_SCHEMA, ARCHIVE, rotate_keys
from millrace.resources.postgres import PostgresResource
from millrace.settings import Settings

REPORT_EVENT_STORE = dg.ScheduleDefinition(
    name="report_event_store",
    job=APPLY_SCHEMA,
    cron_schedule="0 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every hour: the schema is current, the sizes of the store's tables are plotted, the checks are run.",
)

PRUNE_RUNS = dg.ScheduleDefinition(
    name="prune_runs_daily",
    job=prune_runs,
    cron_schedule="30 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night: Dagster forgets runs that are older than a week.",
)


@dg.schedule(
    name="rotate_keys_weekly",
    job=rotate_keys,
    cron_schedule=WEEKLY,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every Monday: if keys of people were forgotten, a rotation lets no copy open what they sealed.",
)
def rotate_keys_weekly(postgres: PostgresResource) -> dg.RunRequest | dg.SkipReason:
    """Request a rotation where keys were forgotten since the last one, or it is half done."""
    if Settings().keys is None:
        return dg.SkipReason("MILLRACE_KEYS is not set: it names the folder of the keys of people.")
    with postgres.connect() as connection:
        going = [each for each in KeyStore(connection).key_counts() if not each.destroyed_at]
    if len(going) < 2 and not any(each.forgotten for each in going):
        return dg.SkipReason("No key of a person was forgotten since the last rotation.")
    return dg.RunRequest()


def archive_schedule(settings: Settings) -> dg.ScheduleDefinition:
    """Make the schedule that requests one run over all log partitions every hour, if one has events to archive.

    It is off unless `archive_dir` is set.
    """

    @dg.schedule(
        name="archive_hourly",
        job=ARCHIVE,
        cron_schedule="20 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING
        if settings.archive_dir is not None
        else dg.DefaultScheduleStatus.STOPPED,
        description="Every hour: the archive is extended by what is new in each log partition."
        " On where MILLRACE_ARCHIVE_DIR is set.",
    )
    def archive_hourly(
        context: dg.ScheduleEvaluationContext, postgres: PostgresResource
    ) -> dg.RunRequest | dg.SkipReason:
        with postgres.store() as store:
            behind = [i.partition for i in store.partition_info() if i.archived_position < i.high_water_mark]
        if not behind:
            return dg.SkipReason("Everything that has a position is archived.")
        return dg.RunRequest(
            run_key=context.scheduled_execution_time.isoformat(),
            # the range may include log partitions that are not behind: the run writes nothing for them
            tags={
                "dagster/asset_partition_range_start": log_partition_key(behind[0]),
                "dagster/asset_partition_range_end": log_partition_key(behind[-1]),
            },
        )

    return archive_hourly
