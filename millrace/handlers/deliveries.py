"""What one consumer holds: events that wait for a thread, events that are being handled, answers for the store.

An event leaves `ready` and `running` by `dict.pop`, so only one thread gets it. Of the events that may have killed a
process, one at a time is handled, until the store has its answer: if this process dies, too, that event killed it.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue

from millrace.event_store import Delivery
from millrace.handlers.handling import Outcome

Stream = tuple[str, str]


@dataclass(eq=False, slots=True)
class Held:
    """An event that was leased.

    Attributes:
        event: The event.
        locked_at: When its lock was taken or extended, by the monotonic clock.
        started_at: When its handler was called.
        thread: The thread that handles it.
        timed_out: Whether its handler took longer than it may.
        alone: Whether it holds `Deliveries.suspects`.
    """

    event: Delivery
    locked_at: float
    started_at: float = 0.0
    thread: "threading.Thread | None" = None
    timed_out: bool = False
    alone: bool = False

    @property
    def stream(self) -> Stream:
        """Its decider and decider_id."""
        return self.event.decider, self.event.decider_id


@dataclass
class Deliveries:
    """All events of a consumer.

    Attributes:
        queue: Events that wait for a thread, in order; some of them may have been given back. None ends a thread.
        ready: Events that wait for a thread, by lease token.
        running: Events that are being handled, by lease token.
        still_running: Events with a handler that still runs after they were answered or passed to another process, by
            stream.
        answers: Outcomes to report to the store.
        answered: Set with each answer.
        suspects: Held for an event that may have killed a process, until the store has the answer.
        room: Set when more may be leased.
        refill_at: The number of waiting events at which more are to be leased.
        stuck: Whether events waited so long that they were given back, and no handler has ended since.
    """

    queue: "SimpleQueue[Held | None]" = field(default_factory=SimpleQueue)
    ready: dict[int, Held] = field(default_factory=dict)
    running: dict[int, Held] = field(default_factory=dict)
    still_running: dict[Stream, Held] = field(default_factory=dict)
    answers: "deque[tuple[Held, Outcome]]" = field(default_factory=deque)
    answered: threading.Event = field(default_factory=threading.Event)
    suspects: threading.Lock = field(default_factory=threading.Lock)
    room: threading.Event = field(default_factory=threading.Event)
    refill_at: int = 0
    stuck: bool = False

    def add(self, held: Held) -> None:
        """Queue an event for a thread."""
        self.ready[held.event.lease_token] = held
        self.queue.put(held)

    def take(self) -> Held | None:
        """Wait for the next event to handle; return None to end."""
        while (held := self.queue.get()) is not None:
            token = held.event.lease_token
            if held.event.suspect:
                self.suspects.acquire()
            held.started_at, held.thread = time.monotonic(), threading.current_thread()
            # first add, then remove: the event is always in at least one
            self.running[token] = held
            if self.ready.pop(token, None) is not None:
                held.alone = held.event.suspect
                if len(self.ready) <= self.refill_at and not self.room.is_set():
                    self.room.set()
                return held
            self._remove_running(held)
            if held.event.suspect:
                self.suspects.release()
        return None

    def finish(self, held: Held, outcome: Outcome) -> bool:
        """Answer for an event after its handler ended; return False if another thread has answered."""
        self.stuck = False
        if not self._remove_running(held):
            self.still_running.pop(held.stream, None)
            return False
        self.answer(held, outcome)
        return True

    def answer(self, held: Held, outcome: Outcome) -> None:
        """Queue an answer for the store."""
        self.answers.append((held, outcome))
        if not self.answered.is_set():
            self.answered.set()

    def settle(self, held: Held) -> None:
        """Let the next event that may have killed a process be handled: the store has the answer for this one."""
        if held.alone:
            held.alone = False
            self.suspects.release()

    def give_back_ready(self, outcome: Outcome, locked_before: float) -> int:
        """Give back events that wait for a thread since before that time; return how many."""
        count = 0
        for token, held in list(self.ready.items()):
            if held.locked_at <= locked_before and self.ready.pop(token, None) is not None:
                self.answer(held, outcome)
                count += 1
        return count

    def leave_running(self, held: Held) -> bool:
        """Let a handler run on without an answer of its own; return False if it has ended meanwhile."""
        # first add, then remove: a handler that ends now takes it out again
        self.still_running[held.stream] = held
        if not self._remove_running(held):
            self.still_running.pop(held.stream, None)
            return False
        self.stuck = False
        return True

    def _remove_running(self, held: Held) -> bool:
        """Remove an event from `running`; return False if another thread has done so."""
        return self.running.pop(held.event.lease_token, None) is not None

    def take_answers(self) -> list[tuple[Held, Outcome]]:
        """Take all answers."""
        self.answered.clear()
        found = []
        while self.answers:
            found.append(self.answers.popleft())
        return found

    def busy_streams(self) -> set[Stream]:
        """Return the streams that have a running handler."""
        return {held.stream for held in list(self.running.values())} | set(self.still_running.copy())
