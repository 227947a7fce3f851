"""The store's functions for alerts: one method per SQL function, same name, same argument order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.types.json import Jsonb

from millrace.event_store.sql_functions import SqlFunctions


@dataclass(frozen=True)
class Incident:
    """A row of event_store.incidents; the comments on its columns explain each."""

    incident_id: UUID
    source: str
    kind: str
    subject: str
    severity: str
    what: str
    cause: str
    remedy: str
    page: str
    began_at: datetime
    confirmed: bool
    missing_since: datetime | None
    over_at: datetime | None
    told: str
    due_at: datetime
    tries: int
    failing_since: datetime | None
    last_error: str | None


@dataclass(frozen=True)
class AlertState:
    """The time of the last look, the number of open incidents, since when a message does not arrive; None for never."""

    observed_at: datetime | None
    open_incidents: int
    undelivered_since: datetime | None


class AlertStore(SqlFunctions):
    """The functions for alerts. Every method raises the `MillraceError` of its SQL function."""

    def observe_incidents(
        self, source: str, found: Sequence[Mapping[str, object]], complete: bool = True, hold_s: int = 120
    ) -> int:
        """Store what a look at a source found; return how many incidents are open."""
        return self._value(
            int,
            "select event_store_platform.observe_incidents(%s, %s, %s, %s)",
            (source, Jsonb([*found]), complete, hold_s),
        )

    def claim_alert(self) -> Incident | None:
        """Return the incident with the next due message, as it was before that; None if none is due."""
        return self._first(Incident, "select * from event_store_platform.claim_alert()")

    def settle_alert(self, incident_id: UUID, told: str, error: str | None = None) -> bool:
        """Record that the message of an incident arrived, or why not; return whether that was news."""
        return self._value(bool, "select event_store_platform.settle_alert(%s, %s, %s)", (incident_id, told, error))

    def open_incidents(self) -> list[Incident]:
        """Return incidents that are open, or over and not reported yet, the oldest first."""
        return self._all(Incident, "select * from event_store_platform.open_incidents()")

    def alert_state(self) -> AlertState:
        """Return whether an alerter looks, and whether messages arrive."""
        return self._one(AlertState, "select * from event_store_platform.alert_state()")
