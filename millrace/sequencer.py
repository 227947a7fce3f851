"""The loop that keeps the log in order: sequences new events, dispatches them to rows views, ends overdue transactions.

Bulk consumers sequence for themselves. The loop helps consumers that work in long transactions, and keeps every lag
short. Any number of loops may run: they take turns.
"""

import logging
import threading
import time
from collections.abc import Iterable

import psycopg
from tenacity import before_sleep_log

from millrace.errors import MillraceError, UnknownView, WrongMode
from millrace.event_store import SequencerHolder, WantingView
from millrace.event_store.platform import PlatformStore
from millrace.event_store.wake_ups import APPENDED, Wakeups
from millrace.patience import GLANCE_S, PATIENCE_S, PAUSE_S, POLL_S, while_away
from millrace.postgres import connecting
from millrace.producers import ProducerStore

# without a sign of the sequencer for this long, consumers sequence and dispatch themselves
ATTENDED_S = 2
# a look at all views may take at most a tenth of the time
CHECK_SHARE = 10
# how long it dispatches before it sequences again
SLICE_S = 0.05
# a call's window with 1,024 log partitions, the least one: a call that passed fewer positions has passed all
WINDOW = 19
# how often to dispatch a view without new events, to remove its done locks; after 15 s consumers would do it themselves
DISPATCH_ALL_EVERY_S = 10
# so no consumer is woken more than a hundred times a second
SHORTEST_PAUSE_S = 0.01
# while events come more often than this, sleeping costs more than it saves
AWAKE_S = 0.05

logger = logging.getLogger(__name__)


def run_sequencer(dsn: str, stop: threading.Event, *, pause_s: float = POLL_S) -> None:
    """Sequence and dispatch until `stop` is set; wake consumers that wait for positions. Sleep while no event is new.

    An append ends the sleep. Where notifications cannot come, the sequencer looks every `pause_s` seconds. The loop
    survives restarts of the server, a silent server, and one that takes no writes for a while.
    """
    patiently = while_away(connecting.passes, stop, before_sleep_log(logger, logging.WARNING), quietly=True)
    patiently(_run, dsn, stop, pause_s)


def _run(dsn: str, stop: threading.Event, pause_s: float) -> None:
    with (
        connecting.connect(dsn, answer_s=connecting.ANSWER_S, stop=stop) as connection,
        Wakeups(dsn, APPENDED, poll_s=pause_s) as appends,
    ):
        rounds = _Rounds(connection)
        pause = SHORTEST_PAUSE_S
        while not stop.is_set():
            sleeps = appends.listening and pause >= AWAKE_S
            # before the look: events committed before this call do not wake the sequencer
            check_soon = rounds.attend(sleeps=sleeps)
            # after an event the next one usually comes soon
            pause = SHORTEST_PAUSE_S if rounds.work() else min(pause * 2, pause_s)
            if sleeps and pause > SHORTEST_PAUSE_S:
                if appends.wait(pause_s if check_soon else PAUSE_S, stop) is not None:
                    pause = SHORTEST_PAUSE_S
            elif appends.listening:
                stop.wait(pause)
            else:
                appends.wait(pause, stop)
        rounds.leave()


class _Rounds:
    """The sequencer's rounds on one connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.store, self.producers = PlatformStore(connection), ProducerStore(connection)
        # the views to dispatch, by owner: owners take turns, and a view keeps its place
        self.pending: dict[str, dict[str, None]] = {}
        # view -> the backoff after its last error, and the end of that backoff
        self.aside: dict[str, tuple[float, float]] = {}
        # the marks that were announced last, and the last ones announced while nothing was pending
        self.marks: list[int] = []
        self.settled: list[int] = []
        self.expire_at = self.check_at = self.dispatch_all_at = time.monotonic()
        self.attend_at = 0.0

    def work(self) -> int:
        """Sequence, dispatch for a slice of time, and announce new positions; return how much was done and is left."""
        if time.monotonic() >= self.expire_at:
            self.producers.expire_transactions()
            self.expire_at = time.monotonic() + PATIENCE_S
        moved = self.store.sequence_events()
        if moved:
            self._want(self.store.wanting_views(self.marks))
        now = time.monotonic()
        if now >= self.check_at:
            every = self.store.wanting_views([])
            if now >= self.dispatch_all_at:
                self._want(every)
                self.dispatch_all_at = now + DISPATCH_ALL_EVERY_S
                if ended := self.store.end_log_holder():
                    logger.warning("Ended %s: it idled in a transaction that held up others.", ended)
            else:
                polled = self.store.poll_views([each.view for each in every])
                behind = {view.view for view in polled if view.due > view.retries}
                self._want(each for each in every if each.view in behind)
            took = time.monotonic() - now
            # a new view need not wait for this: until then the consumer that fetches its events dispatches them
            self.check_at = now + max(PAUSE_S, CHECK_SHARE * took)
        passed = self._dispatch()
        # a consumer that was woken while views were pending may have found nothing: wake it again
        announced, self.marks = self.marks, self.store.announce_positions(self.marks if self.pending else self.settled)
        if not moved and self.marks != announced:
            # another process sequenced, which announces nothing
            self._want(self.store.wanting_views(announced))
        if not self.pending:
            self.settled = self.marks
        return moved + passed + len(self.pending)

    def _want(self, views: Iterable[WantingView]) -> None:
        now = time.monotonic()
        for each in views:
            if now >= self.aside.get(each.view, (0.0, 0.0))[1]:
                self.pending.setdefault(each.owner, {})[each.view] = None

    def _dispatch(self) -> int:
        """Dispatch new events, owners in turn, until the time slice is over; return the number of positions passed.

        Many views of one owner delay neither views of other owners nor the log: the rest follows after the log was
        sequenced again.
        """
        passed = 0
        again = []
        until = time.monotonic() + SLICE_S
        while self.pending:
            owner, views = next(iter(self.pending.items()))
            view = next(iter(views))
            del self.pending[owner], views[view]
            if views:
                self.pending[owner] = views
            positions = self._dispatched(view)
            passed += positions
            if positions >= WINDOW:
                again.append(WantingView(view, owner))
            if time.monotonic() >= until:
                break
        self._want(again)
        return passed

    def _dispatched(self, view: str) -> int:
        """Dispatch to one view; an error of this view alone sets it aside, and does not delay other views."""
        try:
            positions = self.store.dispatch_events(view)
        except (UnknownView, WrongMode):  # unregistered, or changed, after it was named
            positions = 0
        except (MillraceError, psycopg.Error) as error:
            if self.store.connection.closed or isinstance(error, connecting.NO_WRITES):
                raise
            pause_s = min(2 * self.aside.get(view, (PAUSE_S / 2, 0.0))[0], PATIENCE_S)
            self.aside[view] = pause_s, time.monotonic() + pause_s
            why = str(error).partition("\n")[0]
            logger.warning("View %s is set aside for %.0f s: %s", view, pause_s, why)
            self.store.fail_dispatch(view, why)
            return 0
        self.aside.pop(view, None)
        return positions

    def attend(self, *, sleeps: bool) -> bool:
        """Record that this loop is at work, unless that was done just now; return whether to look again soon."""
        now = time.monotonic()
        if not sleeps and now < self.attend_at:
            return True
        # appends take it as asleep until the next call
        self.attend_at = 0.0 if sleeps else now + ATTENDED_S / 2
        return self.store.attend_log(ATTENDED_S, sleeps)

    def leave(self) -> None:
        """Record that no sequencer is at work: consumers sequence and dispatch themselves."""
        self.store.attend_log(0)


def held_up(store: PlatformStore, *, seconds: float = 2 * PAUSE_S) -> SequencerHolder | None:
    """Return the session with a transaction that blocks the whole log for `seconds`; None if there is none.

    Even a sequencer that is far behind holds the row for less time in a call.
    """
    first = store.sequencer_holder()
    deadline = time.monotonic() + seconds
    holder = first
    while holder is not None and first is not None and time.monotonic() < deadline:
        time.sleep(GLANCE_S)
        holder = store.sequencer_holder()
        if holder is not None and holder.transaction_id != first.transaction_id:
            holder = None
    return holder
