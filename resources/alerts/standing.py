"""What the event store says is wrong, as alerts tell it.

Belongs here: where the UI shows it. Not here: the judgement (`standing.sql`), what Dagster knows
(`millrace.platform_defs.alerts`), telling somebody (`alerter`).
"""

from collections.abc import Collection, Iterator
from urllib.parse import quote

from millrace.resources.alerts.incidents import Finding
from millrace.resources.event_store import EventStore, Problem

SOURCE = "event_store"
# where the UI shows what a problem is about, behind its address
PAGES = {
    "log": "/assets/event_store/event_log?view=checks",
    "view": "/assets/event_store/stream_locks?view=checks",
    "producer": "/assets/event_store/producers?view=checks",
    "capture": "/assets/change_capture/wal_events?view=checks",
}

Keys = Collection[tuple[str, str]]


def found_in_store(store: EventStore, _known: Keys) -> Iterator[Finding]:
    """Return what somebody is told of."""
    for each in store.standing():
        if each.severity != "note":
            yield Finding(SOURCE, each.kind, each.subject, each.cause, _page(each))


def _page(problem: Problem) -> str:
    if problem.about == "read_model":
        return f"/assets/read_models/{quote(problem.subject, safe='')}?view=checks"
    return PAGES[problem.about]
