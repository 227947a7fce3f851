"""Pushes the events of a rows view to its URL by HTTP POST.

Belongs here: one delivery, and what its answer means. Not here: order, locks and redelivery; those are the store's.

An answer 2xx acknowledges the event.

An answer 4xx, except 408, 425 and 429, says that the receiver refuses this event. The event failed: it is sent again,
later each time, and becomes a dead letter in the end, with the answer as its error. Its stream waits, others go on.

Any other answer (also a redirect, which would lose the body), or none, says that the receiver is not there. The event
is given back for a later try, however often, with the answer as its lock's error.

Where an answer was lost, the receiver sees the event again; it tells that by `event_id`. It never sees an event out
of its stream's order.
"""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from uuid import uuid4

import psycopg
import requests

from millrace.resources.errors import MillraceError, NotInFlight
from millrace.resources.event_store import EventStore, LeasedEvent, RecordedEvent

TIMEOUT_S = 10.0
RETRY_MS = 5_000
LIMIT = 100
# How long locks are taken for. The view's lock_timeout_s may be shorter than one delivery. Nothing is sent past the
# end of a lock: another pusher sends the same event then, and its followers after it.
LOCK_S = 300
# a consumer that did not say for 15 minutes that it lives counts as dead
ATTACH_EVERY_S = 60
# answers 4xx that say "later", not "never"
NOT_NOW = {408, 425, 429}
ERROR_CHARACTERS = 500
JSON = {"Content-Type": "application/json"}


@dataclass
class PushReport:
    """The work of a push: events that were acknowledged, batches that were leased, seconds that both took."""

    events: int = 0
    batches: int = 0
    busy_s: float = 0.0


def push_events(dsn: str, view: str, *, budget_s: float, idle_s: float) -> PushReport:
    """Deliver events until nothing came for `idle_s` or the budget of seconds is used up.

    Raises:
        MillraceError: The view has no URL.
        UnknownView: The view is not registered.
    """
    report = PushReport()
    started = busy_at = time.monotonic()
    with psycopg.connect(dsn, autocommit=True) as connection, requests.Session() as session:
        store = EventStore(connection)
        row = next((row for row in store.poll_views() if row.view == view), None)
        if row is None or not row.edge_function_url:
            raise MillraceError(
                f"View {view} has nothing to drain it into.",
                detail="It is no view of a declared read model, and not registered with an edge_function_url.",
                hint="Declare a read model for it, or register it with a URL.",
            )
        consumer, attach_at = f"push {uuid4()}", started
        while time.monotonic() - started < budget_s:
            began = time.monotonic()
            if began >= attach_at:
                store.attach_consumer(view, consumer)
                attach_at = began + ATTACH_EVERY_S
            events = store.lease_events(view, LIMIT, LOCK_S)
            if not events:
                if time.monotonic() - busy_at >= idle_s:
                    break
                time.sleep(row.pooling_delay_s or 1)
                continue
            for event in events:
                now = time.monotonic()
                stream, offset, token = event.decider_id, event.offset, event.lease_token
                with suppress(NotInFlight):  # its lock ended: it is another pusher's now
                    # a delivery may take the timeout thrice: to connect, to be answered, and for the answer's text
                    if now - started >= budget_s or now - began + 3 * TIMEOUT_S > LOCK_S:
                        store.nack_event(view, stream, offset, token)
                        continue
                    status, answer = _post(session, row.edge_function_url, event)
                    if status // 100 == 2:
                        store.ack_event(view, stream, offset, token)
                        report.events += 1
                    elif status // 100 == 4 and status not in NOT_NOW:
                        store.fail_event(view, stream, offset, answer, token)
                    else:
                        store.schedule_nack_event(view, stream, RETRY_MS, offset, token, answer)
            report.batches += 1
            busy_at = time.monotonic()
            report.busy_s += busy_at - began
    return report


def _post(session: requests.Session, url: str, event: LeasedEvent) -> tuple[int, str]:
    """Send one event; return the status of the answer and its text for people, 0 for no answer."""
    try:
        # streamed: the status counts, however long the body is or whatever becomes of it
        with session.post(
            url, data=_body(event).encode(), headers=JSON, timeout=TIMEOUT_S, allow_redirects=False, stream=True
        ) as response:
            return response.status_code, _text(response)
    except requests.RequestException as error:
        return 0, f"No answer: {error}"[:ERROR_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}")


def _text(response: requests.Response) -> str:
    said = b""
    with suppress(requests.RequestException):
        for piece in response.iter_content(4 * ERROR_CHARACTERS):
            said += piece
            if len(said) >= 4 * ERROR_CHARACTERS:  # a character is at most four bytes
                break
    text = f"HTTP {response.status_code} {response.reason}: {said.decode(errors='replace')[:ERROR_CHARACTERS]}"
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")  # Postgres keeps no NUL


def _body(event: LeasedEvent) -> str:
    """Return an event as JSON. Its data are the text that Postgres printed, whoever can read that."""
    values = {field.name: getattr(event, field.name) for field in fields(RecordedEvent) if field.name != "data_json"}
    known = {name: v if v is None or isinstance(v, bool | int) else str(v) for name, v in values.items()}
    return f'{json.dumps(known)[:-1]}, "data": {event.data_json}}}'
