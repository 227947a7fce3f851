"""The fixtures of `tests/drain`, which rounds need here, too."""

from tests.drain.conftest import slow_machine
from tests.support.building.drains import observer, things

__all__ = ["observer", "slow_machine", "things"]
