"""The schedules: jobs that run by the clock."""

from collections.abc import Sequence
from datetime import timedelta

import dagster as dg

from millrace.assets.declarations import Declarations
from millrace.assets.partitions import log_partition_key
from millrace.platform_defs.dagster_internals.prune import prune_runs
from millrace.platform_defs.jobs import APPLY_SCHEMA, ARCHIVE
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


def all_schedules(declared: Declarations, settings: Settings) -> list[dg.ScheduleDefinition]:
    """Make every schedule of the platform, beside the declared ones."""
    ours = [REPORT_EVENT_STORE, PRUNE_RUNS, archive_schedule(settings), *report_schedules(declared.reports)]
    return [*ours, *declared.schedules]


def report_schedules(reports: Sequence[dg.AssetsDefinition]) -> list[dg.ScheduleDefinition]:
    """Make the nightly schedule of the daily reports, each with its job.

    There is one, `report_days` with the job `reports`, unless some reports begin on different days: Dagster runs
    together only assets with the same partitions. A report without days is built when an operator starts it.
    """
    by_days: dict[dg.DailyPartitionsDefinition, list[dg.AssetsDefinition]] = {}
    for report in reports:
        if isinstance(report.partitions_def, dg.DailyPartitionsDefinition):
            by_days.setdefault(report.partitions_def, []).append(report)
    ordered = sorted(by_days.items(), key=lambda each: each[0].start)
    return [
        _report_schedule(days, together, f"_from_{days.start:%Y_%m_%d}" if number else "")
        for number, (days, together) in enumerate(ordered)
    ]


def _report_schedule(
    days: dg.DailyPartitionsDefinition, reports: Sequence[dg.AssetsDefinition], suffix: str
) -> dg.ScheduleDefinition:
    job = dg.define_asset_job(
        f"reports{suffix}",
        selection=dg.AssetSelection.assets(*reports),
        description="Builds the reports of one day; a backfill builds those of many.",
    )

    @dg.schedule(
        name=f"report_days{suffix}",
        job=job,
        # by then a transaction that was open over midnight has ended
        cron_schedule="15 2 * * *",
        execution_timezone=days.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Every night at 02:15 {days.timezone}: the reports of the day before.",
    )
    def report_days(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        before = context.scheduled_execution_time - timedelta(days=1)
        if before < days.start:
            return dg.SkipReason(f"The first day, {days.start:%Y-%m-%d}, is not over.")
        day = days.get_partition_key_for_timestamp(before.timestamp())
        # a preview hides Dagster's own tags
        return dg.RunRequest(run_key=day, partition_key=day, tags={"millrace/day": day})

    return report_days


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
