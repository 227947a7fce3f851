"""Streams that fail, wait, become dead letters, are retried or given up, while rounds take all other events."""

import random
from collections import defaultdict
from typing import cast

import pytest
from pyspark.sql import SparkSession

from millrace import count, fold, read_model, set_union, stream_id, sum_
from millrace.event_store.platform import PlatformStore
from millrace.ops import ReadModel
from millrace.rows import FoldEvent, State
from tests.long import seeds
from tests.support.building.drains import drain, thing
from tests.support.building.read_models import DECIDER
from tests.support.building.shared_drains import share
from tests.support.factories import rows
from tests.support.sql_calls import BatchEvent, append_events

MOST_DAYS = 28


@fold(view="trails", deciders=[DECIDER], key="thing_id", columns={"trail": "string"})
def trails(state: State | None, event: FoldEvent) -> State:
    """One row per thing: the numbers of its events, in the order in which they came."""
    if event.data["worth"] == "a lot":
        raise ValueError("no worth")
    return {"trail": f"{(state or {'trail': ''})['trail']} {event.data['n']}".strip()}


@read_model(view="tallies", deciders=[DECIDER], key=["thing_id"])
class Tallies:
    """One row per thing: the numbers of its events, and how many they are."""

    thing_id = stream_id()
    events = count()
    numbers = set_union("data.n", type="bigint")
    worth = sum_("data.worth", type="decimal(18,2)")


FAILING = [cast("ReadModel", trails), cast("ReadModel", Tallies)]


def on_day(dsn: str, day: int) -> str:
    return f"{dsn}&options=-c%20event_store.clock%3D2030-01-{day:02}"


def assert_in_order(
    store: PlatformStore, appended: dict[str, list[int]], given_up: set[tuple[str, int]], *, whole: bool
) -> None:
    """Assert that each model has the first events of each stream once, except those given up; or all of them."""
    connection = store.connection
    found = {
        "trails": {
            key: [int(n) for n in trail.split()]
            for key, trail in rows(connection, "select thing_id, trail from read_models.trails")
        },
        "tallies": dict(rows(connection, "select thing_id, numbers from read_models.tallies")),
    }
    assert rows(connection, "select * from read_models.tallies where events <> cardinality(numbers)") == []
    for view, by_stream in found.items():
        for stream, numbers in appended.items():
            wanted = [n for n in numbers if (view, n) not in given_up]
            has = by_stream.get(stream, [])
            assert has == (wanted if whole else wanted[: len(has)]), (view, stream)


@pytest.mark.parametrize("seed", seeds(3))
def test_failing_streams_come_in_order_and_once(
    things: PlatformStore, dsn: str, spark: SparkSession, seed: int
) -> None:
    dice = random.Random(seed)
    appended: dict[str, list[int]] = defaultdict(list)
    given_up: set[tuple[str, int]] = set()
    number_of: dict[int, int] = {}
    day = 1
    share(dsn, spark, FAILING)

    def append(number: int, bad: float) -> None:
        events: list[BatchEvent] = []
        for _ in range(number):
            stream, n = f"thing-{dice.randrange(6)}", len(number_of) + len(events)
            appended[stream].append(n)
            events.append(thing(stream, n=n, worth="a lot" if dice.random() < bad else 1))
        for n, event in enumerate(append_events(things, events), start=len(number_of)):
            number_of[event.offset] = n

    def give_up(chance: float) -> None:
        for model in FAILING:
            for letter in things.dead_letters(model.view):
                if dice.random() < chance:
                    gone = things.discard_dead_letter(model.view, letter.decider, letter.decider_id, "a test")
                    assert gone is not None
                    given_up.add((model.view, number_of[gone.offset]))

    # first some streams fail, so that there are some to retry and to give up
    for step in ("own", *dice.choices(["rounds", "own", "retry", "discard"], k=3)):
        append(dice.randrange(4, 10), 0.2)
        if step == "own":
            day += 1
            drain(on_day(dsn, day), spark, dice.choice(FAILING))
        elif step == "retry":
            things.retry_dead_letters(dice.choice(FAILING).view)
        elif step == "discard":
            give_up(0.5)
        share(on_day(dsn, day), spark, FAILING)
        assert_in_order(things, appended, given_up, whole=False)
    append(6, 0)
    while rows(things.connection, "select from event_store.stream_locks"):
        day += 1
        assert day <= MOST_DAYS
        for model in FAILING:
            drain(on_day(dsn, day), spark, model)
        # the next failure makes a stream a dead letter
        things.connection.execute("update event_store.stream_locks set attempts = 4 where attempts between 1 and 3")
        give_up(1)
    for model in FAILING:
        drain(on_day(dsn, day), spark, model)
    assert given_up
    assert_in_order(things, appended, given_up, whole=True)
