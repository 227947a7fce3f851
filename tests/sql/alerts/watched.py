"""A store whose incidents a test sees begin and end, by a clock that it moves."""

from datetime import datetime, timedelta

import psycopg

from millrace.resources.alerts.store import AlertStore
from tests.support.factories import set_clock

START = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
MINUTE, HOUR, DAY = 60, 3600, 86_400
HOLD_S = 120
LEASE_S = 120


class Watched:
    """A store, what is wrong in it, and the seconds since the beginning."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.store = AlertStore(connection)
        self.at(0)

    def at(self, seconds: float) -> None:
        set_clock(self.store.connection, (START + timedelta(seconds=seconds)).isoformat())

    def look(self, *subjects: str, at: float | None = None, sources: tuple[str, ...] = ("a",), wait_s: int = 0) -> int:
        """Look once: these are late, as the first of the sources says."""
        if at is not None:
            self.at(at)
        return self.store.observe_incidents([seen(each, sources[0], wait_s) for each in subjects], sources, HOLD_S)

    def send(self, at: float | None = None, *, error: str | None = None) -> list[tuple[str, list[str]]]:
        """Claim and settle all that is due; return phase and subjects of each message."""
        if at is not None:
            self.at(at)
        sent = []
        while claimed := self.store.claim_alert(LEASE_S):
            assert self.store.settle_alert(claimed[0].message_id, claimed[0].lease_token, error)
            sent.append((claimed[0].phase, [each.subject for each in claimed]))
        return sent


def seen(subject: str, source: str = "a", wait_s: int = 0, **other: object) -> dict[str, object]:
    return {
        "source": source,
        "kind": "late",
        "subject": subject,
        "severity": "ticket",
        "cause": f"first cause of {subject}",
        "remedy": "look",
        "page": "",
        "wait_s": wait_s,
        **other,
    }
