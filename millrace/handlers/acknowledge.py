"""Reports the outcome of events to the store: acknowledgements in batches, failures, extended locks."""

import logging
import shlex
import threading
import time
from collections.abc import Callable, Sequence

from millrace.errors import NotInFlight
from millrace.event_store import Views
from millrace.handlers.declaration import Subscription
from millrace.handlers.deliveries import Deliveries, Held
from millrace.handlers.handling import Done, Failed, GiveBack, Lost, Outcome
from millrace.handlers.lasting_connection import LastingConnection
from millrace.handlers.log_lines import Counters, log_line
from millrace.patience import PAUSE_S
from millrace.postgres.connecting import PASSING


class Answerer:
    """Answers for the events of one consumer, and watches how long their handlers take.

    Args:
        subscription: The consumer's subscription.
        deliveries: The events that the consumer holds.
        connection: The thread's own connection.
        counters: The consumer's counters.
        on_hung: Called with each event that its handler takes too long for.
    """

    def __init__(
        self,
        subscription: Subscription,
        deliveries: Deliveries,
        connection: LastingConnection,
        counters: Counters,
        on_hung: Callable[[Held], None],
    ) -> None:
        self._subscription, self._deliveries, self._connection, self._counters = (
            subscription,
            deliveries,
            connection,
            counters,
        )
        self._on_hung = on_hung
        self._lock_s = float(subscription.lock_timeout_s)
        self._finished = threading.Event()
        # how many answers were open when the store went away: some of them may have been applied
        self.unanswered = 0

    def run(self) -> None:
        """Answer until `finish` is called and all answers are given.

        Raises:
            MillraceError: The store refuses: the view is gone, for example, or belongs to another role.
        """
        tick = min(PAUSE_S, self._lock_s / 10, self._subscription.timeout_s / 4)
        watch_at = 0.0
        while True:
            finished = self._finished.is_set()
            answers = self._deliveries.take_answers()
            self.unanswered = len(answers)
            try:
                self._send(answers)
                if time.monotonic() >= watch_at:
                    self._watch()
                    watch_at = time.monotonic() + tick
            except PASSING as error:
                if not finished and not self._finished.is_set():
                    raise
                self.unanswered += len(self._deliveries.take_answers())
                log_line(
                    logging.ERROR,
                    "answers not given",
                    view=self._subscription.view,
                    events=self.unanswered,
                    error=str(error).strip(),
                    then="they are delivered again when their locks end",
                )
                return
            self.unanswered = 0
            if finished and not self._deliveries.answers:
                return
            if not finished:
                self._deliveries.answered.wait(tick)

    def finish(self) -> None:
        """Give the last answers, and end."""
        self._finished.set()
        self._deliveries.answered.set()

    def _send(self, answers: Sequence[tuple[Held, Outcome]]) -> None:
        returned: list[Held] = []
        for held, outcome in answers:
            match outcome:
                case Done(acknowledged=True):
                    self._counters.handled += 1
                case Done():
                    returned.append(held)
                case Failed():
                    self._fail(held, outcome.error)
                case GiveBack():
                    self._give_back(held, outcome)
                case Lost():
                    self._count_lost(held)
        if returned:
            offsets, tokens = [held.event.offset for held in returned], [held.event.lease_token for held in returned]
            acknowledged = self._connection(lambda store: store.ack_events(self._subscription.view, offsets, tokens))
            self._counters.handled += len(acknowledged)
            for held in returned if len(acknowledged) < len(returned) else ():
                if held.event.offset not in acknowledged:
                    self._count_lost(held)
        for held, _ in answers:
            self._deliveries.settle(held)
        if answers:
            # the streams of these events may have a next event
            self._deliveries.room.set()

    def _fail(self, held: Held, error: str) -> None:
        event, view = held.event, self._subscription.view

        def call(store: Views) -> None:
            store.fail_event(view, event.decider_id, event.offset, error, event.lease_token)

        if self._send_one(held, call):
            self._counters.failed += 1
            parked = event.attempt >= self._subscription.max_attempts
            log_line(
                logging.ERROR if parked else logging.WARNING,
                "dead letter" if parked else "handler failed",
                **_fields(held, view),
                error=error,
                then=f"millrace dead list {shlex.quote(view)}" if parked else "its stream waits and is tried again",
            )

    def _give_back(self, held: Held, outcome: GiveBack) -> None:
        event, view = held.event, self._subscription.view
        wait_ms = int(outcome.after_s * 1000)

        def call(store: Views) -> None:
            store.schedule_nack_event(
                view, event.decider_id, wait_ms, event.offset, event.lease_token, outcome.why
            ) if wait_ms else store.nack_event(view, event.decider_id, event.offset, event.lease_token, outcome.why)

        if self._send_one(held, call):
            self._counters.given_back += 1
            if outcome.why:
                log_line(
                    logging.INFO, "given back", **_fields(held, view), why=outcome.why, again_in=f"{outcome.after_s:g}s"
                )

    def _send_one(self, held: Held, call: Callable[[Views], None]) -> bool:
        """Give one answer; return whether it counts."""
        try:
            self._connection(call)
        except NotInFlight:
            self._count_lost(held)
            return False
        return True

    def _count_lost(self, held: Held) -> None:
        self._counters.lost += 1
        log_line(
            logging.WARNING,
            "lock lost",
            **_fields(held, self._subscription.view),
            then="another consumer has the event, or answered it; this answer does not count",
        )

    def _watch(self) -> None:
        """Extend the locks of running handlers; give back events that wait too long; fail those that take too long."""
        now = time.monotonic()
        if self._deliveries.give_back_ready(GiveBack(), now - self._lock_s / 3):
            self._deliveries.stuck = True
        for held in list(self._deliveries.running.values()):
            if now - held.started_at > self._subscription.timeout_s:
                self._fail_hanging(held, now)
            elif now - held.locked_at > self._lock_s / 3:
                self._extend(held)

    def _extend(self, held: Held) -> None:
        event, view = held.event, self._subscription.view
        try:
            self._connection(
                lambda store: store.extend_lock(
                    view, event.decider_id, event.offset, self._subscription.lock_timeout_s, event.lease_token
                )
            )
        except NotInFlight:
            # its handler may have committed the acknowledgement at this very moment
            if not self._subscription.takes_connection and self._deliveries.leave_running(held):
                self._count_lost(held)
                self._deliveries.settle(held)
            return
        held.locked_at = time.monotonic()
        self._counters.extended += 1

    def _fail_hanging(self, held: Held, now: float) -> None:
        held.timed_out = True
        if not self._deliveries.leave_running(held):
            return
        self._counters.hung += 1
        thread = held.thread.name if held.thread else "?"
        seconds = now - held.started_at
        log_line(
            logging.ERROR,
            "handler hangs",
            **_fields(held, self._subscription.view),
            thread=thread,
            seconds=f"{seconds:.1f}",
        )
        self._deliveries.answer(
            held,
            Failed(
                f"The handler {self._subscription.name} did not return within {self._subscription.timeout_s:g} s; it"
                f" still runs in thread {thread}."
            ),
        )
        self._on_hung(held)


def _fields(held: Held, view: str) -> dict[str, object]:
    event = held.event
    return {
        "view": view,
        "decider": event.decider,
        "decider_id": event.decider_id,
        "event": event.event,
        "offset": event.offset,
        "attempt": event.attempt,
    }
