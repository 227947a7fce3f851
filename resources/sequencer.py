"""The loop that keeps the log in order: sequences new events, dispatches them to rows views, ends overdue transactions.

Belongs here: when to call, and who keeps everybody from it. Not here: the algorithm (`sequence_events.sql`,
`dispatch_events.sql`, `expire_transactions.sql`).

Bulk consumers sequence for themselves. The loop helps consumers that work in long transactions, and keeps every lag
short. Any number of loops may run: they take turns.
"""

import logging
import threading
import time
from contextlib import suppress

import psycopg
from tenacity import Retrying, before_sleep_log, retry_if_exception_type, sleep_using_event, wait_exponential

from millrace.resources.errors import UnknownView, WrongMode
from millrace.resources.event_store import EventStore, SequencerHolder
from millrace.resources.producers import ProducerStore

PAUSE_S = 0.2
EXPIRE_EVERY_S = 60
# a view that is new is not waited for: who fetches its events dispatches them meanwhile
LOOK_EVERY_S = 1
SHORTEST_PAUSE_S = 0.01
# a call of a sequencer that is far behind takes less
HELD_S = 2.0

logger = logging.getLogger(__name__)


def run_sequencer(dsn: str, stop: threading.Event, *, pause_s: float = PAUSE_S) -> None:
    """Sequence and dispatch until `stop` is set; pause up to `pause_s` seconds while no event is new.

    The loop outlasts restarts of the server.
    """
    patiently = Retrying(
        retry=retry_if_exception_type(psycopg.OperationalError),
        wait=wait_exponential(multiplier=0.2, max=5),
        stop=lambda _: stop.is_set(),
        sleep=sleep_using_event(stop),
        before_sleep=before_sleep_log(logger, logging.WARNING),
        retry_error_callback=lambda _: None,  # `stop` was set while the server was away: the loop is over
    )
    patiently(_run, dsn, stop, pause_s)


def _run(dsn: str, stop: threading.Event, pause_s: float) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        store, producers = EventStore(connection), ProducerStore(connection)
        pause = pause_s
        expire_at = look_at = time.monotonic()
        views: list[str] = []
        while not stop.is_set():
            if time.monotonic() >= expire_at:
                producers.expire_transactions()
                expire_at = time.monotonic() + EXPIRE_EVERY_S
            moved = store.sequence_events()
            if time.monotonic() >= look_at:
                views = [view.view for view in store.poll_views() if view.mode == "rows" and view.enabled]
                look_at = time.monotonic() + LOOK_EVERY_S
            for view in views:
                with suppress(UnknownView, WrongMode):  # unregistered, or changed, after `poll_views` named it
                    moved += store.dispatch_events(view)
            # after an event the next one usually comes soon
            pause = SHORTEST_PAUSE_S if moved else min(pause * 2, pause_s)
            stop.wait(pause)


def held_up(store: EventStore, *, seconds: float = HELD_S) -> SequencerHolder | None:
    """Return the session whose transaction holds up the whole log; None if nobody does for so many seconds."""
    first = store.sequencer_holder()
    deadline = time.monotonic() + seconds
    holder = first
    while holder is not None and first is not None and time.monotonic() < deadline:
        time.sleep(0.05)
        holder = store.sequencer_holder()
        if holder is not None and holder.transaction_id != first.transaction_id:
            holder = None
    return holder


def said_of(holder: SequencerHolder) -> str:
    """Return what an operator has to know of such a session."""
    since = f", open since {holder.open_since.isoformat(timespec='seconds')}" if holder.open_since else ""
    return (
        f"Nobody gives events their positions: process {holder.pid} of login {holder.login or 'unknown'}"
        f" ({holder.application_name or 'no application name'}) holds the sequencer in an open transaction{since}."
        f" End it there, or with: select pg_terminate_backend({holder.pid})"
    )
