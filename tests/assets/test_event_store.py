"""The event store's own assets, checks and archive in Dagster: real runs on an instance, a real Postgres."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import psycopg
from pydantic import BaseModel

from millrace.archive.listing import archived
from millrace.assets.archive import KEY
from millrace.assets.declarations import Declarations, declared
from millrace.assets.partitions import log_partitions
from millrace.event_schemas import event
from millrace.event_schemas.model import declared_event
from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.loading import build_defs
from millrace.platform_defs.schedules import archive_schedule
from millrace.producers import ProducerStore
from millrace.read_models.stored.versions import ensure_version
from millrace.settings import Settings
from tests.support.building.event_log_reads import fill
from tests.support.elsewhere import postgres_at
from tests.support.factories import append, move_clock, pump

NOW = datetime(2026, 1, 5, 12, 20, tzinfo=UTC)
SHOP = declared("millrace.examples.shop", ["read_models", "captures"])


def test_applying_the_schema_shows_every_table(instance: dg.DagsterInstance, dsn: str, store: PlatformStore) -> None:
    @event(decider="cart")
    class Emptied(BaseModel):
        """A customer emptied the cart."""

    @event(decider="cart")
    class Paid(BaseModel):
        """The customer paid."""

        cents: int

    store.register_event_schema("cart", "emptied", {"type": "array"})
    store.schedule("cart", "c-1", NewEvent("emptied", []), name="idle", after=timedelta(days=1))
    producers = ProducerStore(store.connection)
    for name in ("one", "two"):
        epoch = producers.register_producer(name).epoch
        producers.ingest_events(name, 0, epoch, 0)
    store.connection.execute("set event_store.clock = '2000-01-01'")
    producers.begin_transaction("two", 0, epoch, 1)
    events = tuple(each for each in map(declared_event, (Emptied, Paid)) if each)
    defs = build_defs(declarations=Declarations(events=events), resources={"postgres": postgres_at(dsn)})
    result = defs.resolve_job_def("apply_schema").execute_in_process(instance=instance)
    assert result.success
    shown = {m.asset_key.path[-1]: m.metadata for m in result.asset_materializations_for_node("event_store")}
    schema = shown["event_log"]["dagster/column_schema"].value
    assert isinstance(schema, dg.TableSchema)
    assert [column.name for column in schema.columns] == ["partition", "position", "offset"]
    assert schema.columns[0].description == "The log partition."
    # refused deciders are shown
    refused = shown["deciders"]["refused"].value
    assert isinstance(refused, dict)
    assert list(refused) == ["event emptied version 1 of decider cart"]
    assert "event has another schema" in str(refused)
    found = store.connection.execute("select event from event_store.event_schemas order by 1").fetchall()
    assert found == [("emptied",), ("paid",)]
    # the outcomes of all messages, and an open one that is never ended
    names = ("producers", "received", "committed", "duplicates", "open")
    assert [shown["producers"][name].value for name in names] == [2, 3, 2, 0, 1]
    assert {name: shown["scheduled_events"][name].value for name in ("waiting", "refused")} == {
        "waiting": 1,
        "refused": 0,
    }
    assert "next_due" in shown["scheduled_events"]
    failed = {each.check_name: each for each in result.get_asset_check_evaluations() if not each.passed}
    assert failed["messages_are_settled"].severity == dg.AssetCheckSeverity.WARN
    assert "Partition 0: message 1, begun" in str(failed["messages_are_settled"].metadata["two"].value)


def test_checks_of_a_store_name_what_is_wrong(instance: dg.DagsterInstance, dsn: str, store: PlatformStore) -> None:
    fill(store)
    orders = replace(SHOP.models["orders"], lookups={})
    ensure_version(store.connection, orders)

    def failing() -> set[str]:
        defs = build_defs(
            declarations=replace(SHOP, models={"orders": orders}), resources={"postgres": postgres_at(dsn)}
        )
        result = defs.resolve_job_def("apply_schema").execute_in_process(instance=instance)
        checks = result.get_asset_check_evaluations()
        assert len(checks) == 17
        # these events differ from the shop's declarations
        return {check.check_name for check in checks if not check.passed} - {"names_are_known"}

    assert failing() == set()
    store.connection.execute("set event_store.clock = '2000-01-01'")
    store.claim_batch("orders", "dead")
    store.connection.execute("delete from event_store.event_log where position = 0")
    store.register_view("mails", "-infinity", max_attempts=1)
    pump(store, "mails")
    (event, *_) = store.stream_events("mails")
    store.fail_event("mails", event.decider_id, event.offset, "no such address")
    append(store, "o-new")  # without new events a call locks nothing
    with psycopg.connect(dsn) as forgotten:
        forgotten.execute("select event_store_platform.sequence_events()")
        # else the timeout ends this session in the middle of the checks
        forgotten.execute("set local idle_in_transaction_session_timeout = 0")
        move_clock(store.connection, by_s=40)
        assert failing() == {"offsets_are_dense", "leases_are_in_time", "no_dead_letters", "log_is_not_held_up"}


def archiving(dsn: str, root: Path) -> dg.Definitions:
    settings = Settings(archive_dir=root)
    return build_defs(declarations=Declarations(), settings=settings, resources={"postgres": postgres_at(dsn)})


def test_the_archive_is_extended(instance: dg.DagsterInstance, store: PlatformStore, dsn: str, tmp_path: Path) -> None:
    fill(store)
    result = (
        archiving(dsn, tmp_path).resolve_job_def("archive").execute_in_process(instance=instance, partition_key="p00")
    )
    assert result.success
    (record,) = instance.fetch_materializations(KEY, limit=9).records
    assert record.partition_key == "p00"
    assert record.asset_materialization
    told = {name: entry.value for name, entry in record.asset_materialization.metadata.items()}
    assert (told["dagster/row_count"], told["events"], told["archived_position"], told["not_archived"]) == (5, 5, 5, 0)
    assert told["bytes"] == sum(file.bytes for file in archived(store.connection, 0).files)
    assert (tmp_path / archived(store.connection, 0).files[0].path).exists()


def schedule_tick(dsn: str, defs: dg.Definitions) -> dg.RunRequest | None:
    """Return the run that the schedule requests, if any."""
    context = dg.build_schedule_context(
        resources={"postgres": postgres_at(dsn)}, scheduled_execution_time=NOW, repository_def=defs.get_repository_def()
    )
    tick = archive_schedule(Settings()).evaluate_tick(context)
    assert tick.run_requests or "archived" in str(tick.skip_message)
    return next(iter(tick.run_requests or ()), None)


def ends(request: dg.RunRequest) -> list[str]:
    return [request.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end")]


def test_the_run_shows_what_fails(instance: dg.DagsterInstance, store: PlatformStore, dsn: str, tmp_path: Path) -> None:
    defs = archiving(dsn, tmp_path)
    job = defs.resolve_job_def("archive")
    assert schedule_tick(dsn, defs) is None
    fill(store)
    request = schedule_tick(dsn, defs)
    assert request
    assert ends(request) == ["p00", "p02"]
    store.connection.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'p01 cannot be listed' using errcode = 'MR005'; end $$;"
        "create trigger refuse before insert on event_store.archive_files for each row when (new.partition = 1)"
        " execute function refuse()"
    )
    result = job.execute_in_process(instance=instance, tags=request.tags, raise_on_error=False)
    assert not result.success
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert "p01: p01 cannot be listed" in str(failure.event_specific_data)
    assert [archived(store.connection, partition).end for partition in range(3)] == [5, 0, 1]
    shown = instance.get_status_by_partition(KEY, ["p00", "p01", "p02", "p03"], log_partitions(16))
    assert shown is not None
    assert {key: status and status.value for key, status in shown.items()} == {
        "p00": "MATERIALIZED",
        "p01": "FAILED",
        "p02": "MATERIALIZED",
        "p03": None,
    }

    store.connection.execute("drop trigger refuse on event_store.archive_files")
    request = schedule_tick(dsn, defs)
    assert request
    assert ends(request) == ["p01", "p01"]
    assert job.execute_in_process(instance=instance, tags=request.tags).success
    assert schedule_tick(dsn, defs) is None


def test_the_schedule_runs_only_where_it_is_said_where_the_archive_is(tmp_path: Path) -> None:
    assert archive_schedule(Settings()).default_status == dg.DefaultScheduleStatus.STOPPED
    assert archive_schedule(Settings(archive_dir=tmp_path)).default_status == dg.DefaultScheduleStatus.RUNNING
