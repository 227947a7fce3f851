"""The jobs that a person or a schedule starts by name.

Belongs here: selections of assets. Not here: what assets do.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from millrace.assets import archive, consumption
from millrace.assets.captures import asset as change_capture

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

APPLY_SCHEMA = dg.define_asset_job(
    "apply_schema",
    selection=dg.AssetSelection.groups("event_store") | dg.AssetSelection.all_asset_checks(),
    description="Applies sql/ to the event store, reports what its tables hold, and runs every check.",
)
DRAIN = dg.define_asset_job(
    "drain",
    selection=dg.AssetSelection.assets(consumption.KEY),
    # a run whose process and code server both died would stay STARTED for ever
    tags={"dagster/max_runtime": 1800},
    description="Consumes the new events of one view.",
)

CAPTURE = dg.define_asset_job(
    "capture",
    selection=dg.AssetSelection.assets(change_capture.WAL_EVENTS, change_capture.CHANGE_EVENTS),
    tags={"dagster/max_runtime": 1800},
    description="Captures the changes of one source database.",
)

ARCHIVE = dg.define_asset_job(
    "archive",
    selection=dg.AssetSelection.assets(archive.KEY),
    description="Extends the archive of one log partition; a backfill extends all.",
)

REPORTS = dg.define_asset_job(
    "reports",
    selection=dg.AssetSelection.groups("reports"),
    description="Builds the reports of one day; a backfill builds those of many.",
)


def rebuild_job(models: Sequence[str]) -> "UnresolvedAssetJobDefinition":
    """The job that rebuilds log partitions of every read model."""
    return dg.define_asset_job(
        "rebuild",
        selection=dg.AssetSelection.assets(*(dg.AssetKey(["read_models", model]) for model in models)),
        description="Rebuilds log partitions of every read model from their events; as a backfill, better in a single run, all.",
    )
