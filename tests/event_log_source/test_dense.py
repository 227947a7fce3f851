"""Where a task's events lie close together they are read in one go: the same rows by another plan."""

from collections.abc import Sequence

import pytest
from psycopg import sql

from millrace.resources.event_log_source import LogRange, reading
from millrace.resources.event_log_source.arrow import arrow_connection
from millrace.resources.event_log_source.reading import (
    DENSE_OFFSETS,
    DENSE_PLAN,
    DENSE_POSITIONS,
    PLAN,
    dense_offsets,
    query,
)
from millrace.resources.event_store import EventStore
from tests.support.building.event_log_reads import ALL, fill, options_of, positions, purge, read, reader_of
from tests.support.factories import Connect, append_to, ids_of_one_partition, register_orders, rows, value

EVERYTHING = [LogRange(partition, 0, 1_000_000) for partition in range(16)]


@pytest.fixture
def log(store: EventStore) -> EventStore:
    """Log partition 0 holds five events, partition 1 three, partition 2 one, all others none."""
    return fill(store)


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "DENSE_POSITIONS", 1)


def found_dense(dsn: str, ranges: Sequence[LogRange]) -> tuple[int, int] | None:
    with arrow_connection(dsn) as connection:
        return dense_offsets(connection, ranges)


@pytest.mark.usefixtures("few_are_enough")
def test_rows_are_the_same_by_either_plan(log: EventStore, dsn: str) -> None:
    by_range = read(dsn)
    assert found_dense(dsn, [LogRange(0, 0, 5), LogRange(1, 0, 3), LogRange(2, 0, 1)]) == (1, 9)
    assert positions(by_range) == ALL
    reading.DENSE_POSITIONS = DENSE_POSITIONS
    one_by_one = read(dsn)
    assert sorted(by_range, key=lambda row: row["offset"]) == sorted(one_by_one, key=lambda row: row["offset"])
    assert log


@pytest.mark.usefixtures("few_are_enough")
def test_only_the_positions_asked_for_come_and_what_was_removed_stays_away(log: EventStore, dsn: str) -> None:
    purge(log, 0, 2)
    found = read(dsn, startingOffsets={"0": 3, "1": 1, "2": 0}, endingOffsets={"0": 4, "1": 3, "2": 1})
    assert positions(found) == [(0, 3), (1, 1), (1, 2), (2, 0)]
    assert positions(read(dsn, events=["paid"], partitions=[1])) == [(1, 2)]


@pytest.mark.usefixtures("few_are_enough")
def test_what_is_appended_after_the_cut_stays_away_where_it_lies_between_events_of_the_cut(
    log: EventStore, dsn: str, connect: Connect
) -> None:
    late = connect(autocommit=False)
    append_to(
        EventStore(late), *ids_of_one_partition(late, 1, 3)
    )  # takes its offset now, and its position when it commits
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


def test_events_that_lie_apart_are_looked_up(store: EventStore, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register_orders(store)
    append_to(store, *(f"o-{n}" for n in range(400)))
    store.sequence_events()
    sizes = dict(rows(store.connection, "select partition, high_water_mark from event_store.partitions"))
    alone = [LogRange(0, 0, sizes[0])]
    together = [LogRange(partition, 0, size) for partition, size in sizes.items()]
    assert found_dense(dsn, together) is None  # too few to ask
    monkeypatch.setattr(reading, "DENSE_POSITIONS", 1)
    first, last = found_dense(dsn, together) or (0, 0)
    assert (first, last) == (1, 400)
    spread = value(
        store.connection, 'select max("offset") - min("offset") from event_store.event_log where partition = 0'
    )
    assert spread >= DENSE_OFFSETS * sizes[0]
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
