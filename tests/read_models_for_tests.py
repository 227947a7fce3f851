"""A read model with every kind of column and one whose key crosses streams, and what they must hold, computed in Python.

Belongs here: the second, independent way to the numbers. Not here: assertions.
"""

import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from uuid import UUID

from assets.read_models import (
    all_,
    any_,
    avg,
    count,
    field,
    first,
    last,
    max_,
    min_,
    read_model,
    stream_id,
    sum_,
)
from resources.event_store import NewEvent, RecordedEvent

DECIDER = "thing"
EVENTS = ("made", "used", "broken")


@read_model(view="everything", deciders=[DECIDER], key=["thing_id"])
class Everything:
    """One row per thing: every kind of column."""

    thing_id = stream_id()
    events = count()
    with_text = count("data.text")
    used = count(events=["used"])
    units = sum_("data.units")
    worth = sum_("data.worth", type="decimal(18,2)", events=["made", "used"])
    mean = avg("data.worth", type="decimal(18,2)")
    least_text = min_("data.text")
    most_text = max_("data.text")
    least_units = min_("data.units", type="bigint")
    first_text = first("data.text")
    last_text = last("data.text")
    last_event = last("event")
    last_broken = last("data.nested.cause", events=["broken"])
    ever_good = any_("data.good")
    always_good = all_("data.good")
    seen_first = min_("created_at")
    last_offset_seen = max_("offset")


@read_model(view="crossing", deciders=[DECIDER], key=["owner", "event"])
class Crossing:
    """One row per owner and event, over all things."""

    owner = field("data.owner")
    event = field("event")
    events = count()
    units = sum_("data.units")
    mean = avg("data.worth", type="decimal(18,2)")
    first_text = first("data.text")
    last_text = last("data.text")
    most_text = max_("data.text")


def random_events(dice: random.Random, number: int) -> list[NewEvent]:
    """Events with fields that are there, missing, null, unicode, large and small."""
    return [
        NewEvent(
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


def expected_everything(events: Iterable[RecordedEvent]) -> list[tuple[Any, ...]]:
    """The rows of `Everything`, by thing."""
    things: dict[str, list[RecordedEvent]] = {}
    for event in events:
        things.setdefault(event.decider_id, []).append(event)
    return sorted((thing, *_everything(own)) for thing, own in things.items())


def expected_crossing(events: Iterable[RecordedEvent]) -> list[tuple[Any, ...]]:
    """The rows of `Crossing`, by owner and event."""
    groups: dict[tuple[str, str], list[RecordedEvent]] = {}
    for event in events:
        if event.data.get("owner") is not None:
            groups.setdefault((event.data["owner"], event.event), []).append(event)
    return sorted((*key, *_crossing(own)) for key, own in groups.items())


def _everything(events: list[RecordedEvent]) -> tuple[Any, ...]:
    texts, units, worths = _values(events, "text"), _values(events, "units"), _worths(events)
    goods = _values(events, "good")
    causes = [e.data["nested"]["cause"] for e in events if e.event == "broken" and e.data.get("nested")]
    return (
        len(events),
        len(texts),
        sum(e.event == "used" for e in events),
        sum(units),
        sum(_worths([e for e in events if e.event in {"made", "used"}]), Decimal(0)),
        _mean(worths),
        min(texts, key=str.encode, default=None),
        max(texts, key=str.encode, default=None),
        min(units, default=None),
        _first(texts),
        _last(texts),
        events[-1].event,
        _last(causes),
        any(goods),
        all(goods),
        min(e.created_at for e in events),
        max(e.offset for e in events),
    )


def _crossing(events: list[RecordedEvent]) -> tuple[Any, ...]:
    texts = _values(events, "text")
    return (
        len(events),
        sum(_values(events, "units")),
        _mean(_worths(events)),
        _first(texts),
        _last(texts),
        max(texts, key=str.encode, default=None),
    )


def _values(events: list[RecordedEvent], name: str) -> list[Any]:
    return [e.data[name] for e in events if e.data.get(name) is not None]


def _worths(events: list[RecordedEvent]) -> list[Decimal]:
    return [Decimal(str(value)) for value in _values(events, "worth")]


def _mean(worths: list[Decimal]) -> Decimal | None:
    return sum(worths, Decimal(0)) / len(worths) if worths else None


def _first(values: list[Any]) -> Any:  # noqa: ANN401 - whatever the column holds
    return values[0] if values else None


def _last(values: list[Any]) -> Any:  # noqa: ANN401 - whatever the column holds
    return values[-1] if values else None
