"""Values and models at the ends of what they may be: rounds build what drains of the views' own build, or leave it."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from millrace import (
    Event,
    ReadModel,
    State,
    avg,
    count,
    field,
    first,
    fold,
    last,
    max_,
    min_,
    read_model,
    set_union,
    stream_id,
    sum_,
)
from millrace.resources.consumption.rounds.drain import SharedDrain
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.columns import Column
from tests.consumption.test_consumer_hostile_json import Texts, everything, kept, store
from tests.consumption.test_rounds_differential import OTHER, random_events, random_model
from tests.support.building.drains import PATIENCE_S, Everything, drain, fill, thing, things
from tests.support.building.read_models import DECIDER, EVENTS
from tests.support.building.shared_drains import assert_as_alone, share, state, why_away
from tests.support.factories import rows, value
from tests.support.hostile_json import UNREADABLE, WORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]


def in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


# what a fold may return, or do, when an event says so
ODDITIES: dict[str, Callable[[], Any]] = {
    "nan": lambda: {"n": float("nan")},
    "infinite": lambda: {"x": float("inf")},
    "huge": lambda: {"n": 10**400},
    "beyond digits": lambda: {"x": 10**5000},
    "half a surrogate in the state": lambda: {"t": "ok", "hidden": "\ud800"},
    "half a surrogate in a column": lambda: {"t": "\udfff"},
    "nul in the state": lambda: {"t": "ok", "hidden": "a\0b"},
    "nul in a column": lambda: {"t": "a\0b"},
    "a mebibyte": lambda: {"t": "x" * 2**20},
    "eight mebibytes": lambda: {"t": "ok", "hidden": "ä" * 2**22},
    "deep": lambda: {"t": "ok", "hidden": json.loads('{"a":' * 500 + "1" + "}" * 500)},
    "in itself": lambda: {"hidden": in_itself()},
    "a tuple": lambda: {"hidden": (1, 2)},
    "no dict": lambda: [1],
    "keys of numbers": lambda: {1: 2},
    "words": lambda: {"t": "ok", "hidden": [*WORDS]},
    "a wrong type": lambda: {"n": "1"},
    "a boolean number": lambda: {"n": True},
    "minus nought": lambda: {"d": -0.0},
    "a least double": lambda: {"d": 5e-324},
    "the end of time": lambda: {"at": "9999-12-31T23:59:59.999999-14:00"},
    "the beginning of time": lambda: {"at": "0001-01-01T00:00:00+14:00", "day": "0001-01-01"},
    "as many digits as there are": lambda: {"x": "9" * 38, "y": "0." + "9" * 38},
    "a digit more": lambda: {"x": "9" * 39},
    "a number too small": lambda: {"y": "1e-39"},
}


@fold(
    view="odd",
    deciders=[DECIDER],
    key="thing_id",
    columns={
        "n": "bigint", "d": "double", "t": "string", "x": "decimal(38,0)", "y": "decimal(38,38)", "at": "timestamp",
        "day": "date",
    },
)  # fmt: skip
def odd(before: State | None, event: Event) -> State:
    """One row per thing: whatever the event names."""
    told = event.data.get("text")
    if told == "raise":
        raise ValueError(f"\ud800 \0 {'x' * 2**20}\n second line")
    return cast("State", ODDITIES[told]() if told in ODDITIES else {"n": (before or {}).get("n", 0)})


Odd = cast("ReadModel", odd)


@fold(view="swelling", deciders=[DECIDER], key="thing_id", columns={"t": "string"})
def swelling(_: State | None, event: Event) -> State:
    """One row per thing: a mebibyte of each event, however small."""
    return {"t": event.event[0] * 2**20}


@read_model(view="counted", deciders=[DECIDER], key=["thing_id"])
class Counted:
    """One row per thing: no field of the data."""

    thing_id = stream_id()
    events = count()


TEXTS, SWELLING, COUNTED = cast("list[ReadModel]", [Texts, swelling, Counted])


def test_whatever_a_fold_returns_is_what_a_drain_of_its_own_takes_and_else_it_leaves_alone(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    models = [Odd, Everything]
    share(dsn, spark, models)
    left = []
    for told in [*ODDITIES, "raise"]:
        things.append_events([thing(f"{told} {n}", text=told if n == 1 else "nothing") for n in range(3)])
        away = share(dsn, spark, models)
        assert away["everything"] is None, told
        if away["odd"] is not None:
            left.append(told)
            assert "\0" not in away["odd"]
            assert len(away["odd"].encode()) <= 4000
            drain(dsn, spark, Odd)
        assert sum(lag.pending for lag in things.view_lag("everything")) == 0
    alone = replace(Odd, name="odd_alone", view="odd_alone")
    drain(dsn, spark, alone)
    assert state(things.connection, Odd) == state(things.connection, alone)
    locked = "select view, decider_id, last_error from event_store.stream_locks order by 1, 2"
    errors = {
        view: [row[1:] for row in rows(things.connection, locked) if row[0] == view] for view in ("odd", "odd_alone")
    }
    assert len(errors["odd"]) == len(left)
    assert [(name, error.replace("odd_alone", "odd")) for name, error in errors["odd_alone"]] == errors["odd"]
    assert {"a mebibyte", "eight mebibytes", "deep", "words", "minus nought", "as many digits as there are"}.isdisjoint(
        left
    )


def test_columns_and_folds_take_every_json_in_a_round_or_leave_alone(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    documents = everything()
    store(things, documents)
    away = share(dsn, spark, [TEXTS, kept, Everything])
    assert away["texts"] is None
    assert "read model kept failed at thing 'evil-" in (away["kept"] or "")
    assert_as_alone(things, dsn, spark, [TEXTS])
    drain(dsn, spark, kept)
    alone = replace(kept, name="kept_alone", view="kept_alone")
    drain(dsn, spark, alone)
    assert state(things.connection, kept) == state(things.connection, alone)
    assert len(state(things.connection, kept)) < 2 * len(documents) - len(UNREADABLE) + 1


def test_what_is_too_large_for_a_round_leaves_it_and_the_other_views_go_on(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    largest = "x" * (2**20 - 20)
    models = [TEXTS, kept, SWELLING, COUNTED]
    for part in range(4):
        things.append_events([thing(f"large-{part}-{n}", v=largest) for n in range(40)])
    away = share(dsn, spark, models)
    assert "the events of a round are more than 32 MiB" in (away["texts"] or "")
    assert "the events of a round are more than 32 MiB" in (away["kept"] or "")
    assert "of a round are more than 32 MiB" in (away["swelling"] or "")
    assert away["counted"] is None
    for model in (TEXTS, kept):
        drain(dsn, spark, model)
    things.append_events([thing(f"small-{n}", v="s") for n in range(40)])
    # what a function makes of small events may be large, too
    away = share(dsn, spark, [SWELLING, COUNTED, TEXTS])
    assert away == {"swelling": away["swelling"], "counted": None, "texts": None}
    assert_as_alone(things, dsn, spark, [COUNTED, TEXTS])


@read_model(view="moments_at_the_ends", deciders=[DECIDER], key=["moment", "day"])
class Moments:
    """One row per moment and day of the data, however far away."""

    moment = field("data.moment", type="timestamp")
    day = field("data.day", type="date")
    earliest = min_("data.moment", type="timestamp")
    latest = max_("data.moment", type="timestamp")
    moments = set_union("data.moment", type="timestamp")
    days = set_union("data.day", type="date")
    first_day = first("data.day", type="date")
    made = last("created_at")
    all_made = set_union("created_at")


def test_times_and_days_at_the_ends_of_what_data_can_say(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    moments = [
        "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "0000-01-01T00:00:00+18:00", "0000-02-29 23:59:59.999999",
        "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999-18:00", "1969-12-31T23:59:59.999999Z",
        "1582-10-10T00:00:00Z", "1900-02-28T23:59:59.5+00:00", "2016-12-31T23:59:59.999999Z",
    ]  # fmt: skip
    days = ["0000-01-01", "0000-02-29", "0001-01-01", "9999-12-31", "1582-10-10", "1970-01-01", "1969-12-31"]
    pairs = [(moment, days[n % len(days)]) for n, moment in enumerate(moments)]
    pairs += [(moments[n % len(moments)], day) for n, day in enumerate(days)]
    things.append_events([thing(f"t-{n}", moment=moment, day=day) for n, (moment, day) in enumerate(pairs)])
    things.connection.execute("alter table event_store.events disable trigger user")
    for decider_id, made in (("t-1", "4713-01-01 00:00:00.000001+00 BC"), ("t-2", "294246-12-31 23:59:59.999999+00")):
        things.connection.execute(
            "update event_store.events set created_at = %s where decider_id = %s", (made, decider_id)
        )
    things.connection.execute("alter table event_store.events enable trigger user")
    ends = cast("ReadModel", Moments)
    assert share(dsn, spark, [ends, Everything]) == {"moments_at_the_ends": None, "everything": None}
    assert_as_alone(things, dsn, spark, [ends, Everything])
    # as Postgres reads them by itself
    wanted = "select (data->>'moment')::timestamptz, (data->>'day')::date from event_store.events where data->>'moment' !~ '^0000' and data->>'day' !~ '^0000'"
    found = "select k.moment::text, k.day::text from read_models.moments_at_the_ends k"
    assert set(rows(things.connection, f"select w.m::text, w.d::text from ({wanted}) w(m, d)")) <= set(
        rows(things.connection, found)
    )


@read_model(view="exact", deciders=[DECIDER], key=["a", "b", "c", "d", "e", "f"])
class Exact:
    """One row per six keys: as many digits as a decimal has, before and behind its point."""

    a = field("data.whole", type="decimal(38,0)")
    b = field("data.part", type="decimal(38,38)")
    c = field("decider_id")
    d = field("data.day", type="date")
    e = field("data.good", type="boolean")
    f = field("event")
    wholes = sum_("data.whole", type="decimal(38,0)")
    parts = sum_("data.part", type="decimal(38,38)")
    mean = avg("data.whole", type="decimal(38,0)")
    mean_part = avg("data.part", type="decimal(38,38)")
    least = min_("data.part", type="decimal(38,38)")
    all_wholes = set_union("data.whole", type="decimal(38,0)")
    all_parts = set_union("data.part", type="decimal(38,38)")
    last_part = last("data.part", type="decimal(38,38)")
    last_whole = last("data.whole", type="decimal(38,0)")


def test_decimals_of_all_digits_and_six_keys(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    wholes = ["0", "-0", "9" * 37, "-" + "9" * 37, "1" + "0" * 37, "-1"]
    parts = ["0", "0." + "4" * 38, "-0." + "4" * 38, "0." + "0" * 37 + "1", "-0." + "0" * 37 + "1"]
    dice = random.Random(5)
    for _ in range(2):
        things.append_events(
            [
                thing(
                    f"t-{n % 7}", whole=dice.choice(wholes), part=dice.choice(parts), day="2024-02-29", good=n % 2 == 0
                )
                for n in range(60)
            ]
        )
        exact = cast("ReadModel", Exact)
        assert share(dsn, spark, [exact, Everything]) == {"exact": None, "everything": None}
    assert_as_alone(things, dsn, spark, [exact, Everything])
    assert value(things.connection, "select max(abs(scale(last_part))) from read_models.exact") == 38


def test_a_model_of_more_than_a_hundred_columns_beside_one_of_few(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    kinds = [
        lambda n: count(f"data.f{n}"),
        lambda n: last(f"data.f{n}", type="bigint"),
        lambda n: first(f"data.f{n}"),
        lambda n: sum_(f"data.f{n}", events=["made"]),
        lambda n: max_(f"data.f{n}", type="decimal(20,2)"),
        lambda n: set_union(f"data.f{n}"),
    ]
    columns: dict[str, Column] = {f"c{n}": kinds[n % len(kinds)](n) for n in range(150)}
    wide = ReadModel(name="wide", view="wide", description="Wide.", keys={"thing_id": stream_id()}, columns=columns)
    dice = random.Random(3)
    things.append_events(
        [
            thing(f"t-{dice.randrange(9)}", **{f"f{n}": dice.randrange(100) for n in range(150) if dice.random() < 0.7})
            for _ in range(80)
        ]
    )
    fill(things, 40)
    assert share(dsn, spark, [Everything, wide]) == {"everything": None, "wide": None}
    assert_as_alone(things, dsn, spark, [Everything, wide])


def test_forty_views_in_one_drain(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    dice = random.Random(40)
    for event in EVENTS:
        things.register_decider_event(OTHER, event, f"a widget was {event}")
    models = [random_model(dice, number) for number in range(40)]
    with SharedDrain(dsn, models, lambda: spark, "rounds") as shared:
        for _ in range(3):
            things.append_events(random_events(dice, 80))
            shared.run(budget_s=PATIENCE_S, idle_s=0)
        assert why_away(shared) == {model.view: None for model in models}
    for model in dice.sample(models, 8):
        assert_as_alone(things, dsn, spark, [model])


def test_a_view_of_which_nothing_is_left_to_read_in_its_leases_is_committed(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    only = replace(Everything, name="only", view="only", events=("broken",))
    share(dsn, spark, [only])
    # as if its registration had wanted more than its declaration
    things.connection.execute("update event_store.views set events = null where view = 'only'")
    things.append_events([thing("a", text="x")])
    assert share(dsn, spark, [only]) == {"only": None}
    assert sum(lag.pending for lag in things.view_lag("only")) == 0
