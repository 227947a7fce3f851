"""Everything that Dagster loads, assembled; nothing here talks to a database."""

from collections.abc import Mapping

import dagster as dg

from millrace.assets.archive import archive_asset
from millrace.assets.as_of import as_of_asset
from millrace.assets.captures.asset import CHANGE_EVENTS, change_capture_assets
from millrace.assets.declarations import Declarations
from millrace.assets.drains import view_events_asset
from millrace.assets.event_store import event_store_assets
from millrace.assets.labels import labelled
from millrace.assets.partitions import log_partitions
from millrace.assets.privacy import subjects
from millrace.assets.read_models.asset import read_model_asset
from millrace.assets.rounds import shared_drain_job
from millrace.assets.runs import while_it_runs
from millrace.assets.shown_only import specs_shown_only
from millrace.drain.limits import Limits
from millrace.platform_defs.capture_sensors import capture_sensor
from millrace.platform_defs.checks import all_checks
from millrace.platform_defs.dagster_internals.prune import prune_runs
from millrace.platform_defs.dagster_internals.run_storage import InstanceFolder
from millrace.platform_defs.jobs import APPLY_SCHEMA, ARCHIVE, AS_OF, CAPTURE, DRAIN, REBUILD, approve_job, rotate_keys
from millrace.platform_defs.schedules import PRUNE_RUNS, REPORT_EVENT_STORE, archive_schedule, rotate_keys_weekly
from millrace.platform_defs.sensors import view_sensors
from millrace.resources.postgres import PostgresResource
from millrace.resources.spark import SparkResource
from millrace.settings import Settings


def assembled(found: Declarations, settings: Settings, resources: Mapping[str, object] | None) -> dg.Definitions:
    """Assemble the declarations; tests pass their own declarations, settings and resources."""
    partitions, archive = log_partitions(settings.log_partitions), settings.archive_folder
    limits = Limits.of(settings)
    models, captures, checks = found.models.values(), found.captures, all_checks(found, archive)
    assets = [
        event_store_assets(settings.log_partitions, [CHANGE_EVENTS] if captures else [], found.events),
        subjects,
        view_events_asset(found, settings),
        *(
            read_model_asset(model, partitions, archive, limits, captures.values(), found.events, checks)
            for model in models
        ),
        archive_asset(partitions, archive),
        *([as_of_asset(found, archive)] if models else []),
        *([change_capture_assets(captures, settings.log_partitions)] if captures else []),
    ]
    # mypy takes a field of the base class for an argument
    servers = {"postgres": PostgresResource(), "spark": SparkResource()}  # type: ignore[call-arg]
    everything = {**servers, "archive_folder": archive, "io_manager": InstanceFolder(), **(resources or {})}
    together = shared_drain_job(found, archive, limits, everything)
    jobs = ((CAPTURE, captures), *((job, models) for job in (REBUILD, AS_OF, together, approve_job(found))))
    needed = [job for job, declared_ones in jobs if declared_ones]
    return dg.Definitions(
        assets=labelled(found, [*assets, *specs_shown_only(found, assets)], settings.code_url),
        asset_checks=checks,
        jobs=[APPLY_SCHEMA, ARCHIVE, DRAIN, prune_runs, rotate_keys, *needed],
        schedules=[REPORT_EVENT_STORE, PRUNE_RUNS, rotate_keys_weekly, archive_schedule(settings)],
        sensors=[*view_sensors(found, together), *map(capture_sensor, captures.values())],
        resources=everything,
        # a process per step would double the cost of a run
        executor=while_it_runs,
        # the UI shows it with the code location
        metadata={"declarations": found.package or "none", "files that fail": [str(fault) for fault in found.faults]},
    )
