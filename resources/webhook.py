"""Pushes the events of a rows view to its URL by HTTP POST.

Belongs here: one delivery and what its answer means. Not here: order, leases and redelivery; those are the store's.

Any answer 2xx acknowledges the event; anything else (also a redirect, which would lose the body), or no answer, gives it
back for a later try. The receiver may see an event again (a lost answer), never out of its stream's order; `event_id` tells.
"""

import time
from contextlib import suppress
from dataclasses import asdict

import psycopg
import requests

from resources.consumer import DrainReport
from resources.errors import MillraceError, NotInFlight
from resources.event_store import EventStore, RecordedEvent

TIMEOUT_S = 10.0
RETRY_MS = 5_000
LIMIT = 100
# Past the end of a lock another pusher sends the same event, and then its followers: nothing is sent so late. This and
# not the view's lock_timeout_s, which may be shorter than one delivery.
LOCK_S = 300


def push_events(dsn: str, view: str, *, budget_s: float, idle_s: float) -> DrainReport:
    """Deliver events until nothing came for `idle_s` or the budget of seconds is used up.

    Raises:
        MillraceError: The view has no URL.
        UnknownView: The view is not registered.
    """
    report = DrainReport()
    started = busy_at = time.monotonic()
    with psycopg.connect(dsn, autocommit=True) as connection, requests.Session() as session:
        store = EventStore(connection)
        row = next((row for row in store.poll_views() if row.view == view), None)
        if row is None or not row.edge_function_url:
            raise MillraceError(
                f"View {view} has nothing to drain it into.",
                detail="It is neither declared in assets/read_models nor registered with an edge_function_url.",
                hint="Declare a read model for it, or register it with a URL.",
            )
        store.attach_consumer(view)
        while time.monotonic() - started < budget_s:
            began = time.monotonic()
            events = store.stream_events(view, LIMIT, LOCK_S)
            if not events:
                if time.monotonic() - busy_at >= idle_s:
                    break
                time.sleep(row.pooling_delay_s or 1)
                continue
            for event in events:
                now = time.monotonic()
                with suppress(NotInFlight):  # its lock ended: it is another pusher's now
                    # a delivery may take the timeout twice: to connect, and to be answered
                    if now - started >= budget_s or now - began + 2 * TIMEOUT_S > LOCK_S:
                        store.nack_event(view, event.decider_id)
                    elif _delivered(session, row.edge_function_url, event):
                        store.ack_event(view, event.decider_id, event.offset)
                        report.events += 1
                    else:
                        store.schedule_nack_event(view, event.decider_id, RETRY_MS)
            report.batches += 1
            busy_at = time.monotonic()
            report.busy_s += busy_at - began
    return report


def _delivered(session: requests.Session, url: str, event: RecordedEvent) -> bool:
    body = {name: value if name == "data" else _text(value) for name, value in asdict(event).items()}
    try:
        # not `ok`, which is also true for what is neither success nor error
        return session.post(url, json=body, timeout=TIMEOUT_S, allow_redirects=False).status_code // 100 == 2
    except requests.RequestException:
        return False


def _text(value: object) -> object:
    return value if value is None or isinstance(value, bool | int) else str(value)
