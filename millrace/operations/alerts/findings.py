"""What a source of alerts reports: a problem, its page in the UI, and how long it must last before an alert.

Not here: the judgement (`standing.sql`, and Dagster's in `millrace.platform_defs.standing`).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol
from urllib.parse import quote

from millrace.event_store import Problem
from millrace.event_store.platform import PlatformStore
from millrace.redact import masked, printable

# by kind, how many seconds a problem lasts before its alert; other kinds alert at once
ALERT_AFTER_S = {
    "late": 120, "build_fails": 120, "capture_idle": 300, "stopped_table": 300, "not_sequenced": 60, "unreadable": 120,
    "run": 120, "location": 120, "queue": 120, "daemon": 120, "service": 120,
}  # fmt: skip
# a Dagster daemon that is silent for longer is dead
DAEMON_IDLE_S = 300
# the UI's page about a problem of the store
PAGES = {
    "read_model": "/assets/read_models/{subject}?view=checks",
    "log": "/assets/event_store/event_log?view=checks",
    "view": "/assets/event_store/stream_locks?view=checks",
    "decider": "/assets/event_store/scheduled_events?view=checks",
    "producer": "/assets/event_store/producers?view=checks",
    "capture": "/assets/change_capture/wal_events?view=checks",
}
# the most bytes that are stored; a cause is the text of an error, and may be long
CAUSE_BYTES, SUBJECT_BYTES, PAGE_BYTES = 4000, 500, 1000


@dataclass(frozen=True)
class Finding(Problem):
    """A problem that is alerted on, and the path of its page in the UI; empty for no page."""

    page: str = ""

    def fields(self) -> dict[str, object]:
        """Return it as `observe_incidents` takes it."""
        return {
            **asdict(self),
            "since": self.since.isoformat() if self.since else None,
            "subject": shortened(self.subject, SUBJECT_BYTES),
            "what": cut(clean(self.what), 2 * SUBJECT_BYTES),
            # the text of an error may quote a connection string
            "cause": cut(clean(masked(self.cause)), CAUSE_BYTES),
            "remedy": cut(clean(self.remedy), CAUSE_BYTES),
            "page": self.page if len(self.page.encode(errors="replace")) <= PAGE_BYTES else "",
            "wait_s": ALERT_AFTER_S.get(self.kind, 0),
        }


class Source(Protocol):
    """A system that knows its own problems."""

    name: str

    def found(self) -> Sequence[Finding]:
        """Return what is wrong now; an error means that this is unknown."""


class StoreSource:
    """The event store, by its own `standing`."""

    name = "event_store"

    def __init__(self, store: PlatformStore) -> None:
        self._store = store

    def found(self) -> Sequence[Finding]:
        """Return the problems that are alerted on."""
        return [
            Finding(**vars(each), page=PAGES[each.about].format(subject=quote(each.subject, safe="")))
            for each in self._store.standing()
            if each.severity != "note"
        ]


def unreadable(source: str, error: Exception) -> Finding:
    """Return the finding that a source cannot be read."""
    first_line = (str(error).strip().splitlines() or [""])[0]
    return Finding(
        "unreadable", "source", source, None, "page", f"What {source} knows cannot be read", f"{type(error).__name__}: {first_line}",
        "Faults there are not seen. Is its database up, and reachable from where `millrace run sequencer` runs?",
    )  # fmt: skip


def shortened(text: str, most: int) -> str:
    """Return a text that fits; two long texts that differ only at their ends stay different."""
    text = clean(text)
    if len(text.encode()) <= most:
        return text
    return f"{cut(text, most - 20)} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def clean(text: str) -> str:
    """Return a text that Postgres stores and a terminal shows: no control characters, no halves of characters."""
    return printable(text.encode(errors="replace").decode()).strip()


def cut(text: str, most: int) -> str:
    """Return the beginning of a text, at most `most` bytes."""
    if len(text.encode()) <= most:
        return text
    return text.encode()[: most - 4].decode(errors="ignore") + " …"


def age(seconds: float) -> str:
    """Return an age in words for reading at a glance."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
