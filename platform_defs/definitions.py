"""Everything that Dagster loads, assembled. Nothing here talks to a database.

Belongs here: putting together. Not here: any logic.
"""

from collections.abc import Mapping

import dagster as dg

from millrace.assets import captures as captures_
from millrace.assets.archive import archive_asset
from millrace.assets.captures.asset import CHANGE_EVENTS, change_capture_assets, source_table_specs
from millrace.assets.consumption import view_events_asset
from millrace.assets.event_store import event_store_assets
from millrace.assets.partitions import log_partitions
from millrace.assets.read_models import declared
from millrace.assets.read_models.asset import read_model_asset
from millrace.examples.shop.reports.daily_orders import daily_orders
from millrace.platform_defs.checks import all_checks
from millrace.platform_defs.jobs import APPLY_SCHEMA, ARCHIVE, CAPTURE, DRAIN, REPORTS, rebuild_job
from millrace.platform_defs.prune import prune_runs
from millrace.platform_defs.schedules import PRUNE_RUNS, REPORT_DAYS, REPORT_EVENT_STORE, archive_schedule
from millrace.platform_defs.sensors import capture_sensor, poll_sensor, undeclared_sensor
from millrace.resources.capture.declaration import Capture
from millrace.resources.postgres.resource import PostgresResource
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.settings import Settings
from millrace.resources.spark.resource import SparkResource


def build_defs(
    *,
    models: Mapping[str, ReadModel] | None = None,
    captures: Mapping[str, Capture] | None = None,
    settings: Settings | None = None,
    resources: Mapping[str, object] | None = None,
) -> dg.Definitions:
    """Assemble the definitions; tests pass their own models, captures, settings and resources."""
    models = declared() if models is None else models
    captures = captures_.declared() if captures is None else captures
    captures_.require_own_names(captures, [model.view for model in models.values()])
    settings = settings or Settings()
    partitions = log_partitions(settings.log_partitions)
    return dg.Definitions(
        assets=[
            event_store_assets(settings.log_partitions, [CHANGE_EVENTS] if captures else []),
            view_events_asset({model.view: model for model in models.values()}),
            *(read_model_asset(model, partitions) for model in models.values()),
            archive_asset(partitions, settings.archive_folder),
            daily_orders,
            *source_table_specs(captures),
            *([change_capture_assets(captures)] if captures else []),
        ],
        asset_checks=all_checks(list(models.values()), captures),
        jobs=[
            *(APPLY_SCHEMA, ARCHIVE, DRAIN, REPORTS, prune_runs),
            *([CAPTURE] if captures else []),
            *([rebuild_job(list(models))] if models else []),
        ],
        schedules=[REPORT_EVENT_STORE, REPORT_DAYS, PRUNE_RUNS, archive_schedule(settings)],
        sensors=[
            *(poll_sensor(model, DRAIN) for model in models.values()),
            undeclared_sensor(list(models.values()), DRAIN),
            *(capture_sensor(capture, CAPTURE) for capture in captures.values()),
        ],
        resources={"postgres": PostgresResource(), "spark": SparkResource(), **(resources or {})},
        # a process per step would double what a run costs
        executor=dg.in_process_executor,
    )


defs = build_defs()
