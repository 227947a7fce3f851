"""How tasks read: a connection that gives Arrow, one plan for dense events and one for scattered events."""

import subprocess
import sys
from collections.abc import Sequence
from urllib.parse import quote

import adbc_driver_postgresql
import pytest
from psycopg import sql

from millrace.event_store.platform import PlatformStore
from millrace.spark.log_source import LogRange, Unreadable, reading
from millrace.spark.log_source.arrow import MOST_DATABASES, arrow_connection
from millrace.spark.log_source.reading import DENSE_PLAN, DENSE_POSITIONS, PLAN, dense_offsets, query
from tests.support.building.event_log_reads import ALL, options_of, positions, read, reader_of
from tests.support.factories import Connect, append_to, ids_of_one_partition, purge, register_orders, rows, value
from tests.support.project import PROJECT

EVERYTHING = [LogRange(partition, 0, 1_000_000) for partition in range(16)]
MANY = "select g, repeat('x', 1000) as text from generate_series(1, 100000) g"


def test_a_process_reads_the_types_once_and_remembers_few_stores(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = adbc_driver_postgresql.connect

    def noted(uri: str) -> object:
        made.append(uri)
        return make(uri)

    monkeypatch.setattr(adbc_driver_postgresql, "connect", noted)
    for application in (*"abab", *map(str, range(MOST_DATABASES)), "a"):
        with arrow_connection(f"{dsn}&application_name={application}") as connection:
            assert connection.rows("select current_setting('application_name')") == [(application,)]
    names = [uri.rpartition("application_name=")[2].partition(" ")[0] for uri in made]
    assert names == [*"ab", *map(str, range(MOST_DATABASES)), "a"]


def test_no_time_limit_of_a_login_ends_a_task(dsn: str) -> None:
    with arrow_connection(f"{dsn}&options={quote('-c statement_timeout=1h')}") as connection:
        assert connection.rows("select current_setting('statement_timeout') as set") == [("0",)]


def test_all_statements_see_one_snapshot(log: PlatformStore, dsn: str) -> None:
    count = "select count(*) as events, max(position) from event_store.event_log"
    with arrow_connection(dsn) as connection:
        assert connection.rows(count) == [(9, 4)]
        append_to(log, "another")
        log.sequence_events()
        assert connection.rows(count) == [(9, 4)]
        with pytest.raises(Unreadable, match="read-only transaction"):
            connection.rows("delete from event_store.event_log")
    with arrow_connection(dsn) as connection:
        ((events, _),) = connection.rows(count)
        assert events == 10


def test_a_statement_that_fails_after_its_first_rows_is_an_error(dsn: str) -> None:
    with arrow_connection(dsn) as connection:
        batches = connection.batches("select 1 / (90000 - g), repeat('x', 1000) from generate_series(1, 100000) g")
        assert next(batches).num_rows > 0
        with pytest.raises(Unreadable, match="division by zero"):
            list(batches)


def test_what_is_not_read_to_its_end_ends_with_the_next_statement(dsn: str) -> None:
    with arrow_connection(dsn) as connection:
        batches = connection.batches(MANY)
        assert next(batches).num_rows > 0
        assert connection.rows("select 1 as one") == [(1,)]
        with pytest.raises(Unreadable):
            list(batches)
        batches = connection.batches(MANY)
        first = next(batches)
    with pytest.raises(Unreadable):
        list(batches)
    assert first.num_rows > 0


def test_another_statement_follows_when_the_rows_are_read(dsn: str) -> None:
    with arrow_connection(dsn) as connection:
        assert sum(batch.num_rows for batch in connection.batches(MANY)) == 100_000
        assert connection.rows("select 'a' as same, 'b' as other where false") == []
        assert connection.rows("select 1 as one union all select 2 order by one") == [(1,), (2,)]


@pytest.mark.usefixtures("log")
def test_a_task_imports_no_pandas_which_takes_longer_than_a_small_batch(dsn: str) -> None:
    script = (
        "import sys\n"
        "from pyspark.sql.types import LongType, StructField, StructType\n"
        "from millrace.spark.log_source import EventLogSource\n"
        f"source = EventLogSource({{'dsn': {dsn!r}, 'columns': '[\"offset\"]'}})\n"
        "reader = source.reader(StructType([StructField('offset', LongType())]))\n"
        "rows = sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))\n"
        "print(rows, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["9", "False"]


# Events that lie close together


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "DENSE_POSITIONS", 1)


def found_dense(dsn: str, ranges: Sequence[LogRange]) -> tuple[int, int] | None:
    with arrow_connection(dsn) as connection:
        return dense_offsets(connection, ranges)


@pytest.mark.usefixtures("few_are_enough")
def test_rows_are_the_same_by_either_plan(log: PlatformStore, dsn: str) -> None:
    by_range = read(dsn)
    assert found_dense(dsn, [LogRange(0, 0, 5), LogRange(1, 0, 3), LogRange(2, 0, 1)]) == (1, 9)
    assert positions(by_range) == ALL
    reading.DENSE_POSITIONS = DENSE_POSITIONS
    one_by_one = read(dsn)
    assert sorted(by_range, key=lambda row: row["offset"]) == sorted(one_by_one, key=lambda row: row["offset"])
    assert log


@pytest.mark.usefixtures("few_are_enough")
def test_only_the_positions_asked_for_come_and_what_was_removed_stays_away(log: PlatformStore, dsn: str) -> None:
    purge(log, 0, 2)
    found = read(dsn, startingOffsets={"0": 3, "1": 1, "2": 0}, endingOffsets={"0": 4, "1": 3, "2": 1})
    assert positions(found) == [(0, 3), (1, 1), (1, 2), (2, 0)]
    assert positions(read(dsn, events=["paid"], partitions=[1])) == [(1, 2)]


@pytest.mark.usefixtures("few_are_enough")
def test_what_is_appended_after_the_cut_stays_away(log: PlatformStore, dsn: str, connect: Connect) -> None:
    late = connect(autocommit=False)
    append_to(
        PlatformStore(late), *ids_of_one_partition(late, 1, 3)
    )  # draws its offset now, and gets its position after its commit
    append_to(log, *ids_of_one_partition(log.connection, 2, 5))
    log.sequence_events()
    reader = reader_of(dsn)
    (task,) = reader.partitions()
    late.commit()
    log.sequence_events()
    found = [row for batch in reader.read(task) for row in batch.to_pylist()]
    assert positions(found) == [*ALL, (5, 0), (5, 1)]
    newer = read(dsn)
    assert positions(newer) == [*ALL, (3, 0), (5, 0), (5, 1)]
    (between,) = (row["offset"] for row in newer if row["partition"] == 3)
    assert between < max(row["offset"] for row in found)


def test_events_that_lie_apart_are_looked_up(store: PlatformStore, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register_orders(store)
    append_to(store, *(f"o-{n}" for n in range(400)))
    store.sequence_events()
    sizes = dict(rows(store.connection, "select partition, high_water_mark from event_store.partitions"))
    alone = [LogRange(0, 0, sizes[0])]
    together = [LogRange(partition, 0, size) for partition, size in sizes.items()]
    assert found_dense(dsn, together) is None  # too few for the dense plan
    monkeypatch.setattr(reading, "DENSE_POSITIONS", 1)
    first, last = found_dense(dsn, together) or (0, 0)
    assert (first, last) == (1, 400)
    query = 'select max("offset") - min("offset") from event_store.event_log where partition = 0'
    spread = value(store.connection, query)
    assert spread >= reading.DENSE_OFFSETS * sizes[0]
    assert found_dense(dsn, alone) is None
    assert found_dense(dsn, [LogRange(0, 0, 0)]) is None


@pytest.mark.usefixtures("log")
def test_the_plan_goes_through_the_events_once_whatever_the_statistics_say(dsn: str, connect: Connect) -> None:
    connection = connect(autocommit=False)
    connection.execute(PLAN.encode())
    connection.execute(DENSE_PLAN.encode())
    statement = query(options_of(dsn=dsn), EVERYTHING, (1, 9))
    plan = "\n".join(row[0] for row in connection.execute(sql.SQL("explain ") + statement).fetchall())
    assert "Merge Join" in plan or "Hash Join" in plan
    assert "event_log_pkey" in plan
    assert "events_pkey" in plan
    assert "Seq Scan" not in plan


def test_no_plan_keeps_what_was_moved_for_an_event_that_is_like_it(dsn: str, connect: Connect) -> None:
    connection = connect(autocommit=False)
    connection.execute(PLAN.encode())
    upcasts = [{"decider": "order", "event": "placed", "to_version": 2, "moves": []}]
    options = options_of(dsn=dsn, columns=["offset"], extract={"a": ["a"], "b": ["b"]}, upcasts=upcasts)
    statement = sql.SQL("explain (costs off) ") + query(options, EVERYTHING)
    plan = "\n".join(row[0] for row in connection.execute(statement).fetchall())
    assert "Memoize" not in plan
