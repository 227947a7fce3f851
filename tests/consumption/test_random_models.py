"""Rounds build what a loop in Python makes of the events: every kind of column, type, filter and key at random."""

import random
from typing import TYPE_CHECKING

import pytest

from millrace.resources.consumption.drain import Drain
from millrace.resources.event_store import EventStore
from tests.long import seeds
from tests.support.building.drains import assert_equals_a_clean_run, machines, things
from tests.support.building.random_models import OTHER, of_lines, random_documents, random_model
from tests.support.building.read_models import EVENTS
from tests.support.building.shared_drains import why_away
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]


@pytest.mark.parametrize("seed", seeds(3))
def test_forty_random_models_in_one_drain_hold_what_python_makes_of_the_events(
    things: EventStore, dsn: str, spark: "SparkSession", seed: int
) -> None:
    dice = random.Random(seed)
    for event in EVENTS:
        things.register_decider_event(OTHER, event, f"a widget was {event}")
    models = [random_model(dice, number) for number in range(40)]
    together = [*models[10:], *map(of_lines, models[:10]), machines]
    with Drain(dsn, together, lambda: spark, "rounds") as shared:
        for number in (1, 40, 150):
            things.append_events(random_documents(dice, number))
            shared.run(budget_s=patience(), idle_s=0)
        assert {*why_away(shared).values()} == {None}
    assert_equals_a_clean_run(things, *together)
