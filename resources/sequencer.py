"""The loop that keeps the log in order: sequences new events, dispatches them to rows views, ends overdue transactions.

Belongs here: when to call. Not here: the algorithm (`sequence_events.sql`, `dispatch_events.sql`,
`expire_transactions.sql`).

Bulk consumers sequence for themselves. The loop helps consumers that work in long transactions, and keeps every lag
short. Any number of loops may run: they take turns.
"""

import logging
import threading
import time
from contextlib import suppress

import psycopg
from tenacity import Retrying, before_sleep_log, retry_if_exception_type, sleep_using_event, wait_exponential

from millrace.resources.errors import UnknownView
from millrace.resources.event_store import EventStore
from millrace.resources.producers import ProducerStore

PAUSE_S = 0.2
EXPIRE_EVERY_S = 60
SHORTEST_PAUSE_S = 0.01

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
        expire_at = time.monotonic()
        while not stop.is_set():
            if time.monotonic() >= expire_at:
                producers.expire_transactions()
                expire_at = time.monotonic() + EXPIRE_EVERY_S
            moved = store.sequence_events()
            for view in store.poll_views():
                if view.mode == "rows" and view.enabled:
                    with suppress(UnknownView):  # unregistered after `poll_views` named it
                        moved += store.dispatch_events(view.view)
            # after an event the next one usually comes soon
            pause = SHORTEST_PAUSE_S if moved else min(pause * 2, pause_s)
            stop.wait(pause)
