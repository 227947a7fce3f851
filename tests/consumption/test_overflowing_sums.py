"""Streams whose events do not fit into a sum: however many, all are named in one pass, and only they wait."""

import random
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millrace.resources.consumption import failing_streams
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.column_types import arrow_type
from millrace.resources.read_models.columns import Bounds
from millrace.resources.read_models.failing.sums import adder
from millrace.resources.read_models.fold_task import TOLD
from tests.support.building.drains import drain, thing, things
from tests.support.building.poison import TOTALS, at, locks
from tests.support.factories import rows, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]

MANY = 300
# of two of them the sum is no bigint
HALF = 5 * 10**18


@pytest.fixture(autouse=True)
def few_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no search by halves get far."""
    monkeypatch.setattr(failing_streams, "MOST_BUILDS", 2)


def totals(store: EventStore) -> dict[str, int]:
    return dict(rows(store.connection, "select owner, units from read_models.amounts order by 1"))


def behind(store: EventStore) -> int:
    return sum(lag.behind for lag in store.view_lag(TOTALS.view))


def test_hundreds_of_streams_whose_sums_overflow_are_named_at_once_and_all_others_are_built(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing(f"good-{n}", owner=f"good-{n}", units=n) for n in range(50)])
    for units in (HALF, HALF, 1):
        things.append_events([thing(f"bad-{n}", owner=f"bad-{n}", units=units) for n in range(MANY)])
    report = drain(at(dsn, 0), spark, TOTALS)
    assert (report.batches, report.failed_streams, report.failed) == (1, MANY, {})
    assert behind(things) == 0
    assert totals(things) == {f"good-{n}": n for n in range(50)} | {f"bad-{n}": HALF for n in range(MANY)}
    # each waits with its second event, and the third one behind it
    said = "select distinct last_error, attempts from event_store.stream_locks"
    assert rows(things.connection, said) == [
        ("[USER_RAISED_EXCEPTION] overflow in column units: its sum does not fit bigint SQLSTATE: P0001", 1)
    ]
    second = rows(
        things.connection,
        'select count(*) from event_store.stream_locks k where k.last_offset = (select "offset" - 1 from'
        ' event_store.events e where e.decider_id = k.decider_id order by "offset" offset 1 limit 1)',
    )
    assert second == [(MANY,)]


def test_hundreds_of_streams_that_do_not_fit_beside_what_is_stored_are_named_at_once(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing(f"bad-{n}", owner=f"bad-{n}", units=HALF) for n in range(MANY)])
    assert drain(at(dsn, 0), spark, TOTALS).failed_streams == 0
    things.append_events([thing(f"bad-{n}", owner=f"bad-{n}", units=HALF) for n in range(MANY)])
    # the same rows, and others
    things.append_events([thing(f"good-{n}", owner=f"bad-{n}", units=1) for n in range(MANY)])
    report = drain(at(dsn, 1), spark, TOTALS)
    assert (report.batches, report.failed) == (1, {})
    assert behind(things) == 0
    # a row is in the log partition of its stream, and the rows of an owner are added up when they are read
    assert locks(things) == sorted((f"bad-{n}", 1) for n in range(MANY))
    # tried again they do not fit either
    assert drain(at(dsn, 20), spark, TOTALS).failed_streams == MANY
    assert locks(things) == sorted((f"bad-{n}", 2) for n in range(MANY))


def test_of_streams_that_share_a_row_those_wait_that_do_not_fit_and_no_others(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    ids = _of_one_partition(things, 6)
    things.append_events([thing(ids[0], owner="o", units=HALF)])
    assert drain(at(dsn, 0), spark, TOTALS).failed_streams == 0
    units = [HALF, 1, 4 * 10**18, HALF, 2]
    things.append_events([thing(name, owner="o", units=n) for name, n in zip(ids[1:], units, strict=True)])
    report = drain(at(dsn, 1), spark, TOTALS)
    assert (report.failed_streams, report.failed) == (2, {})
    assert sorted(name for name, _ in locks(things)) == sorted([ids[1], ids[4]])
    assert totals(things) == {"o": 9 * 10**18 + 3}


def test_a_stream_that_is_tried_again_and_a_new_one_that_fit_only_one_of_the_two_hold_nothing_up(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    ids = _of_one_partition(things, 3)
    things.append_events([thing(ids[0], owner="o", units=HALF)])
    drain(at(dsn, 0), spark, TOTALS)
    things.append_events([thing(ids[1], owner="o", units=HALF)])
    assert drain(at(dsn, 1), spark, TOTALS).failed_streams == 1
    # room for one of the two
    things.append_events([thing(ids[0], owner="o", units=-(10**18))])
    drain(at(dsn, 2), spark, TOTALS)
    things.append_events([thing(ids[2], owner="o", units=HALF - 10**18)])
    report = drain(at(dsn, 10), spark, TOTALS)
    assert report.failed == {}
    assert behind(things) == 0
    assert locks(things) == [(ids[1], 2)]
    assert totals(things) == {"o": 8 * 10**18}


def test_a_rebuild_names_all_streams_whose_sums_overflow(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    ids = _of_one_partition(things, 120)
    for _ in range(2):
        things.append_events([thing(name, owner=name, units=HALF) for name in ids[20:]])
    things.append_events([thing(name, owner=name, units=1) for name in ids[:20]])
    with Consumer.open(dsn, TOTALS, lambda: spark, "own") as consumer:
        things.sequence_events()
        commit = consumer.rebuild(_partition(things))
    assert len(commit.failures) == 100
    assert totals(things) == {name: HALF if n >= 20 else 1 for n, name in enumerate(ids)}


def test_values_that_do_not_fit_beside_those_before_them_are_told_and_later_ones_are_tried_without_them() -> None:
    bounds = [Bounds(Decimal(-100), Decimal(100), "a"), Bounds(Decimal("-9.9"), Decimal("9.9"), "b")]
    names = ["partition", "key", "decider", "decider_id", "offset", "before a", "before b", "a", "b"]
    schema = pa.schema([(name, arrow_type(type_)) for name, type_ in TOLD.items()])
    dice = random.Random(3)
    for _ in range(200):
        table: list[tuple[object, ...]] = []
        told = set()
        for key in "xyz":
            sums = [Decimal(dice.randrange(-100, 101)), Decimal(dice.randrange(-99, 100)) / 10]
            before, failed = list(sums), set()
            for offset in range(dice.randrange(12)):
                stream = f"s-{dice.randrange(5)}"
                values = [dice.choice([None, Decimal(dice.randrange(-90, 90))]), Decimal(dice.randrange(-60, 60)) / 10]
                table.append((0, key, "d", stream, offset, *before, *values))
                after = [total + (v or 0) for total, v in zip(sums, values, strict=True)]
                if stream in failed:
                    continue
                if abs(after[0]) > 100 or abs(after[1]) > Decimal("9.9"):
                    failed.add(stream)
                    told.add((stream, offset, "a" if abs(after[0]) > 100 else "b"))
                else:
                    sums = after
        cut = dice.randrange(len(table) + 1)
        batches = [
            pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in part])
            for part in (table[:cut], table[cut:])
            if part
        ]
        found = [row for batch in adder(2, bounds, schema)(iter(batches)) for row in batch.to_pylist()]
        assert {(row["decider_id"], row["offset"], row["error"].split()[1]) for row in found} == told


def _of_one_partition(store: EventStore, number: int) -> list[str]:
    found = rows(
        store.connection,
        "select id from (select 't-' || n as id from generate_series(1, 20000) n) c"
        " where event_store.stream_partition(id, 16) = 3 limit %s",
        number,
    )
    return [name for (name,) in found]


def _partition(store: EventStore) -> int:
    return int(value(store.connection, "select min(partition) from event_store.event_log"))
