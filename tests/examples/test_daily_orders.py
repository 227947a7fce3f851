"""Reports in Dagster: a day is a function of its events, for any number and order of builds."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dagster as dg
import psycopg
import pytest

from millrace.archive.fields import Fields
from millrace.archive.history import day_history, log_history
from millrace.archive.purge import purge_before
from millrace.archive.spark_reader import RowSelection, rows_of, shared
from millrace.archive.writer import archive_partition
from millrace.assets.declarations import Declarations, declared
from millrace.event_store import Json
from millrace.event_store.platform import PlatformStore
from millrace.examples.shop.defs.daily_orders import DAYS, LATEST_COMMIT, daily_orders, read_day
from millrace.platform_defs.loading import build_defs
from tests.support.elsewhere import postgres_at
from tests.support.factories import Connect, register_shop_without_schemas, rows, set_clock
from tests.support.running.in_process import failed_with
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MONDAY, TUESDAY, WEDNESDAY = (datetime(2026, 11, day, tzinfo=UTC) for day in (2, 3, 4))
MIDNIGHT = timedelta(days=1)
TABLE = "select day::text, channel, orders, lines, worth, cancelled from reports.daily_orders order by day, channel"


@pytest.fixture
def shop(store: PlatformStore) -> PlatformStore:
    register_shop_without_schemas(store)
    return store


def append(store: PlatformStore, at: datetime, order: str, event: str, **data: Json) -> None:
    set_clock(store.connection, at.isoformat())
    append_events(store, [BatchEvent("order", order, event, uuid4(), data, uuid4())])


def two_days(store: PlatformStore) -> None:
    """Append orders of Monday and of Tuesday, up to the last and from the first microsecond."""
    last = MIDNIGHT - timedelta(microseconds=1)
    for day, name, channel in ((MONDAY, "a", "web"), (MONDAY + last, "b", "web"), (TUESDAY, "c", "app")):
        append(store, day, name, "order_placed", customer_id="x", channel=channel)
        append(store, day, name, "order_line_added", product="p", quantity=1, amount=19.9)
    append(store, TUESDAY, "a", "order_cancelled", reason="too late")  # placed on Monday
    append(store, TUESDAY + last, "d", "order_placed", customer_id="x")  # from an old version of the shop
    append(store, TUESDAY + last, "d", "order_cancelled", reason="mind")
    append(store, WEDNESDAY, "e", "order_placed", customer_id="x", channel="web")


ON_MONDAY = [("2026-11-02", "web", 2, 2, Decimal("39.80"), 0)]
ON_TUESDAY = [("2026-11-03", "app", 1, 1, Decimal("19.90"), 0), ("2026-11-03", "unknown", 1, 0, Decimal(0), 1)]


def run(dsn: str, day: datetime) -> dg.ExecuteInProcessResult:
    found = declared("millrace.examples.shop")
    parts = tuple(part for part in found.parts if part.name == "defs.daily_orders")
    declarations = Declarations(parts=parts, events=found.events)
    job = build_defs(declarations=declarations, resources={"postgres": postgres_at(dsn)}).resolve_job_def("reports")
    return job.execute_in_process(partition_key=day.date().isoformat(), raise_on_error=False)


def materialize(dsn: str, day: datetime) -> dict[str, object]:
    """Materialize a day; return what the run says of it, but where the columns come from."""
    result = run(dsn, day)
    assert result.success
    (materialization,) = result.asset_materializations_for_node("reports__daily_orders")
    said = {name: entry.value for name, entry in materialization.metadata.items()}
    assert "dagster/column_lineage" in said
    return {name: value for name, value in said.items() if name != "dagster/column_lineage"}


def test_days_are_built_each_by_itself(shop: PlatformStore, dsn: str, spark: "SparkSession", connect: Connect) -> None:
    assert spark
    two_days(shop)
    connection = connect()
    assert materialize(dsn, TUESDAY) == {"dagster/row_count": 2, "dagster/partition_row_count": 2}
    assert rows(connection, TABLE) == ON_TUESDAY
    assert materialize(dsn, MONDAY) == {"dagster/row_count": 3, "dagster/partition_row_count": 1}
    assert rows(connection, TABLE) == ON_MONDAY + ON_TUESDAY
    # a day without events has no rows
    assert materialize(dsn, MONDAY - MIDNIGHT) == {"dagster/row_count": 3, "dagster/partition_row_count": 0}
    # the rows of this day are replaced, and other days stay
    connection.execute("update reports.daily_orders set orders = 77 where day = '2026-11-02'")
    connection.execute("insert into reports.daily_orders values ('2026-11-02', 'gone', 1, 1, 1, 1)")
    connection.execute("insert into reports.daily_orders values ('2026-11-09', 'web', 1, 1, 1, 1)")
    materialize(dsn, MONDAY)
    assert rows(connection, TABLE) == [*ON_MONDAY, *ON_TUESDAY, ("2026-11-09", "web", 1, 1, Decimal(1), 1)]
    # a reader of the store may read the table, and every column has a comment
    connection.execute("set role event_store_reader")
    assert len(rows(connection, TABLE)) == 4
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("delete from reports.daily_orders")
    unexplained = """
        select attname from pg_attribute where attrelid = 'reports.daily_orders'::regclass and attnum > 0
          and col_description(attrelid, attnum) is null
    """
    assert rows(connection, unexplained) == []


def test_no_day_is_built_while_a_schema_differs(shop: PlatformStore, dsn: str, connect: Connect) -> None:
    shop.register_event_schema("order", "order_placed", {"type": "array"})
    result = run(dsn, MONDAY)
    assert "event order_placed version 1 of decider order has the schema" in failed_with(result)
    assert result.asset_materializations_for_node("reports__daily_orders") == []
    assert rows(connect(), "select to_regclass('reports.daily_orders')") == [(None,)]


def test_what_was_open_over_midnight_counts_for_its_day(
    shop: PlatformStore, dsn: str, spark: "SparkSession", connect: Connect, tmp_path: Path
) -> None:
    late = PlatformStore(connect(autocommit=False))
    append(late, TUESDAY - timedelta(seconds=1), "late", "order_placed", customer_id="x", channel="phone")
    for n in range(50):  # in every log partition
        append(shop, TUESDAY, f"early-{n}", "order_placed", customer_id="x", channel="web")
    shop.sequence_events()
    late.connection.commit()
    shop.sequence_events()
    found = read_day(spark, dsn, tmp_path, date(2026, 11, 2)).collect()
    assert [row["decider_id"] for row in found] == ["late"]


def test_days_that_were_archived_and_purged_have_the_same_rows(
    shop: PlatformStore,
    dsn: str,
    spark: "SparkSession",
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert spark
    monkeypatch.setenv("MILLRACE_ARCHIVE_DIR", str(tmp_path))
    two_days(shop)
    for partition in range(16):
        archive_partition(dsn, tmp_path, partition, max_events=2, min_events=2, tail=True)
    purged = sum(found.events for found in purge_before(shop.connection, tmp_path, TUESDAY + timedelta(hours=1)))
    assert purged > 3
    for day in (TUESDAY, MONDAY):
        materialize(dsn, day)
    assert rows(connect(), TABLE) == ON_MONDAY + ON_TUESDAY


def test_of_the_archive_a_day_reads_what_may_be_of_it(shop: PlatformStore, dsn: str, tmp_path: Path) -> None:
    two_days(shop)
    shop.sequence_events()
    for partition in range(16):
        archive_partition(dsn, tmp_path, partition, max_events=1, min_events=1, tail=True)
    files = [file for held in log_history(shop.connection, tmp_path).partitions for file in held.files]
    history = day_history(shop.connection, tmp_path, TUESDAY, TUESDAY + MIDNIGHT + LATEST_COMMIT)
    assert len(history.files) < len(files)
    assert all(first == last for first, last in history.tails.values())
    # the time statistics of row groups exclude the others
    wanted = RowSelection(None, None, ("created_at",), (), (TUESDAY, TUESDAY + MIDNIGHT))
    cuts = {info.partition: (0, info.high_water_mark) for info in shop.partition_info()}
    parts = [part for task in shared(tmp_path, dict.fromkeys(files, Fields()), cuts) for part in task]
    times = [time for part in parts for batch in rows_of(part, wanted) for time in batch.column(0).to_pylist()]
    assert sorted(time.date() for time in times) == [TUESDAY.date()] * 5


def test_the_schedule_asks_for_yesterday_when_late_events_are_in() -> None:
    defs = build_defs(declarations=declared("millrace.examples.shop"))
    schedule = defs.resolve_schedule_def("report_days")
    context = dg.build_schedule_context(
        repository_def=defs.get_repository_def(), scheduled_execution_time=datetime(2026, 11, 4, 2, 15, tzinfo=UTC)
    )
    (request,) = schedule.evaluate_tick(context).run_requests or []
    assert request.partition_key == request.tags["millrace/day"] == "2026-11-03"
    assert schedule.cron_schedule == "15 2 * * *"
    assert DAYS.timezone == "UTC"


def test_a_scheduled_report_comes_in_time_to_be_fresh() -> None:
    policy: Any = daily_orders.get_asset_spec().freshness_policy
    schedule = build_defs(declarations=declared("millrace.examples.shop")).resolve_schedule_def("report_days")
    scheduled, deadline = (daily(str(cron)) for cron in (schedule.cron_schedule, policy.deadline_cron))
    # three tries a minute apart, and an hour for what they do
    assert deadline - policy.lower_bound_delta <= scheduled <= deadline - timedelta(hours=1, minutes=2)
    assert policy.timezone == schedule.execution_timezone


def daily(cron: str) -> timedelta:
    minute, hour, *every_day = cron.split()
    assert every_day == ["*"] * 3
    return timedelta(hours=int(hour), minutes=int(minute))
