"""The store's functions for alerts: one method per SQL function, same name, same argument order.

Belongs here: calls and the rows that they return. Not here: behaviour, that is in `sql/functions`; what is wrong
(`incidents`), sending (`alerter`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.types.json import Jsonb

from millrace.resources.event_store.sql_functions import SqlFunctions


@dataclass(frozen=True)
class OpenIncident:
    """What is wrong, or is over and was not told yet.

    Attributes:
        incident_id: Names it.
        kind: What is wrong.
        subject: Of what.
        severity: 'page' or 'ticket'.
        cause: What was seen first.
        remedy: What to do.
        page: Where the UI shows it.
        sources: Who sees it, or could not be read since.
        began_at: When it was seen first.
        confirmed: Whether it was seen for long enough to be told.
        missing_since: Since when nobody sees it; None while somebody does.
        over_at: When it ended.
        flaps: How often it came back within two hours of its end.
        told: What the receiver was told: 'nothing', 'began' or 'over'.
        tries: How often the message that is due was tried.
        next_try_at: When it is tried again.
        last_error: Why the last try failed.
        undelivered: How many messages about it were given up.
    """

    incident_id: UUID
    kind: str
    subject: str
    severity: str
    cause: str
    remedy: str
    page: str
    sources: list[str]
    began_at: datetime
    confirmed: bool
    missing_since: datetime | None
    over_at: datetime | None
    flaps: int
    told: str
    tries: int
    next_try_at: datetime | None
    last_error: str | None
    undelivered: int


@dataclass(frozen=True)
class ClaimedIncident:
    """An incident of a message that is to be sent now; `phase` is 'began' or 'over'."""

    message_id: UUID
    lease_token: int
    phase: str
    incident_id: UUID
    kind: str
    subject: str
    severity: str
    cause: str
    remedy: str
    page: str
    began_at: datetime
    over_at: datetime | None
    flaps: int
    tries: int


@dataclass(frozen=True)
class Turn:
    """A source that nobody else looks at now, and the store's time when the look began."""

    source: str
    looked_at: datetime


@dataclass(frozen=True)
class AlertState:
    """When somebody looked last, what is open, since when a message does not arrive; None for never."""

    observed_at: datetime | None
    open_incidents: int
    undelivered_since: datetime | None


@dataclass(frozen=True)
class FirstDeadLetter:
    """The stream of a view that was parked first."""

    decider: str
    decider_id: str
    attempts: int
    last_error: str | None
    parked_at: datetime


class AlertStore(SqlFunctions):
    """The functions for alerts. Every method raises the `MillraceError` of its SQL function."""

    def claim_look(self, every_s: int, sources: Sequence[str]) -> list[Turn]:
        """Take the turn to look at sources for so many seconds; return those that nobody else has it for."""
        return self._all(Turn, "select * from event_store.claim_look(%s, %s)", (every_s, [*sources]))

    def observe_incidents(
        self,
        found: Sequence[Mapping[str, object]],
        sources: Sequence[str],
        hold_s: int = 120,
        looked_at: datetime | None = None,
    ) -> int:
        """Store what was seen and which sources were read; return how many incidents are open.

        What a look said that began after `looked_at` stays; None for now.
        """
        return self._value(
            int,
            "select event_store.observe_incidents(%s, %s, %s, %s)",
            (Jsonb([*found]), [*sources], hold_s, looked_at),
        )

    def claim_alert(self, lease_s: int) -> list[ClaimedIncident]:
        """Lease the next message that is due and return its incidents; none if no message is due."""
        return self._all(ClaimedIncident, "select * from event_store.claim_alert(%s)", (lease_s,))

    def settle_alert(self, message_id: UUID, lease_token: int, error: str | None = None) -> bool:
        """Say that a message arrived, or why not; return whether that counted."""
        return self._value(bool, "select event_store.settle_alert(%s, %s, %s)", (message_id, lease_token, error))

    def open_incidents(self) -> list[OpenIncident]:
        """Return what is wrong now, and what is over and was not told yet, the oldest first."""
        return self._all(OpenIncident, "select * from event_store.open_incidents()")

    def alert_state(self) -> AlertState:
        """Return whether somebody looks, and whether messages arrive."""
        return self._one(AlertState, "select * from event_store.alert_state()")

    def first_dead_letter(self, view: str) -> FirstDeadLetter | None:
        """Return the stream of a view that was parked first; None if there is none."""
        return self._first(FirstDeadLetter, "select * from event_store.first_dead_letter(%s)", (view,))
