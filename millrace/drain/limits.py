"""How much of Spark and of Postgres one consumer takes at once, and for how long."""

from dataclasses import dataclass
from typing import Self

from millrace.settings import Settings

# how long a lease outlives its owner
LEASE_S = 60
# a build of up to this many events may use the whole time budget
BUILD_EVENTS = 500_000
ROUNDS_OF_A_BUILD = 10
# a search for failing streams may take as long as this many builds: the halves of one stream's search add up to two
SEARCH_BUILDS = 3


@dataclass(frozen=True)
class Limits:
    """How much runs side by side.

    Attributes:
        cores: How many cores a run has; None: as many as its session says.
        staging_connections: On how many connections Spark's tasks write rows at most.
        live_readers: On how many connections Spark's tasks read events from Postgres at most.
        build_s: How long a build of up to half a million events may take, in seconds.
        round_s: How long a round of many views may take, in seconds.
    """

    cores: int | None = None
    staging_connections: int = 32
    live_readers: int = 64
    build_s: float = 600
    round_s: float = 600

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits of a deployment."""
        build_s = settings.build_timeout_s
        # other views wait while a round runs: a view that needs more time has a run of its own
        return cls(cores=settings.cores, build_s=build_s, round_s=build_s / ROUNDS_OF_A_BUILD)

    @property
    def plan_s(self) -> float:
        """How long a function of DataFrames may take to return: half a build, so that the function is named as slow."""
        return self.build_s / 2

    def seconds_for(self, positions: int) -> float:
        """Return how long a build of this many positions may take: the more, the longer."""
        return self.build_s * max(1.0, positions / BUILD_EVENTS)

    def search_seconds_for(self, positions: int) -> float:
        """Return how long a search for the failing streams among this many positions may take, in all."""
        return SEARCH_BUILDS * self.seconds_for(positions)


DEFAULTS = Limits()
