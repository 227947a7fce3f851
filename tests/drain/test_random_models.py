"""Rounds build the same rows as a loop in Python: every kind of column, type, filter and key at random."""

import random

import pytest

from tests.long import seeds
from tests.support.building.drains import machines
from tests.support.building.lab import Lab
from tests.support.building.random_models import OTHER, of_lines, random_documents, random_model
from tests.support.building.read_models import EVENTS
from tests.support.building.shared_drains import why_away
from tests.support.patience import patience
from tests.support.sql_calls import append_events


@pytest.mark.parametrize("seed", seeds(3))
def test_forty_random_models_in_one_drain_equal_python(lab: Lab, seed: int) -> None:
    dice = random.Random(seed)
    for event in EVENTS:
        lab.register_decider_event(OTHER, event, f"a widget was {event}")
    models = [random_model(dice, number) for number in range(40)]
    together = [*models[10:], *map(of_lines, models[:10]), machines]
    with lab.together(together) as shared:
        for number in (1, 40, 150):
            append_events(lab, random_documents(dice, number))
            shared.run(budget_s=patience(), idle_s=0)
        assert {*why_away(shared).values()} == {None}
    lab.is_clean(*together)
