"""Everything that Dagster loads, assembled. Nothing here talks to a database.

Belongs here: putting together. Not here: any logic.
"""

from collections.abc import Mapping

import dagster as dg

from assets import captures as captures_
from assets.archive import archive_asset
from assets.change_capture import CHANGE_EVENTS, change_capture_assets, source_table_specs
from assets.consumption import view_events_asset
from assets.event_store import event_store_assets
from assets.read_model_assets import read_model_asset
from assets.read_models import declared
from assets.reports import daily_orders
from platform_defs.checks import all_checks
from platform_defs.jobs import APPLY_SCHEMA, ARCHIVE, CAPTURE, DRAIN, REPORTS, rebuild_job
from platform_defs.partitions import log_partitions
from platform_defs.prune import prune_runs
from platform_defs.schedules import PRUNE_RUNS, REPORT_DAYS, REPORT_EVENT_STORE, archive_schedule
from platform_defs.sensors import capture_sensor, poll_sensor, undeclared_sensor
from resources.capture_declaration import Capture
from resources.postgres import PostgresResource
from resources.read_model import ReadModel
from resources.settings import Settings
from resources.spark import SparkResource


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
