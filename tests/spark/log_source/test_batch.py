"""The data source `event_log` in batches: which events are read, by which tasks, and refused options."""

import traceback
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from psycopg import sql
from pyspark.errors import PySparkException

from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.spark.log_source import DataLoss, InvalidOption, LogRange, Unreadable
from millrace.spark.log_source.arrow import BATCH_BYTES
from millrace.spark.log_source.ranges import stated_ranges
from millrace.spark.log_source.reading import PLAN, EventLogInput, query
from tests.support.building.event_log_reads import ALL, load, options_of, positions, read, reader_of
from tests.support.factories import Connect, append_to, ids_of_one_partition, purge, register_orders, set_clock
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CHOSEN: list[tuple[dict[str, object], list[tuple[int, int]]]] = [
    ({}, ALL), ({"startingOffsets": "earliest", "endingOffsets": "latest"}, ALL),
    ({"startingOffsets": {"0": 3, "1": 3}}, [(0, 3), (0, 4), (2, 0)]),
    ({"endingOffsets": {"0": 2, "1": 0}}, [(0, 0), (0, 1), (2, 0)]),
    ({"startingOffsets": {"0": 1, "1": 1}, "endingOffsets": {"0": 2, "1": 3}}, [(0, 1), (1, 1), (1, 2)]),
    ({"startingOffsets": {"0": 2}, "endingOffsets": {"0": 2}}, []), ({"startingOffsets": {}, "endingOffsets": {}}, []),
    ({"partitions": [1, 2]}, [(1, 0), (1, 1), (1, 2), (2, 0)]), ({"partitions": [15]}, []), ({"partitions": []}, []),
    ({"deciders": ["invoice"]}, [(0, 1), (0, 3), (1, 1)]), ({"deciders": ["nobody"]}, []), ({"deciders": []}, []),
    ({"events": ["placed"]}, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]),
    ({"deciders": ["order"], "events": ["paid", "shipped"]}, [(0, 2), (0, 4), (1, 2)]),
    ({"MAXRECORDSPERPARTITION": "2", "STARTINGOFFSETS": "earliest"}, ALL),
]  # fmt: skip


@pytest.mark.usefixtures("log")
def test_options_choose_what_is_read(dsn: str) -> None:
    assert [(options, positions(read(dsn, **options))) for options, _ in CHOSEN] == CHOSEN


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"partitions": [3, 99]}, "option 'partitions' is 99; allowed: log partitions 0, 1, 2"),
    ({"startingOffsets": {"99": 0}}, "option 'startingOffsets' is 99; allowed: log partitions 0, 1, 2"),
    ({"endingOffsets": {"99": 0}}, "option 'endingOffsets' is 99; allowed: log partitions 0, 1, 2"),
    ({"startingOffsets": {"2": 0}, "partitions": [0, 1]}, "option 'startingOffsets' is 2; allowed: log partitions 0, 1"),
    (
        {"startingOffsets": {"0": 0, "1": 0}, "endingOffsets": {"0": 5}},
        "option 'startingOffsets' is '{\"0\": 0, \"1\": 0}'; allowed: exactly those that endingOffsets names: 0",
    ),
    (
        {"startingOffsets": {"0": 0}, "endingOffsets": {"0": 5}, "partitions": [0, 1]},
        "option 'partitions' is [0, 1]; allowed: exactly those that endingOffsets names: 0",
    ),
    ({"startingOffsets": {"99": 0}, "endingOffsets": {"99": 5}}, "'endingOffsets' is 99; allowed: log partitions 0, 1, 2"),
    (
        {"startingOffsets": {"0": 3}, "endingOffsets": {"0": 2}},
        "'startingOffsets' is 3; allowed: positions up to 2 of log partition 0, where endingOffsets ends",
    ),
    ({"startingOffsets": {"0": 6}}, "option 'startingOffsets' is 6; allowed: positions 0 to 5 of log partition 0"),
    ({"endingOffsets": {"0": 6}}, "option 'endingOffsets' is 6; allowed: positions 0 to 5 of log partition 0"),
    ({"startingOffsets": {"1": 0}, "endingOffsets": {"1": 4}}, "option 'endingOffsets' is 4; allowed: positions 0 to 3 of log partition 1"),
]  # fmt: skip


@pytest.mark.usefixtures("log")
def test_what_the_log_does_not_hold_is_refused(dsn: str) -> None:
    unsaid = []
    for options, sentence in REFUSED:
        with pytest.raises(InvalidOption) as refused:
            read(dsn, **options)
        if sentence not in str(refused.value):
            unsaid.append((options, str(refused.value)))
    assert unsaid == []


def test_removed_history_is_refused_or_warned_of(
    log: PlatformStore, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    purge(log, 0, 2)
    kept = [(0, 2), (0, 3), (0, 4)]
    holds = "to 5 of log partition 0 are to be read, and it holds positions 2 to 5 of log partition 0"
    assert positions(read(dsn, partitions=[0])) == kept
    # a start time after the purged events loses nothing
    assert positions(read(dsn, startingTimestamp="2100-01-01T00:00:00Z", partitions=[0])) == []
    asked: list[dict[str, object]] = [
        {"startingOffsets": {"0": 1}, "partitions": [0]},
        {"startingOffsets": {"0": 0}, "endingOffsets": {"0": 5}},
        {"startingTimestamp": "0", "partitions": [0]},
    ]
    for options in asked:
        with pytest.raises(DataLoss) as lost:
            read(dsn, **options)
        assert holds in str(lost.value)
        assert "'failOnDataLoss' is 'true'; allowed: true, or false to go on with what is there" in str(lost.value)
        caplog.clear()
        assert positions(read(dsn, failOnDataLoss="false", **options)) == kept
        assert holds in caplog.text
        assert "going on, as failOnDataLoss is false" in caplog.text
    assert read(dsn, failOnDataLoss="FALSE", startingOffsets={"0": 0}, endingOffsets={"0": 1}) == []


def test_what_is_removed_between_planning_and_reading_is_no_silent_loss(log: PlatformStore, dsn: str) -> None:
    reader = reader_of(dsn, partitions=[0])
    (task,) = reader.partitions()
    purge(log, 0, 3)
    with pytest.raises(DataLoss, match="0 to 5 of log partition 0 are to be read, and it holds positions 3 to 5"):
        list(reader.read(task))


def test_who_does_not_answer_is_named_without_the_password() -> None:
    in_a_task = {"startingOffsets": {"0": 0}, "endingOffsets": {"0": 1}}
    for nowhere in (
        "postgresql://me:hunter2@127.0.0.1:1/events?sslpassword=hunter2",
        "host=127.0.0.1 port=1 user=me password=hunter2 dbname=events",
    ):
        for options in ({}, in_a_task):
            with pytest.raises(Unreadable, match="option 'dsn' is '") as failed:
                read(nowhere, **options)
            for part in ("host=127.0.0.1", "port=1", "user=me", "dbname=events"):
                assert part in str(failed.value)
            assert "hunter2" not in "".join(traceback.format_exception(failed.value))
    for unreadable in ("hunter2", "postgresql://me:hun ter2@h:x/", "host=h pasword=hunter2"):
        for options in ({}, in_a_task):
            with pytest.raises(InvalidOption, match="'dsn' is '…'; allowed: a Postgres connection string") as refused:
                read(unreadable, **options)
            assert "hun" not in "".join(traceback.format_exception_only(refused.value))
    assert "hunter2" not in repr(options_of(dsn="password=hunter2"))


@pytest.mark.usefixtures("log")
def test_the_role_of_readers_suffices(dsn: str) -> None:
    reader = f"{dsn}&options=-c%20role%3Devent_store_reader"
    assert positions(read(reader)) == ALL
    assert positions(read(reader, startingTimestamp="0")) == ALL
    with pytest.raises(Unreadable, match="permission denied"):
        read(reader.replace("reader", "writer"))


def test_a_database_without_an_event_log_is_said(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(Unreadable, match=r'relation "event_store.partitions" does not exist'):
        read(postgres.dsn("postgres"))


def tasks(dsn: str, **options: object) -> list[list[tuple[int, int, int]]]:
    parts = reader_of(dsn, **options).partitions()
    assert all(isinstance(part, EventLogInput) for part in parts)
    return [[(r.partition, r.from_position, r.to_position) for r in part.ranges] for part in parts]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("log")
def test_tasks_are_few_and_have_a_slice_of_every_log_partition(dsn: str) -> None:
    for records, expected in (
        (100, [[(0, 0, 5), (1, 0, 3), (2, 0, 1)]]),
        (9, [[(0, 0, 5), (1, 0, 3), (2, 0, 1)]]),
        (8, [[(0, 0, 2), (1, 0, 1), (2, 0, 1)], [(0, 2, 5), (1, 1, 3)]]),
        (4, [[(0, 0, 1), (1, 0, 1), (2, 0, 1)], [(0, 1, 3), (1, 1, 2)], [(0, 3, 5), (1, 2, 3)]]),
    ):
        assert tasks(dsn, maxRecordsPerPartition=str(records)) == expected
    # one large log partition is read by as many tasks as are wanted
    for wanted, records, sizes in ((1, 100, [9]), (2, 100, [4, 5]), (4, 8, [2, 2, 2, 3]), (100, 100, [1] * 9)):
        found = tasks(dsn, minPartitions=str(wanted), maxRecordsPerPartition=str(records))
        assert sorted(sum(end - start for _, start, end in task) for task in found) == sizes


def test_stated_ranges_are_planned_without_asking_postgres() -> None:
    options = options_of(dsn="host=/nowhere", startingOffsets={"3": 1, "5": 0}, endingOffsets={"3": 4, "5": 0})
    assert stated_ranges(options) == [LogRange(3, 1, 4)]


def test_a_batch_holds_what_the_log_held_when_it_was_planned(log: PlatformStore, dsn: str) -> None:
    reader = reader_of(dsn)
    planned = reader.partitions()
    append_to(log, *ids_of_one_partition(log.connection, 3, 5))
    log.sequence_events()
    found = [row for task in planned for batch in reader.read(task) for row in batch.to_pylist()]
    assert positions(found) == ALL


@pytest.mark.usefixtures("log")
def test_tasks_look_events_up_whatever_the_statistics_say(dsn: str, connect: Connect) -> None:
    connection = connect(autocommit=False)
    connection.execute(PLAN.encode())
    many = [LogRange(partition, 0, 1_000_000) for partition in range(16)]
    statement = query(options_of(dsn=dsn), many)
    plan = "\n".join(row[0] for row in connection.execute(sql.SQL("explain ") + statement).fetchall())
    assert "event_log_pkey" in plan
    assert "events_pkey" in plan
    assert "Seq Scan" not in plan


def test_a_task_holds_a_few_megabytes_at_once_however_large_its_events_are(store: PlatformStore, dsn: str) -> None:
    register_orders(store)
    text = "x" * 250_000
    for _ in range(4):
        append_events(
            store, [BatchEvent("order", "o-1", "placed", uuid4(), {"text": text}, uuid4()) for _ in range(16)]
        )
    store.sequence_events()
    reader = reader_of(dsn)
    (task,) = reader.partitions()
    sizes = [batch.nbytes for batch in reader.read(task)]
    assert sum(sizes) > 64 * len(text)
    assert max(sizes) < BATCH_BYTES + 2 * len(text)


def test_an_empty_log_has_no_tasks_and_no_rows(dsn: str, spark: "SparkSession") -> None:
    assert tasks(dsn) == []
    assert load(spark, dsn).count() == 0


@pytest.fixture
def hours(store: PlatformStore) -> PlatformStore:
    """Log partition 0 holds an event of each hour from 0 to 4 o'clock of a day, partition 1 one of 2 o'clock."""
    register_orders(store)
    ids = [ids_of_one_partition(store.connection, 1, partition)[0] for partition in (0, 1)]
    for hour in range(5):
        set_clock(store.connection, f"2030-01-31 0{hour}:00:00+00")
        append_to(store, ids[0], *ids[1:] * (hour == 2))
    set_clock(store.connection, "")
    store.sequence_events()
    return store


def milliseconds(time: str) -> str:
    return str(int(datetime.fromisoformat(time).timestamp() * 1000))


TIMES: list[tuple[dict[str, object], list[tuple[int, int]]]] = [
    ({"startingTimestamp": "2030-01-31T02:00:00Z"}, [(0, 2), (0, 3), (0, 4), (1, 0)]),
    ({"startingTimestamp": "2030-01-31T03:00:00+01:00"}, [(0, 2), (0, 3), (0, 4), (1, 0)]),
    ({"startingTimestamp": milliseconds("2030-01-31T02:00:00Z")}, [(0, 2), (0, 3), (0, 4), (1, 0)]),
    ({"startingTimestamp": "2030-01-31T02:00:00.000001Z"}, [(0, 3), (0, 4)]),
    ({"startingTimestamp": "0"}, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]),
    ({"startingTimestamp": "2031-01-01T00:00:00Z"}, []),
    ({"endingTimestamp": "2030-01-31T02:00:00Z"}, [(0, 0), (0, 1)]),
    ({"endingTimestamp": "2031-01-01T00:00:00Z"}, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]),
    (
        {"startingTimestamp": "2030-01-31T01:00:00Z", "endingTimestamp": "2030-01-31T03:00:00Z"},
        [(0, 1), (0, 2), (1, 0)],
    ),
    ({"startingTimestamp": "2030-01-31T01:00:00Z", "endingTimestamp": "2030-01-31T01:00:00Z"}, []),
    ({"startingTimestamp": "2030-01-31T01:00:00Z", "partitions": [1]}, [(1, 0)]),
    ({"startingTimestamp": "2030-01-31T03:00:00Z", "endingOffsets": {"0": 2, "1": 1}}, []),
    ({"startingOffsets": {"0": 4}, "endingTimestamp": "2030-01-31T03:00:00Z"}, [(1, 0)]),
]


@pytest.mark.usefixtures("hours")
def test_times_choose_the_events_between_them(dsn: str) -> None:
    assert [(options, positions(read(dsn, **options))) for options, _ in TIMES] == TIMES


@pytest.mark.usefixtures("log")
def test_the_user_of_spark_sees_which_option_is_wrong(dsn: str, spark: "SparkSession") -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        # at the schema, at the planning of tasks, at a task's read
        ({"columns": ["amount"]}, "event_log: option 'columns' is '[\"amount\"]'; allowed: JSON list of partition"),
        ({"partitions": [99]}, "event_log: option 'partitions' is 99; allowed: log partitions 0, 1"),
        ({"endingOffsets": {"0": 99}}, "event_log: option 'endingOffsets' is 99; allowed: positions 0 to 5 of log"),
    ]
    for options, sentence in wrong:
        with pytest.raises(PySparkException) as failed:
            load(spark, dsn, **options).collect()
        assert sentence in str(failed.value)
