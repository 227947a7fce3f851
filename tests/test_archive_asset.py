"""The archive as Dagster runs it: real runs on an instance, a real Postgres."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import instance_for_test

from assets.archive import KEY
from platform_defs.definitions import build_defs
from platform_defs.schedules import archive_schedule
from resources.archive import archived
from resources.event_store import EventStore
from resources.postgres import PostgresResource
from resources.settings import Settings
from tests.event_log_reads import fill

NOW = datetime(2026, 1, 5, 12, 20, tzinfo=UTC)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def test_materializing_a_log_partition_extends_its_archive_and_says_how_far(
    instance: dg.DagsterInstance, store: EventStore, dsn: str, tmp_path: Path
) -> None:
    fill(store)
    root = tmp_path / "archive"
    defs = build_defs(models={}, settings=Settings(archive_dir=root), resources={"postgres": PostgresResource(dsn=dsn)})
    result = defs.resolve_job_def("archive").execute_in_process(instance=instance, partition_key="p00")
    assert result.success
    (event,) = result.asset_materializations_for_node("archive__events")
    told = {name: entry.value for name, entry in event.metadata.items()}
    assert (event.asset_key, event.partition) == (KEY, "p00")
    assert (told["dagster/row_count"], told["events"], told["archived_offset"], told["not_archived"]) == (5, 5, 5, 0)
    assert told["bytes"] == sum(file.bytes for file in archived(store, 0).files)
    assert (root / archived(store, 0).files[0].path).exists()


def test_the_schedule_asks_for_the_log_partitions_that_are_behind_and_says_when_none_is(
    store: EventStore, dsn: str
) -> None:
    repository = build_defs(models={}).get_repository_def()
    schedule = archive_schedule(Settings())
    resources = {"postgres": PostgresResource(dsn=dsn)}

    def asked() -> list[str | None]:
        context = dg.build_schedule_context(
            resources=resources, scheduled_execution_time=NOW, repository_def=repository
        )
        tick = schedule.evaluate_tick(context)
        assert tick.run_requests or "archived" in str(tick.skip_message)
        return [request.partition_key for request in tick.run_requests or ()]

    assert asked() == []
    fill(store)
    assert asked() == ["p00", "p01", "p02"]
    store.mark_archived(0, 5)
    assert asked() == ["p01", "p02"]


def test_the_schedule_runs_only_where_it_is_said_where_the_archive_is(tmp_path: Path) -> None:
    assert archive_schedule(Settings()).default_status == dg.DefaultScheduleStatus.STOPPED
    assert archive_schedule(Settings(archive_dir=tmp_path)).default_status == dg.DefaultScheduleStatus.RUNNING
