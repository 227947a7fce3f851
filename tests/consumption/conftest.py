"""What every test of rounds needs: no view leaves only because the machine has other work."""

import pytest

from millrace.resources.consumption import round as one_round
from tests.support.patience import patience


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_round, "SLOW_S", float(patience()))
