"""The source as a stream: its start, resumption and end; each event once despite kills; purged history."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tenacity import Retrying, retry_if_exception_message, stop_after_delay

from millrace.event_store.platform import PlatformStore
from millrace.spark import log_source as event_log_source
from millrace.spark.log_source import DataLoss, EventLogStreamReader, InvalidOption, Unreadable
from millrace.spark.log_source.reading import EventLogInput
from tests.support.building.event_log_reads import SPARK_TYPES, stream
from tests.support.factories import append_to, ids_of_one_partition, purge, rows, set_clock, terminate, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Positions = list[tuple[int, int]]
ReaderOf = Callable[..., EventLogStreamReader]
COLUMNS = ("partition", "position")


def grow(orders: PlatformStore, sizes: dict[int, int]) -> None:
    """Append and sequence the given number of events in each log partition."""
    streams = {partition: ids_of_one_partition(orders.connection, 1, partition)[0] for partition in sizes}
    append_to(orders, *(streams[partition] for partition, size in sizes.items() for _ in range(size)))
    orders.sequence_events()


def all_of(orders: PlatformStore) -> Positions:
    return rows(orders.connection, "select partition, position from event_store.event_log order by 1, 2")


@pytest.fixture
def reader_of(dsn: str, request: pytest.FixtureRequest) -> ReaderOf:
    """Return a function that makes readers as Spark does; they are stopped when the test ends."""
    from pyspark.sql.types import StructField, StructType

    columns = zip(COLUMNS, ("int", "bigint"), strict=True)
    schema = StructType([StructField(name, SPARK_TYPES[type_]) for name, type_ in columns])

    def make(**options: object) -> EventLogStreamReader:
        given = {name: o if isinstance(o, str) else json.dumps(o) for name, o in options.items()}
        given |= {"columns": json.dumps(COLUMNS)} | ({} if "dsn" in given else {"dsn": dsn})
        reader = EventLogStreamReader(event_log_source.EventLogOptions.read(given, "stream"), schema)
        request.addfinalizer(reader.stop)
        return reader

    return make


def read(reader: EventLogStreamReader, start: dict[str, int], end: dict[str, int]) -> Positions:
    tasks = reader.partitions(start, end)
    assert all(isinstance(task, EventLogInput) for task in tasks)
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted((row["partition"], row["position"]) for row in found)


def offset(**stated: int) -> dict[str, int]:
    """Spark's offset: 0 in each of 16 log partitions but `p3=7`."""
    return {str(p): stated.get(f"p{p}", 0) for p in range(16)}


def test_a_new_query_begins_where_the_options_say(orders: PlatformStore, reader_of: ReaderOf) -> None:
    set_clock(orders.connection, "2030-01-31 00:00:00+00")
    grow(orders, {0: 3, 2: 4, 10: 1})
    set_clock(orders.connection, "2030-01-31 01:00:00+00")
    grow(orders, {0: 2})
    purge(orders, 2, 2)
    begins: list[tuple[dict[str, object], dict[str, int]]] = [
        ({}, offset(p2=2)),
        ({"startingOffsets": "earliest"}, offset(p2=2)),
        ({"startingOffsets": "latest"}, offset(p0=5, p2=4, p10=1)),
        ({"startingOffsets": {"0": 3, "2": 4}}, offset(p0=3, p2=4)),
        ({"startingTimestamp": "2030-01-31T01:00:00Z"}, offset(p0=3, p2=4, p10=1)),
        ({"startingTimestamp": "2031-01-31T01:00:00Z", "partitions": [10, 0]}, {"0": 5, "10": 1}),
        ({"partitions": []}, {}),
    ]
    for options, expected in begins:
        assert json.dumps(reader_of(**options).initialOffset()) == json.dumps(expected)


def test_a_batch_takes_what_the_limit_allows(orders: PlatformStore, reader_of: ReaderOf) -> None:
    grow(orders, {0: 20, 1: 10})
    limited = reader_of(maxOffsetsPerTrigger="6")
    assert limited.getDefaultReadLimit() == ReadMaxRows(6)
    assert reader_of().getDefaultReadLimit() == ReadAllAvailable()
    assert limited.reportLatestOffset() is None
    end = limited.latestOffset(offset(), ReadMaxRows(6))
    assert end == offset(p0=4, p1=2)
    assert limited.reportLatestOffset() == offset(p0=20, p1=10)
    assert read(limited, offset(), end) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert read(limited, end, end) == []
    last = limited.latestOffset(end, ReadAllAvailable())
    assert last == offset(p0=20, p1=10)
    assert json.dumps(limited.latestOffset(last, ReadMaxRows(6))) == json.dumps(last)


def test_available_now_ends_where_the_log_ended(orders: PlatformStore, reader_of: ReaderOf) -> None:
    grow(orders, {0: 3})
    reader = reader_of()
    reader.prepareForTriggerAvailableNow()
    grow(orders, {0: 2, 1: 1})
    end = reader.latestOffset(offset(), ReadAllAvailable())
    assert end == offset(p0=3)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_batch_is_read_again_with_the_same_rows(orders: PlatformStore, reader_of: ReaderOf) -> None:
    grow(orders, {0: 3, 1: 2})
    first = read(reader_of(), offset(p0=1), offset(p0=3, p1=2))
    grow(orders, {0: 3, 1: 2, 2: 1})
    assert read(reader_of(minPartitions="3"), offset(p0=1), offset(p0=3, p1=2)) == first


def test_other_log_partitions_than_the_checkpoint_s_are_refused(orders: PlatformStore, reader_of: ReaderOf) -> None:
    grow(orders, {0: 3})
    for reader in (reader_of(), reader_of(partitions=[0, 1])):
        with pytest.raises(
            InvalidOption, match=r"option 'partitions' is \[0, 1.*allowed: those of the query's checkpoint, \[0\]"
        ):
            reader.latestOffset({"0": 0}, ReadAllAvailable())


def test_removed_history_fails_the_query_or_is_warned_of(
    orders: PlatformStore, reader_of: ReaderOf, caplog: pytest.LogCaptureFixture
) -> None:
    grow(orders, {0: 5, 1: 2})
    purge(orders, 0, 3)
    strict = reader_of(maxOffsetsPerTrigger="1")
    lost = "Option 'failOnDataLoss' is 'true'; allowed: true, or false to go on"
    with pytest.raises(DataLoss, match=f"at position 1 of log partition 0, and it holds positions 3 to 5.*{lost}"):
        strict.latestOffset(offset(p0=1), ReadAllAvailable())
    with pytest.raises(DataLoss, match=f"positions 1 to 4 of log partition 0 are to be read, and it holds.*{lost}"):
        strict.partitions(offset(p0=1), offset(p0=4))

    lenient = reader_of(failOnDataLoss="false")
    end = lenient.latestOffset(offset(p0=1), ReadMaxRows(2))
    assert end == offset(p0=4, p1=1)
    assert not caplog.records
    assert read(lenient, offset(p0=1), end) == [(0, 3), (1, 0)]
    assert "positions 1 to 4 of log partition 0 are to be read, and it holds positions 3 to 5" in caplog.text


def test_a_log_before_the_checkpoint_fails_the_query(
    orders: PlatformStore, reader_of: ReaderOf, caplog: pytest.LogCaptureFixture
) -> None:
    grow(orders, {0: 5})
    with pytest.raises(DataLoss, match="stands at position 6 of log partition 0, and it holds positions 0 to 5"):
        reader_of().latestOffset(offset(p0=6), ReadAllAvailable())
    lenient = reader_of(failOnDataLoss="false")
    for _ in range(3):
        assert lenient.latestOffset(offset(p0=6), ReadAllAvailable()) == offset(p0=6)
    assert len(caplog.records) == 1
    grow(orders, {0: 2})
    assert lenient.latestOffset(offset(p0=6), ReadAllAvailable()) == offset(p0=7)


def test_one_connection_looks_until_postgres_ends_it(orders: PlatformStore, reader_of: ReaderOf) -> None:
    there = value(orders.connection, "select array_agg(pid) from pg_stat_activity")
    others = "select array_agg(pid) from pg_stat_activity where datname = current_database() and pid <> all(%s)"
    reader = reader_of()
    begin = reader.initialOffset()
    (pid,) = value(orders.connection, others, there)
    reader.latestOffset(begin, ReadAllAvailable())
    assert value(orders.connection, others, there) == [pid]
    terminate(orders.connection, pid)
    grow(orders, {0: 1})
    assert reader.latestOffset(begin, ReadAllAvailable()) == offset(p0=1)
    reader.stop()
    wait_until(lambda: value(orders.connection, others, there) is None, "the reader's connection ended")
    with pytest.raises(Unreadable, match="option 'dsn' is 'host=/nowhere'"):
        reader_of(dsn="host=/nowhere").initialOffset()


class Query:
    """One streaming query with its checkpoint and its output; it can be restarted."""

    def __init__(self, spark: "SparkSession", dsn: str, folder: Path) -> None:
        self.spark = spark
        self.dsn = dsn
        self.checkpoint = folder / "checkpoint"
        self.batches = folder / "batches"
        self.batches.mkdir()

    def writer(self, effect: "Callable[[DataFrame, int], None] | None" = None, **options: object) -> "DataStreamWriter":
        rows_ = stream(self.spark, self.dsn, columns=list(COLUMNS), **options)
        writer = rows_.writeStream.option("checkpointLocation", str(self.checkpoint))
        return writer.foreachBatch(effect or once_per_batch(self.batches))

    def available_now(self, effect: "Callable[[DataFrame, int], None] | None" = None, **options: object) -> None:
        # Spark waits ten seconds for its Python worker; on a busy machine that may be too short
        patiently = Retrying(
            retry=retry_if_exception_message(match="(?s).*Timed out while waiting for the Python worker"),
            stop=stop_after_delay(patience()),
            reraise=True,
        )
        query = patiently(self.writer(effect, **options).trigger(availableNow=True).start)
        assert query.awaitTermination(patience())

    def written(self) -> list[Positions]:
        files = sorted(self.batches.glob("*.json"), key=lambda file: int(file.stem))
        return [[(p, o) for p, o in json.loads(file.read_text())] for file in files]


def once_per_batch(batches: Path, *, die_after: int | None = None) -> "Callable[[DataFrame, int], None]":
    """Write once for each batch id; the process is killed right after the effect of one batch."""

    def effect(rows_: "DataFrame", batch: int) -> None:
        found = json.dumps(sorted((row["partition"], row["position"]) for row in rows_.collect()))
        file = batches / f"{batch}.json"
        if file.exists():
            if file.read_text() != found:
                raise ValueError(f"batch {batch} came again with {found}")
        else:
            file.with_suffix(".new").write_text(found)
            file.with_suffix(".new").rename(file)
            if batch == die_after:
                os.kill(os.getpid(), signal.SIGKILL)

    return effect


def once_per_batch_while_the_log_grows(batches: Path, dsn: str) -> "Callable[[DataFrame, int], None]":
    """Write as `once_per_batch`; each batch appends one more event."""
    write = once_per_batch(batches)

    def effect(rows_: "DataFrame", batch: int) -> None:
        write(rows_, batch)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "select event_store.append_events(jsonb_build_array(jsonb_build_object('decider', 'order',"
                " 'decider_id', 'o-1', 'event', 'placed', 'event_id', gen_random_uuid(),"
                " 'command_id', gen_random_uuid(), 'data', '{}'::jsonb)))"
            )
            connection.execute("select event_store_platform.sequence_events()")

    return effect


@pytest.fixture
def query(spark: "SparkSession", dsn: str, tmp_path: Path) -> Iterator[Query]:
    yield Query(spark, dsn, tmp_path)
    for left in spark.streams.active:
        left.stop()


def test_each_event_comes_once_though_the_query_is_killed(orders: PlatformStore, query: Query) -> None:
    grow(orders, {0: 9, 3: 5, 7: 1})
    with pytest.raises(StreamingQueryException):
        query.available_now(once_per_batch(query.batches, die_after=1), maxOffsetsPerTrigger="6")
    assert [len(batch) for batch in query.written()] == [6, 6]

    grow(orders, {0: 3, 4: 4})
    there = all_of(orders)
    effect = once_per_batch_while_the_log_grows(query.batches, query.dsn)
    query.available_now(effect, maxOffsetsPerTrigger="6", minPartitions="3")
    assert sorted(position for batch in query.written() for position in batch) == there
    assert len(all_of(orders)) > len(there)


def test_the_user_of_a_stream_sees_which_option_is_wrong(query: Query) -> None:
    for options, sentence in (
        ({"maxOffsetPerTrigger": "5"}, "option 'maxoffsetpertrigger' is '5'; allowed: dsn, startingOffsets"),
        ({"partitions": [99]}, "option 'partitions' is 99; allowed: log partitions 0, 1"),
    ):
        with pytest.raises(PySparkException) as failed:
            query.available_now(**options)
        assert sentence in str(failed.value)
