"""Producers pause for the moment of a backup's cut, and what they did before is in the log of that cut."""

import pytest
from psycopg.errors import LockNotAvailable

from millrace.resources.event_store import EventStore
from millrace.resources.producers import ProducerStore
from tests.support.factories import Connect, append_to, start, wait_blocked
from tests.support.producing.messages import another, begin, do, opened, producer, staged

__all__ = ["producer"]


def test_no_message_is_judged_or_committed_until_the_transaction_ends_and_others_go_on(
    producer: ProducerStore, connect: Connect
) -> None:
    transaction = staged(producer, 0)
    holder, judged, committed = connect(autocommit=False), another(connect), another(connect)
    ProducerStore(holder).hold_producers()
    calls = [start(lambda: begin(judged, 0).status), start(lambda: committed.commit_transaction(transaction).outcome)]
    for store in (judged, committed):
        wait_blocked(producer.connection, store.connection.info.backend_pid)
    append_to(EventStore(producer.connection), "o-1")
    assert EventStore(producer.connection).sequence_events() == 1
    assert producer.producer_statistics("p")[0].received == 1
    holder.commit()
    assert calls[1].result(20) == "committed"
    assert calls[0].result(20) in {"opened", "duplicate"}


def test_it_waits_for_who_is_at_it(producer: ProducerStore, connect: Connect) -> None:
    transaction = opened(producer, 0)
    busy = ProducerStore(connect(autocommit=False))
    busy.commit_transaction(transaction)
    producer.connection.execute("set lock_timeout = '50ms'")
    with pytest.raises(LockNotAvailable):
        producer.hold_producers()
    busy.connection.commit()
    assert producer.hold_producers()


def test_what_is_committed_is_sequenced_only_when_all_of_it_is(producer: ProducerStore, connect: Connect) -> None:
    assert producer.is_sequenced(producer.hold_producers())
    do(producer, 0)
    committed = producer.hold_producers()
    assert not producer.is_sequenced(committed)
    late = EventStore(connect(autocommit=False))
    append_to(late, "late")
    append_to(EventStore(producer.connection), "o-1")
    assert not producer.is_sequenced(committed)
    EventStore(producer.connection).sequence_events()
    assert producer.is_sequenced(committed)
    late.connection.commit()
    # it is none of what was committed then
    assert producer.is_sequenced(committed)
    assert not producer.is_sequenced(producer.hold_producers())
    EventStore(producer.connection).sequence_events()
    assert producer.is_sequenced(producer.hold_producers())


def test_an_event_that_another_session_commits_while_it_sequences_is_missed_and_that_is_seen(
    producer: ProducerStore, connect: Connect
) -> None:
    """A sequencer that looked before a commit returns 0 to us: only is_sequenced tells."""
    sequencing = EventStore(connect(autocommit=False))
    do(producer, 0)
    assert sequencing.sequence_events() == 2
    do(producer, 1)
    committed = producer.hold_producers()
    assert EventStore(producer.connection).sequence_events() == 0
    assert not producer.is_sequenced(committed)
    sequencing.connection.commit()
    assert not producer.is_sequenced(committed)
    assert EventStore(producer.connection).sequence_events() == 2
    assert producer.is_sequenced(committed)
