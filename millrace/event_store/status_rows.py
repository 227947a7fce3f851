"""The rows about the state of the log and the views: what is behind, and what blocks it."""

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
    """A view: its lag, the states of its streams, and the number of its consumers.

    Attributes:
        view: Its name.
        mode: 'rows' or 'bulk'.
        enabled: Whether events are delivered to it.
        lag: The number of events that it wants and does not have yet; a lower bound unless `exact`.
        lag_seconds: The age of the first of these that no dead letter holds; 0 if there is none.
        exact: Whether `lag` is exact.
        behind: The positions ahead of it, wanted or not.
        in_flight: Its streams with an event that was delivered and not answered.
        waiting: Its streams that failed and will be retried.
        dead_letters: Its parked streams.
        leased_partitions: Its log partitions under a lease.
        consumers: The number of its attached consumers that live.
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
    """The lag of a view in one log partition.

    `behind` counts positions, `lag` the events that it wants and does not have yet, a lower bound unless `exact`.
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
    """A view as a poller sees it; `due`, `retries` and `locked` are counted up to a thousand.

    Attributes:
        view: Its name.
        mode: 'rows' or 'bulk'.
        enabled: Whether events are delivered to it.
        pooling_delay_s: The wait between two polls that found nothing; None if its client polls by itself.
        edge_function_url: The URL that its events are pushed to; None also if the login may not see it.
        due: How much a consumer would get now: events ahead that the view wants, and `retries`.
        consumers: The number of its attached consumers that live.
        retries: Its locked streams that are due for a retry.
        locked: The locked streams of a bulk view; None in rows mode, where each delivered stream has a lock.
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
    """The state of a drain; the defaults are the state of a drain that was never asked for.

    Attributes:
        drain: The view, as it is declared, or the capture; empty for the drain of all views together.
        owner: The run that began it.
        since_s: The seconds since it was asked for or began; None if it is not under way.
        lives: Whether its owner is attached to a view, or holds the capture's lease.
        failures: The number of failures in a row.
        error: The error of the last failure.
        wait_s: The seconds until the next attempt may start: the backoff after failures.
        ended_s: The seconds since the last one ended; None if none did.
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
    """A rows view with new events, and the role that owns it."""

    view: str
    owner: str


@dataclass(frozen=True)
class FiredEvents:
    """How many scheduled events are done by a call, and the server's clock."""

    done: int
    clock: datetime


@dataclass(frozen=True)
class ScheduledStatistics:
    """Scheduled events: how many wait and were refused, to 10,000; the next one; the p99 of how late they are."""

    waiting: int
    next_at: datetime | None
    refused: int
    late_s: float | None


@dataclass(frozen=True)
class WaitingTimers:
    """How many scheduled events of a decider wait under a name, and when the next one is tried."""

    name: str
    waiting: int
    next_at: datetime


@dataclass(frozen=True)
class SequencerHolder:
    """A session with an open transaction that holds the sequencer's row; Postgres may hide `open_since` (None)."""

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
        about: The kind of its subject: 'view', 'read_model', 'capture', 'producer' or 'log'.
        subject: The subject's name.
        since: Since when; None if that is unknown.
        severity: 'page' if an operator must act now, 'ticket' if it can wait until the morning, 'note' if it mends
            itself, or may be intended.
        what: A line that says what is wrong.
        cause: The first symptom.
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
        """Return all of it as a text for an operator."""
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
    """The longest open transaction that has written: of a session with a pid, or prepared under a name."""

    pid: int | None
    login: str | None
    application_name: str | None
    prepared: str | None
    open_since: datetime | None
