"""The archive as Dagster runs it: real runs on an instance, a real Postgres."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from millrace.assets.archive import KEY
from millrace.assets.declarations import Declarations
from millrace.assets.partitions import log_partitions
from millrace.platform_defs.definitions import build_defs
from millrace.platform_defs.schedules import archive_schedule
from millrace.resources.archive.listing import archived
from millrace.resources.archive.store import ArchiveStore
from millrace.resources.event_store import EventStore
from millrace.resources.settings import Settings
from tests.support.building.event_log_reads import fill
from tests.support.elsewhere import postgres_at

NOW = datetime(2026, 1, 5, 12, 20, tzinfo=UTC)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def test_materializing_a_log_partition_extends_its_archive_and_says_how_far(
    instance: dg.DagsterInstance, store: EventStore, dsn: str, tmp_path: Path
) -> None:
    fill(store)
    root = tmp_path / "archive"
    defs = build_defs(
        declarations=Declarations(),
        settings=Settings(archive_dir=root),
        resources={"postgres": postgres_at(dsn)},
    )
    result = defs.resolve_job_def("archive").execute_in_process(instance=instance, partition_key="p00")
    assert result.success
    (record,) = instance.fetch_materializations(KEY, limit=9).records
    assert record.partition_key == "p00"
    assert record.asset_materialization
    told = {name: entry.value for name, entry in record.asset_materialization.metadata.items()}
    assert (told["dagster/row_count"], told["events"], told["archived_position"], told["not_archived"]) == (5, 5, 5, 0)
    assert told["bytes"] == sum(file.bytes for file in archived(store.connection, 0).files)
    assert (root / archived(store.connection, 0).files[0].path).exists()


def schedule_tick(dsn: str, defs: dg.Definitions) -> dg.RunRequest | None:
    """Return what the schedule asks for; at most one run."""
    context = dg.build_schedule_context(
        resources={"postgres": postgres_at(dsn)},
        scheduled_execution_time=NOW,
        repository_def=defs.get_repository_def(),
    )
    tick = archive_schedule(Settings()).evaluate_tick(context)
    assert tick.run_requests or "archived" in str(tick.skip_message)
    return next(iter(tick.run_requests or ()), None)


def test_the_schedule_asks_for_one_run_of_the_log_partitions_that_are_behind_and_says_when_none_is(
    store: EventStore, dsn: str
) -> None:
    defs = build_defs(declarations=Declarations())

    def asked() -> tuple[str, ...]:
        request = schedule_tick(dsn, defs)
        return (
            tuple(request.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end")) if request else ()
        )

    assert asked() == ()
    fill(store)
    assert asked() == ("p00", "p02")
    ArchiveStore(store.connection).mark_archived(0, 5)
    assert asked() == ("p01", "p02")


def test_the_run_of_the_schedule_archives_them_all_and_where_one_fails_only_that_is_shown_as_failed(
    instance: dg.DagsterInstance, store: EventStore, dsn: str, tmp_path: Path
) -> None:
    fill(store)
    root = tmp_path / "archive"
    defs = build_defs(
        declarations=Declarations(),
        settings=Settings(archive_dir=root),
        resources={"postgres": postgres_at(dsn)},
    )
    job = defs.resolve_job_def("archive")
    request = schedule_tick(dsn, defs)
    assert request
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
    assert job.execute_in_process(instance=instance, tags=request.tags).success
    assert schedule_tick(dsn, defs) is None


def test_the_schedule_runs_only_where_it_is_said_where_the_archive_is(tmp_path: Path) -> None:
    assert archive_schedule(Settings()).default_status == dg.DefaultScheduleStatus.STOPPED
    assert archive_schedule(Settings(archive_dir=tmp_path)).default_status == dg.DefaultScheduleStatus.RUNNING
