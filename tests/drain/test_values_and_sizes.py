"""Extreme values and models in a round: the rows hold the appended values."""

from dataclasses import replace
from decimal import Decimal
from typing import cast

from millrace import count, field, first, last, max_, min_, read_model, set_union, stream_id
from millrace.ops import ReadModel
from tests.support.building.drains import Everything, thing
from tests.support.building.lab import Lab
from tests.support.building.read_models import DECIDER
from tests.support.sql_calls import append_events


@read_model(view="ends", deciders=[DECIDER], key=["thing_id"])
class Ends:
    """One row per thing: times and days however far away, and as many digits as a decimal has, on both sides."""

    thing_id = stream_id()
    moment = last("data.moment", type="timestamp")
    moments = set_union("data.moment", type="timestamp")
    day = min_("data.day", type="date")
    days = set_union("data.day", type="date")
    made = max_("created_at")
    whole = first("data.whole", type="decimal(38,0)")
    part = first("data.part", type="decimal(38,38)")
    wholes = set_union("data.whole", type="decimal(38,0)")
    last_part = last("data.part", type="decimal(38,38)")


@read_model(view="keys_at_the_ends", deciders=[DECIDER], key=["moment", "day", "whole", "part", "good", "event"])
class KeysAtTheEnds:
    """One row per six keys."""

    moment = field("data.moment", type="timestamp")
    day = field("data.day", type="date")
    whole = field("data.whole", type="decimal(38,0)")
    part = field("data.part", type="decimal(38,38)")
    good = field("data.good", type="boolean")
    event = field("event")
    events = count()


# a text of a time, and its value in Postgres
MOMENTS = {
    "0001-01-01T00:00:00Z": "0001-01-01 00:00:00", "0001-01-01T00:00:00-14:00": "0001-01-01 14:00:00",
    "9999-12-31T23:59:59.999999Z": "9999-12-31 23:59:59.999999",
    "9999-12-31T23:59:59.999999+15:59": "9999-12-31 08:00:59.999999",
    "1969-12-31T23:59:59.999999Z": "1969-12-31 23:59:59.999999", "1582-10-10T00:00:00Z": "1582-10-10 00:00:00",
    "1900-02-28T23:59:59.5+00:00": "1900-02-28 23:59:59.5",
}  # fmt: skip
DAYS = {"0001-01-01": "0001-01-01", "9999-12-31": "9999-12-31", "1582-10-10": "1582-10-10", "1969-12-31": "1969-12-31"}
WHOLES = ["0", "-0", "9" * 38, "-" + "9" * 38, "1" + "0" * 37, "-1"]
PARTS = ["0", "0." + "4" * 38, "-0." + "4" * 38, "0." + "0" * 37 + "1", "-0." + "0" * 37 + "1"]


def test_times_days_and_decimals_at_their_ends(lab: Lab) -> None:
    length = len(MOMENTS)
    moments, days = [*MOMENTS], [[*DAYS][n % len(DAYS)] for n in range(length)]
    wholes, parts = ([values[n % len(values)] for n in range(length)] for values in (WHOLES, PARTS))
    append_events(
        lab,
        (
            thing(f"t-{n}", moment=moments[n], day=days[n], whole=wholes[n], part=parts[n], good=n % 2 == 0)
            for n in range(length)
        ),
    )
    made = {"t-1": "4713-01-01 00:00:00.000001+00 BC", "t-2": "294246-12-31 23:59:59.999999+00"}
    lab.execute("alter table event_store.events disable trigger user")
    for decider_id, moment in made.items():
        lab.execute("update event_store.events set created_at = %s where decider_id = %s", (moment, decider_id))
    lab.execute("alter table event_store.events enable trigger user")
    models = [cast("ReadModel", Ends), cast("ReadModel", KeysAtTheEnds)]
    assert lab.share([*models, Everything]) == {"ends": None, "keys_at_the_ends": None, "everything": None}

    lab.execute("set timezone to 'UTC'")
    found = lab.rows(
        "select thing_id, moment::timestamp::text, day::text, whole, last_part, part = last_part"
        " and wholes = array[whole] and moments = array[moment] and days = array[day]"
        " and made = (select created_at from event_store.events where decider_id = thing_id)"
        " from read_models.ends order by 1"
    )
    texts = [MOMENTS[moment] for moment in moments]
    numbers = [(Decimal(wholes[n]), Decimal(parts[n])) for n in range(length)]
    assert found == [(f"t-{n}", texts[n], DAYS[days[n]], *numbers[n], True) for n in range(length)]
    keys = (
        "select moment::timestamp::text, day::text, whole, part, good, event, events from read_models.keys_at_the_ends"
    )
    assert {row[:2]: row[2:] for row in lab.rows(keys)} == {
        (texts[n], DAYS[days[n]]): (Decimal(wholes[n]), Decimal(parts[n]), n % 2 == 0, "made", 1) for n in range(length)
    }


def test_models_of_more_fields_than_a_select_has_columns(lab: Lab) -> None:
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
    append_events(lab, [thing("a", **{f"f{n}": n for n in range(0, 1710, 3)}), thing("b", f1709=1)])
    assert lab.share(models) == {model.view: None for model in models}
    for part in range(3):
        row = lab.rows(f"select * from read_models.part_{part} where thing_id = 'a'")
        assert row == [("a", *(int((part * 570 + n) % 3 == 0) for n in range(570)))]
    ((last_of_all,),) = lab.rows("select c569 from read_models.part_2 where thing_id = 'b'")
    assert last_of_all == 1


def test_a_view_with_nothing_left_to_read_is_committed(lab: Lab) -> None:
    only = replace(Everything, name="only", view="only", events=("broken",))
    lab.share([only])
    # as if the registered view had a wider filter than the declaration
    lab.execute("update event_store.views set events = null where view = 'only'")
    append_events(lab, [thing("a", text="x")])
    assert lab.share([only]) == {"only": None}
    assert sum(lag.lag for lag in lab.view_lag("only")) == 0
