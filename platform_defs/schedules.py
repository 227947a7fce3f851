"""What runs by the clock.

Belongs here: times. Not here: jobs.
"""

import dagster as dg

from platform_defs.jobs import APPLY_SCHEMA
from platform_defs.prune import prune_runs

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
