"""A transaction of a producer: invisible before its commit, complete and once after it; nothing after an abort."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import LiteralString
from uuid import UUID, uuid4

import pytest

from millrace import errors
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore, SettledMessage
from tests.support import factories
from tests.support.factories import Connect
from tests.support.patience import patience
from tests.support.producing import messages
from tests.support.sql_calls import BatchEvent, get_events


def test_staged_changes_are_visible_from_the_commit_on(producer: ProducerStore, connect: Connect) -> None:
    before = messages.effects(producer)
    transaction = messages.staged(producer, 0, x=1, y=2)
    assert messages.effects(producer) == before
    committing = ProducerStore(connect(autocommit=False))
    committing.commit_transaction(transaction, "done")
    assert messages.effects(producer) == before  # until the caller's own transaction is
    committing.connection.commit()
    after = messages.effects(producer)
    assert len(after["events"]) == 2
    assert messages.state_of(producer) == {"x": 1, "y": 2}
    assert after["results"][0][3:6] == ("committed", "done", [offset for _, offset in after["events"]])
    assert after["producers"] == [("p", 0, 1, 1)]


def test_changes_apply_in_the_order_they_were_staged(producer: ProducerStore) -> None:
    messages.do(producer, 0, gone=1, kept=1)
    transaction = messages.opened(producer, 1)
    events = [factories.new_event("s") for _ in range(5)]
    producer.add_events(transaction, [each.alone for each in events[:2]])
    producer.add_state_change(transaction, "kept", 2)
    producer.add_state_change(transaction, "gone", None)
    producer.add_state_change(transaction, "brief", 1)
    producer.add_events(transaction, [each.alone for each in events[2:]])
    producer.add_state_change(transaction, "brief", None)
    producer.add_state_change(transaction, "kept", 3)
    settled = producer.commit_transaction(transaction)
    assert messages.state_of(producer) == {"kept": 3}
    stored = get_events(PlatformStore(producer.connection), "s", "order")
    assert [event.event_id for event in stored] == [event.event_id for event in events]
    assert [event.offset for event in stored] == settled.offsets
    # a JSON null is a value here; an SQL null removes the key
    transaction = messages.opened(producer, 2)
    change: LiteralString = "select event_store.add_state_change(%s, %s, %s::jsonb)"
    for key, to in (("null", "null"), ("kept", None)):
        producer.connection.execute(change, (transaction, key, to))
    producer.commit_transaction(transaction)
    assert factories.rows(producer.connection, "select key, value::text from event_store.producer_state") == [
        ("null", "null")
    ]


def test_a_second_commit_gives_the_same_answer(producer: ProducerStore, connect: Connect) -> None:
    transaction = messages.staged(producer, 0, total=1)
    first = producer.commit_transaction(transaction, "first")
    before = messages.effects(producer)
    assert producer.commit_transaction(transaction, "second") == first
    assert messages.another(connect).commit_transaction(transaction) == first
    assert messages.effects(producer) == before
    assert messages.statistics(producer).committed == 1
    # even after another instance took over: the result stays
    producer.register_producer("p")
    assert producer.commit_transaction(transaction) == first


def test_a_second_abort_and_a_second_abandonment_change_nothing(producer: ProducerStore) -> None:
    transaction = messages.opened(producer, 0)
    for _ in range(3):
        producer.abort_transaction(transaction)
    transaction = messages.opened(producer, 0)
    factories.refusal(errors.Malformed, lambda: producer.abandon_transaction(transaction, ""))
    first = producer.abandon_transaction(transaction, "why")
    assert producer.abandon_transaction(transaction, "another why") == first
    assert (messages.statistics(producer).aborted, messages.statistics(producer).abandoned) == (1, 1)


def test_a_new_instance_fences_a_commit_or_comes_after_it(producer: ProducerStore, connect: Connect) -> None:
    registering, committing = ProducerStore(connect(autocommit=False)), messages.another(connect)
    transaction = messages.staged(producer, 0, total=1)
    registering.register_producer("p")
    late = factories.start_blocked(producer, committing, lambda: committing.commit_transaction(transaction))
    registering.connection.commit()
    with pytest.raises(errors.ProducerFenced):
        late.result(patience())

    first, later = ProducerStore(connect(autocommit=False)), messages.another(connect)
    first.commit_transaction(messages.staged(producer, 0, epoch=2), "done")
    registered = factories.start_blocked(producer, later, lambda: later.register_producer("p"))
    first.connection.commit()
    assert (registered.result(patience()).epoch, registered.result(patience()).next_sequence) == (3, 1)


def calls_of(producer: ProducerStore, transaction: UUID) -> dict[str, Callable[[], object]]:
    """Return all calls for a transaction; the call that ended it may be repeated."""
    return {
        "committed": partial(producer.commit_transaction, transaction),
        "abandoned": partial(producer.abandon_transaction, transaction, "why"),
        "a change": partial(producer.add_state_change, transaction, "k", 1),
        "events": partial(producer.add_events, transaction, messages.two_events()),
        "aborted": partial(producer.abort_transaction, transaction),
    }


def test_an_unknown_transaction_says_so(producer: ProducerStore) -> None:
    for call in calls_of(producer, unknown := uuid4()).values():
        assert str(unknown) in str(factories.refusal(errors.UnknownTransaction, call))


def test_a_late_commit_is_refused_and_its_message_may_be_begun_again(producer: ProducerStore) -> None:
    factories.set_clock(producer.connection, messages.START)
    transaction = messages.staged(producer, 0, timeout_s=60, total=1)
    factories.set_clock(producer.connection, messages.LATER)
    for name, call in calls_of(producer, transaction).items():
        if name != "aborted":
            assert "2030-01-01 00:01:00" in str(factories.refusal(errors.TransactionEnded, call))
    assert (messages.effects(producer)["events"], messages.state_of(producer)) == ([], {})
    messages.do(producer, 0)


def test_a_refused_event_refuses_the_commit_and_the_transaction_stays_open(producer: ProducerStore) -> None:
    store = PlatformStore(producer.connection)
    factories.append(store, "closed", final=True)
    factories.append(store, "open")
    refused: list[tuple[type[errors.MillraceError], BatchEvent]] = [
        (errors.Conflict, replace(factories.new_event("open"), expected_version=7)),
        (errors.StreamClosed, factories.new_event("closed")),
        (errors.Malformed, factories.new_event("")),
        (errors.EventNotRegistered, factories.new_event("x", event="lost")),
    ]
    for sequence, (error, event) in enumerate(refused):
        transaction = messages.staged(producer, sequence, total=1)
        producer.add_events(transaction, [event.alone])
        before = messages.effects(producer)
        factories.refusal(error, partial(producer.commit_transaction, transaction))
        assert messages.effects(producer) == before
        assert messages.statistics(producer).open == 1
        if error is errors.EventNotRegistered:
            store.register_decider_event("order", "lost", "The order was lost.")
            assert len(producer.commit_transaction(transaction).offsets) == 3
        else:
            producer.abort_transaction(transaction)
            messages.do(producer, sequence)


@pytest.mark.parametrize("point", ["an event's stream", "a key of the state"])
def test_who_is_killed_in_a_commit_did_all_or_none(producer: ProducerStore, connect: Connect, point: str) -> None:
    messages.do(producer, 0, k1=0, k2=0, k3=0)
    before = messages.effects(producer)
    holder, doomed = connect(autocommit=False), messages.another(connect)
    if point == "an event's stream":
        factories.append_to(PlatformStore(holder), "b")
    else:
        holder.execute("select from event_store.producer_state where key = 'k3' for update")
    transaction = messages.staged(doomed, 1, k1=1, k2=1, k3=1)
    killed = factories.start_blocked(producer, doomed, lambda: doomed.commit_transaction(transaction, "done"))
    factories.terminate(producer.connection, doomed.connection.info.backend_pid)
    holder.rollback()
    assert killed.exception(patience()) is not None
    assert messages.effects(producer) == before
    # the transaction is still open: any caller with its id may commit it
    settled = producer.commit_transaction(transaction, "done")
    assert (settled.duplicate, settled.next_sequence, len(settled.offsets)) == (False, 2, 2)
    assert messages.state_of(producer) == {"k1": 1, "k2": 1, "k3": 1}
    assert factories.value(producer.connection, "select count(*) from event_store.events") == 4
    messages.statistics(producer)


def test_a_transaction_that_a_crash_lost_is_begun_again(producer: ProducerStore) -> None:
    """A crash empties unlogged tables; this test empties them itself."""
    unlogged = factories.rows(
        producer.connection,
        "select relname from pg_class where relnamespace = 'event_store'::regnamespace"
        " and relkind = 'r' and relpersistence = 'u' order by 1",
    )
    assert unlogged == [("staged_changes",), ("transactions",)]
    transaction = messages.staged(producer, 0, total=1)
    producer.connection.execute("truncate event_store.transactions, event_store.staged_changes")
    factories.refusal(errors.UnknownTransaction, lambda: producer.commit_transaction(transaction))
    messages.do(producer, 0, total=1)
    assert messages.state_of(producer) == {"total": 1}


def test_after_an_abort_nothing_is_visible_and_the_same_stamp_is_retryable(producer: ProducerStore) -> None:
    before = messages.effects(producer)
    transaction = messages.staged(producer, 0, total=1)
    producer.abort_transaction(transaction)
    assert messages.effects(producer) == before
    assert factories.rows(producer.connection, "select from event_store.staged_changes") == []
    assert messages.begin(producer, 0).status == "opened"
    messages.do(producer, 0, total=2)
    assert messages.state_of(producer) == {"total": 2}
    assert messages.statistics(producer).aborted == 1


def test_a_transaction_that_ended_takes_nothing_more_and_stays_what_it_is(producer: ProducerStore) -> None:
    aborted, committed = messages.staged(producer, 0), messages.staged(producer, 0)
    producer.abort_transaction(aborted)
    producer.commit_transaction(committed)
    abandoned = messages.staged(producer, 1)
    producer.abandon_transaction(abandoned, "why")
    for transaction, outcome in ((aborted, "aborted"), (committed, "committed"), (abandoned, "abandoned")):
        for name, call in calls_of(producer, transaction).items():
            if name != outcome:
                assert outcome in str(factories.refusal(errors.TransactionEnded, call))


def test_what_has_expired_or_was_superseded_or_fenced_needs_no_abort(producer: ProducerStore, connect: Connect) -> None:
    factories.set_clock(producer.connection, messages.START)
    expired, superseded = messages.opened(producer, 0, timeout_s=60), messages.opened(producer, 0, timeout_s=3600)
    factories.set_clock(producer.connection, messages.LATER)
    producer.expire_transactions()
    messages.do(producer, 0)
    producer.commit_transaction(superseded)
    fenced = messages.opened(producer, 1)
    messages.another(connect).register_producer("p")
    for transaction in (expired, superseded, fenced):
        producer.abort_transaction(transaction)
    found = messages.statistics(producer)
    assert (found.expired, found.superseded, found.aborted) == (1, 1, 1)


def test_an_abandoned_message_is_final_and_the_next_one_is_accepted(producer: ProducerStore) -> None:
    transaction = messages.staged(producer, 0, total=1)
    settled = producer.abandon_transaction(transaction, "line 1 is no order")
    assert settled == SettledMessage(False, "abandoned", None, [], [], 1)
    assert (messages.effects(producer)["events"], messages.state_of(producer)) == ([], {})
    again = messages.begin(producer, 0)
    assert (again.status, again.outcome, again.result, again.offsets) == ("duplicate", "abandoned", None, [])
    query = "select reason from event_store.producer_results"
    assert factories.rows(producer.connection, query) == [("line 1 is no order",)]
    messages.do(producer, 1)
    found = messages.statistics(producer)
    assert (found.abandoned, found.committed) == (1, 1)


def test_of_a_commit_and_an_abandonment_the_first_one_counts(producer: ProducerStore) -> None:
    commits, abandons = messages.staged(producer, 0, total=1), messages.opened(producer, 0)
    producer.abandon_transaction(abandons, "why")
    assert producer.commit_transaction(commits) == SettledMessage(True, "abandoned", None, [], [], 1)
    commits, abandons = messages.staged(producer, 1, total=1), messages.opened(producer, 1)
    settled = producer.commit_transaction(commits, "done")
    assert producer.abandon_transaction(abandons, "why") == replace(settled, duplicate=True)
    assert messages.state_of(producer) == {"total": 1}
    assert messages.statistics(producer).superseded == 2
