"""How much of Spark and of Postgres one consumer takes at once.

Belongs here: the limits, with the settings that they come from. Not here: what keeps to them (`filling`, `staging`,
`consumer`).
"""

from dataclasses import dataclass
from typing import Self

from millrace.resources.settings import Settings


@dataclass(frozen=True)
class Limits:
    """How much runs side by side.

    Attributes:
        fill_connections: On how many connections a rebuild fills its new tables at most.
    """

    fill_connections: int = 1

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that the environment sets."""
        return cls(fill_connections=settings.fill_connections)
