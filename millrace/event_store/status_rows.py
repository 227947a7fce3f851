"""The rows that say how the log and the views stand: who is behind, and who holds something up."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class PartitionInfo:
    """A log partition: its marks, its size, its last activity, its first event that is not archived, and its views."""

    partition: int
    earliest_position: int
    archived_position: int
    high_water_mark: int
    events: int
    bytes: int
    last_activity: datetime | None
    unarchived_since: datetime | None
    active_views: int


@dataclass(frozen=True)
class ViewInfo:
    """A view: how far it is behind, the states of its streams, and how many consumers it has.

    Attributes:
        view: Its name.
        mode: 'rows' or 'bulk'.
        enabled: Whether it is given events.
        lag: The events that it wants and has not; "at least" so many unless `exact`.
        lag_seconds: The age of the first of these that no dead letter holds; 0 if there is none.
        exact: Whether `lag` is exact.
        behind: The positions ahead of it, wanted or not.
        in_flight: Its streams with an event that was delivered and not answered.
        waiting: Its streams that were tried in vain, and are tried again.
        dead_letters: Its streams that were given up.
        leased_partitions: Its log partitions that somebody leases.
        consumers: How many consumers said that they consume it, and live.
    """

    view: str
    mode: str
    enabled: bool
    lag: int
    lag_seconds: float
    exact: bool
    behind: int
    in_flight: int
    waiting: int
    dead_letters: int
    leased_partitions: int
    consumers: int


@dataclass(frozen=True)
class PartitionLag:
    """How far a view is behind in one log partition.

    `behind` are positions, `lag` the events that it wants and has not, "at least" so many unless `exact`.
    `lag_seconds` is the age of the first of these that no dead letter holds; None if there is none.
    """

    partition: int
    position: int
    high_water_mark: int
    behind: int
    lag: int
    lag_seconds: float | None
    exact: bool = True


@dataclass(frozen=True)
class ViewPoll:
    """A view as a poller sees it; `due`, `retries` and `locked` are counted to a thousand.

    Attributes:
        view: Its name.
        mode: 'rows' or 'bulk'.
        enabled: Whether it is given events.
        pooling_delay_s: The wait between two polls that found nothing; None where its client polls by itself.
        edge_function_url: Where its events are pushed to; None also where the login may not see it.
        due: How much a consumer would be given now: events ahead that the view wants, and `retries`.
        consumers: How many consumers said that they consume it, and live.
        retries: Its streams with a lock whose time has come.
        locked: The streams of a bulk view that have a lock; None in rows mode, where each that is delivered has one.
        ahead: The positions ahead of it, wanted or not.
    """

    view: str
    mode: str
    enabled: bool
    pooling_delay_s: int | None
    edge_function_url: str | None
    due: int
    consumers: int
    retries: int = 0
    locked: int | None = 0
    ahead: int = 0


@dataclass(frozen=True)
class DrainState:
    """How a drain stands; one that nobody asked for yet stands as this is made.

    Attributes:
        drain: The view, as it is declared, or the capture; empty for the drain of all views together.
        owner: The run that began it.
        since_s: For how many seconds it is under way, asked for or begun; None where it is not.
        lives: Whether its owner is attached to something.
        failures: How many tries failed in a row.
        error: Why the last one did.
        wait_s: In how many seconds the next may start: the wait after failures.
        ended_s: How many seconds ago the last one ended; None where none did.
    """

    drain: str
    owner: str | None = None
    since_s: float | None = None
    lives: bool = False
    failures: int = 0
    error: str | None = None
    wait_s: float = 0.0
    ended_s: float | None = None


@dataclass(frozen=True)
class WantingView:
    """A rows view for which something is new, and the role that it belongs to."""

    view: str
    owner: str


@dataclass(frozen=True)
class SequencerHolder:
    """A session whose open transaction holds the sequencer's row; `open_since` is None where Postgres hides it."""

    pid: int
    login: str | None
    application_name: str | None
    transaction_id: str
    open_since: datetime | None


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    Attributes:
        kind: What is wrong, such as 'late' or 'dead_letters'.
        about: What it is of: 'view', 'read_model', 'capture', 'producer' or 'log'.
        subject: Which of these.
        since: Since when; None where nobody knows.
        severity: 'page' if somebody should come, 'ticket' if it can wait until the morning, 'note' if it mends itself,
            or may be meant so.
        what: A line that says what is wrong.
        cause: What was seen first.
        remedy: What helps.
    """

    kind: str
    about: str
    subject: str
    since: datetime | None
    severity: str
    what: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        """Say all of it to an operator."""
        return f"{self.what}. {self.cause} {self.remedy}"


@dataclass(frozen=True)
class ViewBeyondLog:
    """A checkpoint beyond the end of its log partition."""

    view: str
    partition: int
    position: int
    high_water_mark: int


@dataclass(frozen=True)
class OldestWriter:
    """The transaction that has written and been open for longest: of a session with a pid, or prepared under a name."""

    pid: int | None
    login: str | None
    application_name: str | None
    prepared: str | None
    open_since: datetime | None
