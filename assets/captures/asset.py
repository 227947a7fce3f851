"""Change capture: the assets `change_capture/wal_events` and `…/change_events`, one partition per capture."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from threading import Event

import dagster as dg

from millrace.assets import OWNERS, Group
from millrace.assets.runs import Progress, one_try, release_dead
from millrace.capture.declaration import Capture
from millrace.capture.drain import CaptureDrain, CaptureReport
from millrace.capture.follow import follow
from millrace.capture.health import CaptureHealth, capture_health
from millrace.capture.store import CaptureStore, find_capture
from millrace.errors import CaptureInUse
from millrace.event_store.migrations import migrate
from millrace.resources.postgres import PostgresResource

WAL_EVENTS = dg.AssetKey(["change_capture", "wal_events"])
CHANGE_EVENTS = dg.AssetKey(["change_capture", "change_events"])


class CaptureConfig(dg.Config):
    """The time budget of a capture's run, in seconds."""

    budget_s: float = 600
    idle_s: float = 30


def change_capture_assets(captures: Mapping[str, Capture], log_partitions: int) -> dg.AssetsDefinition:
    """Make the two steps of every declared capture; they run together: the second takes changes that the first stored.

    `log_partitions` is the number of log partitions of a new event store.
    """

    @dg.multi_asset(
        name="change_capture",
        partitions_def=dg.StaticPartitionsDefinition(sorted(captures)),
        specs=[
            dg.AssetSpec(
                WAL_EVENTS,
                deps=[spec.key for spec in source_table_specs(captures)],
                description="The changes of captured tables in the order of their commits, as a replication slot gives"
                " them.",
                group_name=Group.CHANGE_CAPTURE,
                kinds={"postgres", "table"},
                owners=OWNERS,
            ),
            dg.AssetSpec(
                CHANGE_EVENTS,
                deps=[WAL_EVENTS],
                description="The same as events of the store: one stream per row of a captured table.",
                group_name=Group.CHANGE_CAPTURE,
                kinds={"postgres", "view"},
                owners=OWNERS,
            ),
        ],
    )
    def change_capture(
        context: dg.AssetExecutionContext, config: CaptureConfig, postgres: PostgresResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        capture, dsn = captures[context.partition_key], postgres.current_dsn()
        # migrate a store of an older version; a current one is only read
        migrate(dsn, log_partitions=log_partitions)
        owner = lease_owner(postgres, capture.name)
        release_dead(context.instance, owner, partial(release_owner, postgres, capture.name))

        def show(sofar: CaptureReport) -> None:
            for key, metadata in capture_metadata(sofar, capture_health(dsn, capture)).items():
                context.log_event(dg.AssetMaterialization(key, partition=capture.name, metadata=metadata))

        with one_try(postgres, capture.name, context.run.run_id):
            try:
                if capture.follows:
                    # until the run is terminated
                    follow(dsn, capture, Event(), owner=context.run.run_id, on_step=Progress(show).step)
                with CaptureDrain(dsn, capture, context.run.run_id) as capturing:
                    for table, why in capturing.stopped.items():
                        context.log.warning(f"Table {table} is stopped, the others are captured: {why}")
                    report = capturing.drain(
                        budget_s=config.budget_s, idle_s=config.idle_s, on_step=Progress(show).step
                    )
            except dg.DagsterExecutionInterruptedError:
                # a connection that was interrupted in a statement cannot release the lease
                release_owner(postgres, capture.name, context.run.run_id)
                raise
        for key, metadata in capture_metadata(report, capture_health(dsn, capture)).items():
            yield dg.MaterializeResult(asset_key=key, metadata=metadata)

    return change_capture


def source_table_specs(captures: Mapping[str, Capture]) -> list[dg.AssetSpec]:
    """Make an asset of each captured table, where the lineage begins; other programs write it."""
    tables = [
        _source_spec(
            [capture.name, table.schema, table.table],
            f"The table {table.name} in the source of capture {capture.name}; nothing here writes it.",
        )
        for capture in captures.values()
        for table in capture.tables
    ]
    # only the source knows these tables
    fitting = [
        _source_spec(
            [capture.name, "by_pattern"],
            f"The tables in the source of capture {capture.name} that fit {', '.join(capture.patterns)}.",
        )
        for capture in captures.values()
        if capture.patterns
    ]
    return tables + fitting


def _source_spec(key: list[str], description: str) -> dg.AssetSpec:
    return dg.AssetSpec(
        key, description=description, group_name=Group.SOURCES, kinds={"postgres", "table"}, owners=OWNERS
    )


def lease_owner(postgres: PostgresResource, capture: str) -> list[str]:
    """Return the owner of a capture's lease; empty if the lease is free."""
    with postgres.store() as store:
        info = find_capture(CaptureStore(store.connection), capture)
    return [info.lease_owner] if info is not None and info.lease_owner is not None else []


def release_owner(postgres: PostgresResource, capture: str, owner: str) -> None:
    """Release a capture's lease in the name of its owner; a lease that has another owner by now stays.

    The store refuses all later calls of the old owner.
    """
    with postgres.store() as store, suppress(CaptureInUse):
        captures = CaptureStore(store.connection)
        captures.release_capture(capture, captures.claim_capture(capture, owner).lease_token)


def capture_metadata(report: CaptureReport, health: CaptureHealth) -> dict[dg.AssetKey, dict[str, float]]:
    """Return the numbers of a capture's work and of its slot, as metadata that Dagster plots."""
    return {
        WAL_EVENTS: {
            "changes": report.stored,
            "changes_per_s": round(report.stored / report.busy_s, 1) if report.busy_s else 0.0,
            "slot_lag_bytes": health.lag_bytes,
            "slot_lag_seconds": round(health.lag_s, 3),
            "retained_wal_bytes": health.retained_bytes,
            "slot_xid_age": (health.slot and health.slot.xid_age) or 0,
            "stopped_tables": len(health.stopped),
        },
        CHANGE_EVENTS: {
            "events": report.emitted + report.backfilled,
            "backfilled": report.backfilled,
            "unchanged": report.unchanged,
            "quarantined": health.quarantined,
            "lag_seconds": round(health.lag_s, 3),
        },
    }
