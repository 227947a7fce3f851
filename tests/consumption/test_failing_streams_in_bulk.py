"""Many streams that fail in one batch: all are named at once, as if each had been looked at alone."""

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from millrace import (
    Event,
    State,
    all_,
    any_,
    avg,
    count,
    field,
    first,
    fold,
    last,
    max_,
    min_,
    read_model,
    recompute,
    set_union,
    stream_id,
    sum_,
)
from millrace.resources.consumption import batch, failing_streams, staging
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.read_models.columns import Column, KeyColumn
from millrace.resources.read_models.declaration import ReadModel
from tests.long import seeds
from tests.support.building.drains import Everything, drain, thing, things
from tests.support.building.poison import assert_holds_all_but, at, locks, offsets_of, poison
from tests.support.building.read_models import DECIDER, EVENTS
from tests.support.factories import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["things"]

TYPES = ("string", "bigint", "int", "double", "boolean", "date", "timestamp", "decimal(5,2)", "decimal(38,0)")
GOOD: dict[str, tuple[object, ...]] = {
    "string": ("a", "", 7, True),
    "bigint": (1, -(2**40), "12", " 7 "),
    "int": (1, "0", -5),
    "double": (1.5, "2e3", 7),
    "boolean": (True, "no", "T"),
    "date": ("2024-02-29", " 2024-1-5 "),
    "timestamp": ("2024-02-29", "2024-02-29 10:00:00.5", "2024-02-29T10:00:00Z"),
    "decimal(5,2)": (1.5, "100.250", 7),
    "decimal(38,0)": (10**30, 5),
}
BAD: dict[str, tuple[object, ...]] = {
    "string": ("a",),
    "bigint": ("a lot", 2**63, 1.5, "", "it's \\ so", "x" * 3000, "a\nb"),
    "int": (2**31, "5.0", "ü💥"),
    "double": ("NaN", "1e400", "a lot"),
    "boolean": ("maybe", 2, ""),
    "date": ("2024", "2024-02-30", "2024-02-29 10:00"),
    "timestamp": ("10:00", "2024-02-30", "2024-02-29 25:00", "event_log: No space left on device"),
    "decimal(5,2)": (1.234, "a lot", 12345678, "+000123456.70", "", ".", "9" * 45, 1e300),
    "decimal(38,0)": ("9" * 39, 0.5, "NaN"),
}
KINDS: dict[str, tuple[Any, ...]] = {
    "any": (count, first, last, set_union),
    "ordered": (min_, max_),
    "number": (sum_, avg),
    "boolean": (any_, all_),
}


def random_column(dice: random.Random, type_: str) -> Column:
    kinds = [*KINDS["any"]]
    if type_ != "boolean":
        kinds += KINDS["ordered"]
    if type_ == "bigint" or type_.startswith("decimal"):
        kinds += KINDS["number"] * 2
    if type_ == "boolean":
        kinds += KINDS["boolean"] * 2
    if type_ == "double":
        kinds.remove(set_union)
    kind = dice.choice(kinds)
    events = dice.choice([None, None, ["made"], ["used", "broken"]])
    source = f"data.{name_of(type_)}"
    untyped = kind in (count, *KINDS["boolean"])
    return cast("Column", kind(source, events=events) if untyped else kind(source, type=type_, events=events))


def name_of(type_: str) -> str:
    return type_.translate(str.maketrans("(,", "__", ")"))


def random_model(dice: random.Random) -> ReadModel:
    """Declare a read model with some columns of each type; keyed by stream, by a field, or by two."""
    columns: dict[str, Column | KeyColumn] = {
        f"{name_of(type_)}_{n}": random_column(dice, type_) for type_ in TYPES for n in range(dice.randrange(3))
    }
    keys: dict[str, KeyColumn] = dice.choice(
        [
            {"thing_id": stream_id()},
            {"owner": field("data.int", type="int")},
            {"owner": field("data.decimal_5_2", type="decimal(5,2)"), "thing_id": stream_id()},
            {"owner": field("data.int", type="int"), "day": field("data.date", type="date")},
        ]
    )
    body = {"__doc__": "One row per key.", "events": count()} | columns | keys
    return read_model(view="random", deciders=[DECIDER], key=list(keys))(type("Random", (), body))


def random_batch(dice: random.Random, streams: int) -> list[NewEvent]:
    """Events of many streams, some of which have bad values, one or several, at some place."""
    events = []
    for n in range(streams):
        fails = dice.random() < 0.3
        for _ in range(dice.randrange(1, 6)):
            data: dict[str, object] = {}
            for type_ in TYPES:
                bad = fails and dice.random() < 0.06
                value = dice.choice((BAD if bad else GOOD)[type_])
                if bad or dice.random() < 0.8:
                    data[name_of(type_)] = None if dice.random() < 0.1 else value
            bad = fails and dice.random() < 0.3
            data["do"] = dice.choice(["raise", "list", "tuple", "mend", "large", "break"]) if bad else "add"
            events.append(an_event(dice, f"thing-{n}", dice.choice(EVENTS), data))
    dice.shuffle(events)
    return events


def an_event(dice: random.Random, decider_id: str, event: str, data: dict[str, object]) -> NewEvent:
    return NewEvent(DECIDER, decider_id, event, UUID(int=dice.getrandbits(128)), data, UUID(int=dice.getrandbits(128)))


@fold(view="adds", deciders=[DECIDER], key="thing_id", columns={"n": "int", "good": "boolean"})
def adds(state: State | None, event: Event) -> State | None:
    """One row per thing; an event may raise, or leave a state that cannot be stored until another one mends it."""
    state = dict(state or {"n": 0, "good": True})
    match event.data["do"]:
        case "raise":
            raise ValueError(f"{event.data['do']} of\nseveral lines")
        case "list":
            return cast("State", [1])
        case "tuple":
            state["t"] = (1, 2)
        case "mend":
            state.pop("t", None)
        case "large":
            state["n"] = 2**31
        case "break":
            state["good"] = "maybe"
    state["n"] += 1
    return state


def told(store: EventStore, model: ReadModel) -> list[tuple[str, int, str]]:
    """Return of each failing stream its failing event, or the last one before it that was taken, and the error."""
    found = rows(
        store.connection,
        "select decider_id, last_offset, last_error from event_store.stream_locks where view = %s order by 1",
        model.view,
    )
    return [(stream, offset, error.replace(f"model {model.name} ", "model ")) for stream, offset, error in found]


def assert_as_one_by_one(
    store: EventStore, dsn: str, spark: "SparkSession", model: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Assert that a drain equals one that has to look for each stream by itself; return how many fail."""
    alone = replace(model, name=f"{model.name}_alone", view=f"{model.view}_alone")
    with monkeypatch.context() as patched:
        patched.setattr(batch, "failing_events", lambda *_: [])
        for limit in ("ALL_FAIL", "MOST_BUILDS", "MOST_FAILURES"):
            patched.setattr(failing_streams, limit, 10_000)
        assert drain(at(dsn, 0), spark, alone).batches == 1
    report = drain(at(dsn, 0), spark, model)
    assert (report.batches, report.failed) == (1, {})
    assert told(store, model) == told(store, alone)
    built, built_alone = (
        store.connection.execute(f"select * from read_models.{each.name}".encode()).fetchall()
        for each in (model, alone)
    )
    assert sorted(built, key=repr) == sorted(built_alone, key=repr)
    return report.failed_streams


# each runs Spark dozens of times
@pytest.mark.parametrize("seed", seeds(2))
def test_columns_of_random_streams_fail_at_the_events_and_with_the_errors_of_a_search_for_each_alone(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    things.append_events(random_batch(dice, 16))
    assert assert_as_one_by_one(things, dsn, spark, random_model(dice), monkeypatch) > 0


def test_folds_of_random_streams_fail_at_the_events_and_with_the_errors_of_a_search_for_each_alone(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    things.append_events(random_batch(random.Random(1), 16))
    assert assert_as_one_by_one(things, dsn, spark, adds, monkeypatch) > 0


def builds_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often a part of a batch is staged."""
    staged: list[int] = []
    stage = staging.stage_events

    def counted(*arguments: Any) -> list[Any]:  # noqa: ANN401 - passed on
        staged.append(1)
        return stage(*arguments)

    for module in (batch, staging):
        monkeypatch.setattr(module, "stage_events", counted)
    return staged


def test_a_hundred_streams_that_fail_are_set_aside_in_one_batch_and_again_when_they_are_tried_again(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [f"bad-{n:03}" for n in range(100)]
    things.append_events([thing(f"good-{n}", worth=n) for n in range(50)])
    things.append_events([event for each in bad for event in (thing(each, worth=1), poison(each), thing(each))])
    staged = builds_of(monkeypatch)
    report = drain(at(dsn, 0), spark)
    assert (report.batches, report.failed_streams, report.failed) == (1, 100, {})
    assert len(staged) == 2
    assert locks(things) == [(each, 1) for each in bad]
    waiting = [offset for each in bad for offset in offsets_of(things, each)[1:]]
    assert_holds_all_but(things, waiting)

    things.append_events([poison(f"new-{n}") for n in range(50)] + [thing("good-0", worth=1)])
    staged.clear()
    report = drain(at(dsn, 5), spark)
    assert (report.batches, report.failed_streams) == (1, 150)
    assert len(staged) <= 5
    assert Counter(attempts for _, attempts in locks(things)) == {2: 100, 1: 50}
    assert_holds_all_but(things, [*waiting, *(o for n in range(50) for o in offsets_of(things, f"new-{n}"))])


def test_a_rebuild_sets_aside_many_failing_streams_and_puts_all_others_in_place(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing(f"good-{n}", worth=n) for n in range(20)])
    things.append_events([poison(f"bad-{n}") for n in range(60)])
    drain(at(dsn, 0), spark)
    things.connection.execute("delete from read_models.everything_state")
    with Consumer.open(at(dsn, 1), Everything, lambda: spark, "rebuilder") as consumer:
        commit = consumer.rebuild(*range(16))
    assert len(commit.failures) == 60
    assert_holds_all_but(things, [offsets_of(things, f"bad-{n}")[0] for n in range(60)])


@read_model(view="daily", deciders=[DECIDER], key=["owner", "day"])
class Daily:
    """One row per owner and day."""

    owner = field("data.owner", type="int")
    day = field("data.day", type="date")
    worth = sum_("data.worth")


def test_an_event_without_a_key_fails_at_no_field_also_not_at_its_other_key(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    day = "2024-02-29"
    things.append_events([thing(f"good-{n}", owner=n, day=day, worth=1) for n in range(4)])
    things.append_events([thing("no-owner", day="a lot"), thing("no-day", owner="a lot"), poison("neither")])
    things.append_events([thing("bad", owner="a lot", day="a lot"), thing("worse", owner=1, day=day, worth="a lot")])
    report = drain(at(dsn, 0), spark, cast("ReadModel", Daily))
    assert (report.batches, report.failed) == (1, {})
    assert locks(things) == [("bad", 1), ("worse", 1)]
    assert rows(things.connection, "select count(*), sum(worth) from read_models.daily") == [(4, 4)]


@recompute(view="sums", deciders=[DECIDER], key=["thing_id"], columns={"worth": "bigint"})
def sums(events: "DataFrame") -> "DataFrame":
    """One row per thing; a function of whole streams does not say which event it fails at."""
    from pyspark.sql import functions as f

    worth = f.get_json_object("data", "$.worth").cast("bigint")
    return events.groupBy("decider_id").agg(f.sum(worth).alias("worth"))


def test_where_more_streams_fail_than_a_search_by_halves_finds_the_drain_finds_them_batch_by_batch_and_stays_green(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_streams, "MOST_BUILDS", 30)
    things.append_events([thing(f"good-{n}", worth=n) for n in range(20)])
    things.append_events([poison(f"bad-{n}") for n in range(12)])
    report = drain(at(dsn, 0), spark, sums)
    assert (report.failed_streams, report.failed) == (12, {})
    assert sorted(locks(things)) == sorted((f"bad-{n}", 1) for n in range(12))
    assert rows(things.connection, "select count(*) from read_models.sums") == [(20,)]
