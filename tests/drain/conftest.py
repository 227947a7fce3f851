"""A store of things with and without Spark; no view leaves a shared drain only because the machine is busy."""

import pytest

from millrace.drain import round as one_round
from tests.support.building.drains import observer, things
from tests.support.building.lab import lab
from tests.support.patience import patience

__all__ = ["lab", "observer", "things"]


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_round, "SLOW_S", float(patience()))
