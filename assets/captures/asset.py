"""Change capture: the assets `change_capture/wal_events` and `change_capture/change_events`, one partition per capture.

Belongs here: running a capture and showing what it did in Dagster. Not here: the steps (`millrace.resources.capture.drain`), what is captured
(`assets.captures`).
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import dagster as dg

from millrace.assets.event_store import OWNERS
from millrace.resources.capture.declaration import Capture
from millrace.resources.capture.drain import CaptureDrain, CaptureReport
from millrace.resources.capture.health import CaptureHealth, capture_health, find_capture
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import CaptureInUse
from millrace.resources.event_store.migrations import migrate
from millrace.resources.postgres.resource import PostgresResource
from millrace.resources.settings import Settings

WAL_EVENTS = dg.AssetKey(["change_capture", "wal_events"])
CHANGE_EVENTS = dg.AssetKey(["change_capture", "change_events"])
# Dagster keeps every event for ever
REPORT_EVERY_S = 300.0


class CaptureConfig(dg.Config):
    """How long a run captures, in seconds."""

    budget_s: float = 600
    idle_s: float = 30


def change_capture_assets(captures: Mapping[str, Capture]) -> dg.AssetsDefinition:
    """The two steps of every declared capture; they run together, for the second one takes what the first one stored."""

    @dg.multi_asset(
        name="change_capture",
        partitions_def=dg.StaticPartitionsDefinition(sorted(captures)),
        specs=[
            dg.AssetSpec(
                WAL_EVENTS,
                deps=[spec.key for spec in source_table_specs(captures)],
                description="The changes of captured tables in the order of their commits, as a replication slot gives them.",
                group_name="change_capture",
                kinds={"postgres", "table"},
                owners=OWNERS,
            ),
            dg.AssetSpec(
                CHANGE_EVENTS,
                deps=[WAL_EVENTS],
                description="The same as events of the store: one stream per row of a captured table.",
                group_name="change_capture",
                kinds={"postgres", "view"},
                owners=OWNERS,
            ),
        ],
    )
    def change_capture(
        context: dg.AssetExecutionContext, config: CaptureConfig, postgres: PostgresResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        capture, dsn = captures[context.partition_key], postgres.current_dsn()
        # a store that an older version made keeps working; one that is up to date is only read
        migrate(dsn, log_partitions=Settings().log_partitions)
        release_dead_owner(context.instance, postgres, capture.name)
        progress = Progress(context, capture, dsn)
        try:
            with CaptureDrain(dsn, capture, context.run.run_id) as capturing:
                report = capturing.drain(budget_s=config.budget_s, idle_s=config.idle_s, on_step=progress.add)
        except dg.DagsterExecutionInterruptedError:
            # a connection that was interrupted in a statement gives nothing back
            release_owner(postgres, capture.name, context.run.run_id)
            raise
        for key, metadata in capture_metadata(report, capture_health(dsn, capture)).items():
            yield dg.MaterializeResult(asset_key=key, metadata=metadata)

    return change_capture


def source_table_specs(captures: Mapping[str, Capture]) -> list[dg.AssetSpec]:
    """The captured tables, which others write: where the lineage begins."""
    return [
        dg.AssetSpec(
            [capture.name, table.schema, table.table],
            description=f"The table {table.name} in the source of capture {capture.name}; nothing here writes it.",
            group_name="sources",
            kinds={"postgres", "table"},
            owners=OWNERS,
        )
        for capture in captures.values()
        for table in capture.tables
    ]


def release_dead_owner(instance: dg.DagsterInstance, postgres: PostgresResource, capture: str) -> None:
    """Give back the lease of a run that Dagster knows to be over: a run that was killed could not."""
    with postgres.store() as store:
        info = find_capture(CaptureStore(store.connection), capture)
    if info is not None and info.lease_owner is not None and is_over(instance, info.lease_owner):
        release_owner(postgres, capture, info.lease_owner)


def is_over(instance: dg.DagsterInstance, owner: str) -> bool:
    """Whether the owner of a lease is a run that has ended."""
    run = instance.get_run_by_id(owner)
    return run is not None and run.is_finished


def release_owner(postgres: PostgresResource, capture: str, owner: str) -> None:
    """Give back a capture's lease in the name of its owner, unless somebody else has it by now; fences what the owner still does."""
    with postgres.store() as store, suppress(CaptureInUse):
        captures = CaptureStore(store.connection)
        captures.release_capture(capture, captures.claim_capture(capture, owner).lease_token)


class Progress:
    """Shows a running capture in Dagster: after its first changes, then every five minutes."""

    def __init__(self, context: dg.AssetExecutionContext, capture: Capture, dsn: str) -> None:
        self._context = context
        self._capture = capture
        self._dsn = dsn
        self._reported_at = float("-inf")

    def add(self, sofar: CaptureReport) -> None:
        """Take note of a step that did something, and report if it is time."""
        if time.monotonic() - self._reported_at < REPORT_EVERY_S:
            return
        self._reported_at = time.monotonic()
        for key, metadata in capture_metadata(sofar, capture_health(self._dsn, self._capture)).items():
            self._context.log_event(dg.AssetMaterialization(key, partition=self._capture.name, metadata=metadata))


def capture_metadata(report: CaptureReport, health: CaptureHealth) -> dict[dg.AssetKey, dict[str, float]]:
    """What a capture did and how its slot is, under names that plot."""
    return {
        WAL_EVENTS: {
            "changes": report.stored,
            "changes_per_s": round(report.stored / report.busy_s, 1) if report.busy_s else 0.0,
            "slot_lag_bytes": health.lag_bytes,
            "slot_lag_seconds": round(health.lag_s, 3),
            "retained_wal_bytes": health.retained_bytes,
        },
        CHANGE_EVENTS: {
            "events": report.emitted + report.backfilled,
            "backfilled": report.backfilled,
            "quarantined": health.quarantined,
            "lag_seconds": round(health.lag_s, 3),
        },
    }
