"""The jobs that a person or a schedule starts by name."""

import dagster as dg

from millrace.assets import Group, archive, as_of
from millrace.assets.captures import asset as change_capture
from millrace.assets.declarations import Declarations
from millrace.assets.partitions import VIEW_EVENTS
from millrace.event_store.key_rotation import rotate
from millrace.patience import REST_S
from millrace.platform_defs import names
from millrace.read_models.stored.versions import approve_version
from millrace.resources.postgres import PostgresResource
from millrace.settings import Settings

APPLY_SCHEMA = dg.define_asset_job(
    names.ALL_CHECKS,
    selection=dg.AssetSelection.groups(Group.EVENT_STORE) | dg.AssetSelection.all_asset_checks(),
    description="Applies sql/ to the event store, reports what its tables hold, and runs every check.",
)
DRAIN = dg.define_asset_job(
    names.DRAIN,
    selection=dg.AssetSelection.assets(VIEW_EVENTS),
    # A run whose process and code server both died would stay STARTED for ever. Other runs end by themselves: a build
    # that does not is cancelled after ten minutes, together and for two log partitions; a search for the streams that
    # fail, after half an hour.
    tags={"dagster/max_runtime": 3600},
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

AS_OF = dg.define_asset_job(
    "as_of",
    selection=dg.AssetSelection.assets(as_of.KEY),
    description="Builds a read model as it was at a time, in a table of its own.",
)

REBUILD = dg.define_asset_job(
    "rebuild",
    # it yields no result that its checks could judge
    selection=dg.AssetSelection.groups(Group.READ_MODELS).without_checks(),
    description="Rebuilds log partitions of every read model from their events: side by side, all in one run.",
)


@dg.op(name="wrap_keys_anew", description="Wraps people's keys anew; holders get five minutes to have the new file.")
def _rotated(context: dg.OpExecutionContext, postgres: PostgresResource) -> None:
    epoch = rotate(postgres.current_dsn(), Settings().keys_folder, wait_s=REST_S)
    context.log.info("the keys are at epoch %s", epoch)


@dg.job(name="rotate_keys", description="Rotates the keys of people, so that no copy opens what was forgotten.")
def rotate_keys() -> None:
    """Rotate the keys of people."""
    _rotated()


class ApproveConfig(dg.Config):
    """Which read model may serve as declared, and the reason for the audit log."""

    model: str
    reason: str | None = None


def approve_job(found: Declarations) -> dg.JobDefinition:
    """Make the job that approves a changed read model, so that it serves."""

    @dg.op(
        name="approve_version",
        description="Approves the version of the declaration that the code location has, and no other one.",
    )
    def approved(context: dg.OpExecutionContext, config: ApproveConfig, postgres: PostgresResource) -> None:
        with postgres.store() as store:
            serves = approve_version(store.connection, found.model(config.model), config.reason)
        context.log.info("it serves" if serves else "it serves when it has caught up and no consumer holds the view")

    @dg.job(name="approve", description="Lets a changed read model serve that waits for approval.")
    def job() -> None:
        approved()

    return job
