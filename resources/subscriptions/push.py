"""Pushes the events of a rows view to its URL by HTTP POST.

Belongs here: what the answer to a delivery means. Not here: where pushes may go and how one is sent (`receivers`);
order, locks and redelivery, which are the store's.

An answer 2xx acknowledges the event.

An answer 4xx, except 408, 425 and 429, says that the receiver refuses this event. The event failed: it is sent again,
later each time, and becomes a dead letter in the end, with the answer's status as its error. Its stream waits, others
go on.

Any other answer (also a redirect, which would lose the body), or none, says that the receiver is not there. The event
is given back for a later try, however often, with the answer's status as its lock's error.

Where an answer was lost, the receiver sees the event again; it tells that by `event_id`. It never sees an event out
of its stream's order.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from uuid import uuid4

import psycopg

from millrace.resources.errors import MillraceError, NotInFlight
from millrace.resources.event_store import EventStore, LeasedEvent, RecordedEvent
from millrace.resources.subscriptions.receivers import Allowed, Answer, Endpoint

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
# how many answers a run tells, for Dagster keeps each
TOLD = 20
JSON = {"Content-Type": "application/json"}


@dataclass
class PushReport:
    """The work of a push: events that were acknowledged, batches that were leased, seconds that both took."""

    events: int = 0
    batches: int = 0
    busy_s: float = 0.0


def push_events(
    dsn: str,
    view: str,
    *,
    budget_s: float,
    idle_s: float,
    allowed: Sequence[str] = (),
    on_failure: Callable[[str], None] = lambda _: None,
) -> PushReport:
    """Deliver events until nothing came for `idle_s` or the budget of seconds is used up.

    Args:
        dsn: The event store.
        view: A rows view with a URL.
        budget_s: How long events are delivered at most.
        idle_s: How long nothing must have come.
        allowed: Networks and hosts that pushes may go to, besides public addresses.
        on_failure: Gets the answer's text of the first deliveries that fail, which the store does not keep.

    Raises:
        MillraceError: The view has no URL.
        UnknownView: The view is not registered.
    """
    report = PushReport()
    started = busy_at = time.monotonic()
    told = 0
    with psycopg.connect(dsn, autocommit=True) as connection, ExitStack() as stack:
        store = EventStore(connection)
        row = next(iter(store.poll_views([view])), None)
        if row is None or not row.edge_function_url:
            raise MillraceError(
                f"View {view} has nothing to drain it into.",
                detail="It is no view of a declared read model, and not registered with an edge_function_url.",
                hint="Declare a read model for it, or register it with a URL.",
            )
        consumer, attach_at = f"push {uuid4()}", started
        receiver = stack.enter_context(Endpoint(row.edge_function_url, Allowed(allowed)))
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
                    # a delivery may take the timeout twice: until it is connected, and from then on
                    if now - started >= budget_s or now - began + 2 * TIMEOUT_S > LOCK_S:
                        store.nack_event(view, stream, offset, token)
                        continue
                    answer = _post(receiver, event)
                    status = answer.status
                    if status // 100 != 2 and told < TOLD:
                        told += 1
                        on_failure(f"{event.decider} {stream}, offset {offset}: {answer.error}: {answer.said}")
                    if status // 100 == 2:
                        store.ack_event(view, stream, offset, token)
                        report.events += 1
                    elif status // 100 == 4 and status not in NOT_NOW:
                        store.fail_event(view, stream, offset, answer.error, token)
                    else:
                        store.schedule_nack_event(view, stream, RETRY_MS, offset, token, answer.error)
            report.batches += 1
            busy_at = time.monotonic()
            report.busy_s += busy_at - began
    return report


def _post(receiver: Endpoint, event: LeasedEvent) -> Answer:
    """Send one event."""
    return receiver.post(_body(event).encode(), JSON, TIMEOUT_S)


def _body(event: LeasedEvent) -> str:
    """Return an event as JSON. Its data are the text that Postgres printed, whoever can read that."""
    values = {field.name: getattr(event, field.name) for field in fields(RecordedEvent) if field.name != "data_json"}
    known = {name: v if v is None or isinstance(v, bool | int) else str(v) for name, v in values.items()}
    return f'{json.dumps(known)[:-1]}, "data": {event.data_json}}}'
