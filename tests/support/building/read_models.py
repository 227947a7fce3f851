"""Read models with every kind of column, key and function, and their expected rows, computed in Python."""

import random
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

import millrace as m
from millrace.event_store import Event
from millrace.read_models import recompute
from millrace.rows import FoldEvent, State
from tests.support.building.oracle import Rows
from tests.support.sql_calls import BatchEvent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DECIDER = "thing"
EVENTS = ("made", "used", "broken")


@m.read_model(view="everything", deciders=[DECIDER], key=["thing_id"])
class Everything:
    """One row per thing: every kind of column."""

    thing_id = m.stream_id()
    events = m.count()
    with_text = m.count("data.text")
    used = m.count(events=["used"])
    units = m.sum_("data.units")
    worth = m.sum_("data.worth", type="decimal(18,2)", events=["made", "used"])
    mean = m.avg("data.worth", type="decimal(18,2)")
    least_text = m.min_("data.text", type="string")
    most_text = m.max_("data.text", type="string")
    least_units = m.min_("data.units", type="bigint")
    first_text = m.first("data.text")
    last_text = m.last("data.text")
    last_event = m.last("event")
    richest_text = m.last("data.text", by="data.worth", by_type="decimal(18,2)")
    last_broken = m.last("data.nested.cause", events=["broken"])
    ever_good = m.any_("data.good")
    always_good = m.all_("data.good")
    seen_first = m.min_("created_at")
    last_offset_seen = m.max_("offset")
    texts = m.set_union("data.text")
    worths = m.set_union("data.worth", type="decimal(18,2)", events=["used"])
    goods = m.set_union("data.good", type="boolean")
    moments = m.set_union("created_at", events=["broken"])


@m.read_model(view="counted", deciders=[DECIDER], key=["thing_id"])
class Counted:
    """One row per thing, and no field of the data: the cheapest model to build."""

    thing_id = m.stream_id()
    events = m.count()


@m.read_model(view="fed", deciders=[DECIDER], key=["thing_id"], feed=True)
class Fed:
    """One row per thing, whose changes are told."""

    thing_id = m.stream_id()
    events = m.count()
    last_event = m.last("event")


@m.read_model(view="crossing", deciders=[DECIDER], key=["owner", "event"])
class Crossing:
    """One row per owner and event, over all things."""

    owner = m.field("data.owner")
    event = m.field("event")
    events = m.count()
    units = m.sum_("data.units")
    mean = m.avg("data.worth", type="decimal(18,2)")
    first_text = m.first("data.text")
    last_text = m.last("data.text")
    smallest_event = m.first("event", by="data.text", by_type="string", events=["made", "used"])
    most_text = m.max_("data.text", type="string")
    texts = m.set_union("data.text")


@m.read_model(view="going", deciders=[DECIDER], key=["thing_id"], deletes=["broken"])
class Going:
    """One row per thing that is not broken."""

    thing_id = m.stream_id()
    events = m.count()
    last_text = m.last("data.text")


@m.read_model(view="going_across", deciders=[DECIDER], key=["owner"], deletes=["broken", "used"])
class GoingAcross:
    """One row per owner over all things, unless the owner's last event removed it."""

    owner = m.field("data.owner")
    events = m.count()
    units = m.sum_("data.units")
    texts = m.set_union("data.text")


@m.fold(
    view="machines",
    deciders=[DECIDER],
    key="thing_id",
    columns={"seen": "bigint", "trail": "string", "worth": "decimal(18,2)", "at": "timestamp", "good": "boolean"},
)
def machines(state: State | None, event: FoldEvent) -> State | None:
    """One row per thing that did not rust: what happened to it, in order."""
    if event.event == "broken" and (event.data.get("nested") or {}).get("cause") == "rust":
        return None
    before = state or {"trail": "", "seen": 0, "texts": []}
    return before | {
        "seen": before["seen"] + 1,
        # each event changes the result of all earlier ones
        "trail": (before["trail"][::-1] + event.event[0])[-20:],
        "texts": [*before["texts"], event.data.get("text")][-3:],
        "worth": event.data.get("worth"),
        "good": event.data.get("good"),
        "at": event.created_at.isoformat(),
    }


@recompute(
    view="uses",
    deciders=[DECIDER],
    key=["thing_id", "text"],
    columns={"text": "string", "units": "decimal(38,0)", "events": "bigint", "last_at": "timestamp"},
)
def uses(events: "DataFrame") -> "DataFrame":
    """One row per thing and text since the thing was last broken."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    text, units = (f.get_json_object("data", f"$.{name}") for name in ("text", "units"))
    broken = f.max(f.when(f.col("event") == "broken", f.col("offset"))).over(Window.partitionBy("decider_id"))
    lives = events.withColumn("broken", broken).where("broken is null or offset > broken")
    rows = lives.select("decider_id", text.alias("text"), units.cast("decimal(20,0)").alias("units"), "created_at")
    return rows.groupBy("decider_id", "text").agg(
        f.sum("units").cast("decimal(38,0)").alias("units"),
        f.count("*").alias("events"),
        f.max("created_at").alias("last_at"),
    )


def random_events(dice: random.Random, number: int) -> list[BatchEvent]:
    """Make events with fields that are present, missing, null, unicode, large and small."""
    return [
        BatchEvent(
            DECIDER,
            f"thing-{dice.randrange(12)}",
            dice.choice(EVENTS),
            UUID(int=dice.getrandbits(128)),
            _some(
                dice,
                {
                    "text": dice.choice(["a", "B", "ä", "é", "z", "", "\U0001f600", "a'b\"c\\", "10", "9"]),
                    "units": dice.randrange(-5, 2**40),
                    "worth": dice.randrange(-10_000, 10_000) / 100,
                    "good": dice.choice([True, False]),
                    "owner": dice.choice(["ann", "bob", "çelik"]),
                    "nested": {"cause": dice.choice(["rust", "wear"])},
                },
            ),
            UUID(int=dice.getrandbits(128)),
        )
        for _ in range(number)
    ]


def _some(dice: random.Random, fields: dict[str, object]) -> dict[str, object]:
    return {k: None if dice.random() < 0.1 else v for k, v in fields.items() if dice.random() < 0.8}


def expected_uses(events: Iterable[Event]) -> Rows:
    lives: dict[str, dict[str | None, list[Event]]] = {}
    for event in events:
        life = lives.setdefault(event.decider_id, {})
        if event.event == "broken":
            life.clear()
        else:
            life.setdefault(event.data.get("text"), []).append(event)
    return [
        (thing, text, sum(map(Decimal, units)) if units else None, len(own), max(e.created_at for e in own))
        for thing, life in lives.items()
        for text, own in life.items()
        for units in [[e.data["units"] for e in own if e.data.get("units") is not None]]
    ]
