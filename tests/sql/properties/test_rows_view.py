"""Random lives of a rows view: leases, answers by the event's present or earlier holder, and passing time."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from millrace.errors import Malformed, NotInFlight
from millrace.event_store import Delivery, Event, Lock
from tests.support.factories import Connect, rows
from tests.support.views.view_lives import LIMIT_S, Life, Seek, consumers, durations, live, picks, seeks, stream_numbers
from tests.support.views.view_model import NEVER, Consumer, Entry, Name, Stream, Taken

# the answer, the kind of token, which of the latest deliveries, and the error of the offset
answers = st.lists(
    st.tuples(
        st.sampled_from(["ack", "ack", "ack", "fail", "nack", "schedule_nack", "extend"]),
        st.sampled_from(["own", "own", "none", "wrong"]),
        picks,
        st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
    ),
    max_size=4,
)


class RowsLife(Life):
    """The actions of a rows view's consumers."""

    mode = "rows"

    def pump(self) -> None:
        self.sequence(0)
        self.dispatch(5000)
        self.the_store_and_the_model_agree_on_what_is_pending()

    @rule(window=st.sampled_from([5000, 1, 2]))
    def dispatch(self, window: int) -> None:
        self.operator.dispatch_events("v", window)

    @rule(
        number=consumers, limit=st.sampled_from([1, 2, 100]), seconds=durations, tokens=st.booleans(), answers=answers
    )
    def lease(
        self, number: int, limit: int, seconds: int, tokens: bool, answers: list[tuple[str, str, int, int]]
    ) -> None:
        self.pump()
        self.take(self.consumers[number], limit, seconds, tokens=tokens)
        self.answer_all(number, answers)

    @rule(number=consumers, other=consumers, tokens=st.booleans(), answers=answers)
    def take_over(self, number: int, other: int, tokens: bool, answers: list[tuple[str, str, int, int]]) -> None:
        """Let the locks of one consumer expire and another get its events; then either answers."""
        self.pump()
        self.take(self.consumers[number], 2, 10, tokens=tokens)
        self.pass_time(10)
        self.take(self.consumers[other], 2, 60, tokens=tokens)
        self.answer_all(number, answers)

    def take(self, consumer: Consumer, limit: int, seconds: int, *, tokens: bool) -> list[Taken]:
        due = [
            name
            for name, state in self.streams.items()
            if self.enabled
            and state.is_free(self.now)
            and not self.held_by_others(consumer, name)
            and (entries := self.pending(name))
            and entries[0].position < self.positions[state.partition]
        ]
        fetch = consumer.store.lease_events if tokens else consumer.store.stream_events
        events: Sequence[Event] = fetch("v", limit, seconds)
        assert len(events) <= limit
        if consumer.transaction:
            consumer.transaction.looked = True
            consumer.transaction.leased |= self.enabled
        log = self.log_of(consumer)
        given_up = self.given_up(consumer)
        given = [self.deliver(consumer, event, seconds, log) for event in events]
        self.deliveries += given
        if len(given) + len(given_up) < limit:
            assert {*due} <= {*given_up, *(delivery.stream for delivery in given)}, "a stream is due and not delivered"
        if due:
            assert given or given_up
        return given

    def deliver(self, consumer: Consumer, event: Event, seconds: int, log: dict[Name, list[Entry]]) -> Taken:
        name = (event.decider, event.decider_id)
        assert self.enabled
        assert not self.held_by_others(consumer, name)
        state = self.touch(consumer, name)
        assert state.is_free(self.now), "delivered while it is held, waits or is parked"
        assert event.offset == self.pending(name, log=log)[0].offset, "not the stream's next event"
        assert state.in_flight is None or state.attempts < self.max_attempts, "delivered more often than allowed"
        state.attempts += 1
        state.in_flight, state.until = event.offset, self.now + seconds
        state.token = None
        if isinstance(event, Delivery):
            assert event.attempt == state.attempts
            assert all(event.lease_token > (delivery.token or 0) for delivery in self.deliveries)
            state.token = event.lease_token
        return Taken(name, event.offset, state.token)

    def given_up(self, consumer: Consumer) -> list[Name]:
        """Record the streams that were delivered too often without an answer."""
        parked = rows(
            consumer.store.connection,
            "select decider, decider_id from event_store.stream_locks where view = 'v' and parked_at is not null",
        )
        news = [name for name in parked if not self.streams[name].parked]
        for name in news:
            state = self.touch(consumer, name)
            assert state.is_free(self.now)
            assert state.in_flight is not None
            assert state.attempts >= self.max_attempts
            state.in_flight, state.parked, state.until = None, True, NEVER
        return news

    def answer_all(self, number: int, answers: list[tuple[str, str, int, int]]) -> None:
        """Answer for deliveries of any consumer, in force or not, and then fetch all free events."""
        for answer, token, pick, off_by in answers:
            if self.deliveries:
                self.answer(number, pick, answer, token, off_by)
        self.take(self.consumers[number], 100, 60, tokens=True)

    def answer(self, number: int, pick: int, answer: str, token: str, off_by: int = 0, seconds: int = 10) -> None:
        """Answer for some delivery of any consumer, in force or not."""
        consumer, delivery = self.consumers[number], self.deliveries[-1 - pick % len(self.deliveries)]
        decider_id, offset = delivery.stream[1], max(delivery.offset + off_by, 1)
        stated = None if delivery.token is None or token == "none" else delivery.token + (token == "wrong") * 1000
        store = consumer.store
        calls: dict[str, Callable[[], list[Lock]]] = {
            "ack": lambda: store.ack_event("v", decider_id, offset, stated),
            "nack": lambda: store.nack_event("v", decider_id, offset, stated),
            "schedule_nack": lambda: store.schedule_nack_event("v", decider_id, seconds * 1000, offset, stated),
            "fail": lambda: store.fail_event("v", decider_id, offset, "it failed", stated),
            "extend": lambda: store.extend_lock("v", decider_id, offset, seconds, stated),
        }
        call = calls[answer]
        namesakes = [name for name in self.streams if name[1] == decider_id]
        if any(self.held_by_others(consumer, name) for name in namesakes):
            return
        held = [name for name in namesakes if self.streams[name].holds(offset, stated, self.now)]
        if not held:
            self.refused(consumer, NotInFlight, call)
            return
        (lock,) = call()
        assert lock.decider_id == decider_id
        self.answered(self.touch(consumer, held[0]), answer, seconds)

    def answered(self, state: Stream, answer: str, seconds: int) -> None:
        if answer == "ack":
            assert state.in_flight is not None
            state.acknowledge(state.in_flight, self.now)
        elif answer == "fail":
            state.fail(state.attempts, self.max_attempts, self.now)
        elif answer == "extend":
            state.until = self.now + seconds
        else:
            state.in_flight, state.attempts = None, max(state.attempts - 1, 0)
            state.until = self.now + (seconds if answer == "schedule_nack" else 0)

    @precondition(lambda self: self.deliveries)
    @rule(number=consumers, pick=picks)
    def give_back_whatever_is_in_flight(self, number: int, pick: int) -> None:
        """Answer without an offset, as fstore-sql's clients do."""
        consumer, delivery = self.consumers[number], self.deliveries[-1 - pick % len(self.deliveries)]
        namesakes = [name for name in self.streams if name[1] == delivery.stream[1]]
        if any(self.held_by_others(consumer, name) for name in namesakes):
            return
        held = [name for name in namesakes if self.streams[name].holds(None, None, self.now)]
        call = partial(consumer.store.nack_event, "v", delivery.stream[1])
        if len(held) == 1:
            call()
            self.answered(self.touch(consumer, held[0]), "nack", 0)
        else:
            self.refused(consumer, Malformed if held else NotInFlight, call)

    @precondition(lambda self: self.deliveries)
    @rule(number=consumers, chosen=st.lists(picks, min_size=1, max_size=3), tokens=st.booleans())
    def acknowledge_many(self, number: int, chosen: list[int], tokens: bool) -> None:
        consumer = self.consumers[number]
        deliveries = [
            delivery
            for pick in chosen
            for delivery in [self.deliveries[-1 - pick % len(self.deliveries)]]
            if not self.held_by_others(consumer, delivery.stream) and (delivery.token is not None or not tokens)
        ]
        expected = {
            delivery.offset: delivery.stream
            for delivery in deliveries
            if self.streams[delivery.stream].holds(delivery.offset, delivery.token if tokens else None, self.now)
        }
        acknowledged = consumer.store.ack_events(
            "v",
            [delivery.offset for delivery in deliveries],
            [delivery.token for delivery in deliveries if delivery.token is not None] if tokens else None,
        )
        assert acknowledged == set(expected)
        for offset, name in expected.items():
            self.touch(consumer, name).acknowledge(offset, self.now)

    @rule(number=consumers, limit=st.sampled_from([1, 100]))
    def work(self, number: int, limit: int) -> None:
        """Act as a healthy consumer."""
        consumer = self.consumers[number]
        given = self.take(consumer, limit, 60, tokens=True)
        offsets = [delivery.offset for delivery in given]
        tokens = [delivery.token for delivery in given if delivery.token is not None]
        assert consumer.store.ack_events("v", offsets, tokens) == set(offsets)
        for delivery in given:
            self.touch(consumer, delivery.stream).acknowledge(delivery.offset, self.now)

    @rule(number=consumers, stream=stream_numbers)
    def run_ahead(self, number: int, stream: int) -> None:
        """Acknowledge a stream beyond the checkpoint, as a long transaction that leaves dispatching to others can."""
        self.append([(stream, "placed")] * 3)
        self.sequence(0)
        self.dispatch(1)
        self.the_store_and_the_model_agree_on_what_is_pending()
        with self.one_transaction(self.consumers[number]):
            for _ in range(3):
                self.work(number, 100)
        self.dispatch(1)

    @rule(number=consumers, how=seeks)
    def answer_late(self, number: int, how: Seek) -> None:
        """Acknowledge deliveries from before the view was moved."""
        self.pump()
        given = self.take(self.consumers[number], 100, 10, tokens=True)
        self.seek_when_idle(how)
        for pick in range(len(given)):
            self.answer(number, pick, "ack", "own")

    def fail_with_everything(self, number: int) -> None:
        self.pump()
        for pick in range(len(self.take(self.consumers[number], 100, 60, tokens=True))):
            self.answer(number, pick, "fail", "own")

    def drain(self) -> None:
        for _ in range(2 + sum(len(self.pending(name)) for name in self.streams)):
            self.pass_time(7200)
            self.dispatch(5000)
            self.the_store_and_the_model_agree_on_what_is_pending()
            if self.parked():
                self.retry(0, every=True)
            self.work(0, 100)
        self.pass_time(1)
        self.dispatch(5000)
        self.observe()
        self.positions = self.positions_of(self.operator)


@pytest.mark.timeout(LIMIT_S)
def test_each_event_of_a_rows_view_is_acknowledged_once(connect: Connect, pytestconfig: pytest.Config) -> None:
    live(RowsLife, connect, pytestconfig)
