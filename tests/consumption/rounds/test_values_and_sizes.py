"""Values and models at the ends of what they may be: rounds build what drains of the views' own build, or leave it."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING, cast

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
from tests.consumption.rounds.test_differential import OTHER, random_events, random_model
from tests.consumption.test_consumer_hostile_json import Texts, everything, kept, store
from tests.support.building.drains import Everything, drain, fill, thing, things
from tests.support.building.read_models import DECIDER, EVENTS
from tests.support.building.shared_drains import assert_as_alone, share, state, why_away
from tests.support.factories import rows, value
from tests.support.hostile_json import UNREADABLE
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]


@fold(view="swelling", deciders=[DECIDER], key="thing_id", columns={"t": "string"})
def swelling(_: State | None, event: Event) -> State:
    """One row per thing: a mebibyte, however small its events are."""
    return {"t": event.event[0] * 2**20}


@read_model(view="counted", deciders=[DECIDER], key=["thing_id"])
class Counted:
    """One row per thing: no field of the data."""

    thing_id = stream_id()
    events = count()


TEXTS, SWELLING, COUNTED = cast("list[ReadModel]", [Texts, swelling, Counted])


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


def test_events_that_are_too_large_together_come_in_rounds_of_fewer(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    largest = "x" * (2**20 - 20)
    things.append_events([thing(f"large-{n}", v=largest) for n in range(50)])
    assert share(dsn, spark, [TEXTS, COUNTED]) == {"texts": None, "counted": None}
    assert_as_alone(things, dsn, spark, [TEXTS, COUNTED])


def test_a_fold_whose_rows_are_too_large_leaves_and_the_other_views_go_on(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing(f"small-{n}") for n in range(40)])
    away = share(dsn, spark, [SWELLING, COUNTED])
    assert "its rows of a round are more than" in (away["swelling"] or "")
    assert away["counted"] is None
    assert_as_alone(things, dsn, spark, [COUNTED])


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
    wholes = ["0", "-0", "9" * 36, "-" + "9" * 36, "1" + "0" * 35, "-1"]
    parts = ["0", "0.00" + "4" * 36, "-0.00" + "4" * 36, "0." + "0" * 37 + "1", "-0." + "0" * 37 + "1"]
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


def test_models_of_more_fields_than_a_select_of_postgres_has_columns(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    models = [
        ReadModel(
            name=f"part_{part}",
            view=f"part_{part}",
            description="A part of the fields.",
            keys={"thing_id": stream_id()},
            columns={f"c{n}": count(f"data.f{part * 570 + n}") for n in range(570)},
        )
        for part in range(3)
    ]
    things.append_events([thing("a", **{f"f{n}": n for n in range(0, 1710, 3)}), thing("b", f1709=1)])
    assert share(dsn, spark, models) == {model.view: None for model in models}
    for part in range(3):
        row = rows(things.connection, f"select * from read_models.part_{part} where thing_id = 'a'")
        assert row == [("a", *(int((part * 570 + n) % 3 == 0) for n in range(570)))]
    ((last,),) = rows(things.connection, "select c569 from read_models.part_2 where thing_id = 'b'")
    assert last == 1


def test_forty_views_in_one_drain(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    dice = random.Random(40)
    for event in EVENTS:
        things.register_decider_event(OTHER, event, f"a widget was {event}")
    models = [random_model(dice, number) for number in range(40)]
    with SharedDrain(dsn, models, lambda: spark, "rounds") as shared:
        for _ in range(3):
            things.append_events(random_events(dice, 80))
            shared.run(budget_s=patience(), idle_s=0)
        away = {view: why for view, why in why_away(shared).items() if why is not None}
    # a sum of these values may have more digits than a decimal
    assert [why for why in away.values() if "overflow in column" not in why] == []
    assert len(away) < 5
    for model in dice.sample([model for model in models if model.view not in away], 8):
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
    assert sum(lag.lag for lag in things.view_lag("only")) == 0
