"""A transaction of a producer: invisible before its commit, all there after it, once; nothing after an abort."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest

from millrace.resources.errors import (
    Conflict,
    EventNotRegistered,
    Malformed,
    MillraceError,
    ProducerFenced,
    StreamClosed,
    TransactionEnded,
    UnknownTransaction,
)
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.producers import ProducerStore, SettledMessage
from tests.support.factories import (
    Connect,
    append,
    append_to,
    new_event,
    refusal,
    rows,
    set_clock,
    start,
    terminate,
    value,
    wait_blocked,
)
from tests.support.patience import patience
from tests.support.producing.messages import (
    LATER,
    START,
    another,
    begin,
    do,
    effects,
    opened,
    staged,
    state_of,
    statistics,
    two_events,
)


def test_staged_changes_are_invisible_before_the_commit_and_together_after_it(
    producer: ProducerStore, connect: Connect
) -> None:
    before = effects(producer)
    transaction = staged(producer, 0, x=1, y=2)
    assert effects(producer) == before
    committing = ProducerStore(connect(autocommit=False))
    committing.commit_transaction(transaction, "done")
    assert effects(producer) == before  # until the caller's own transaction is
    committing.connection.commit()
    after = effects(producer)
    assert len(after["events"]) == 2
    assert state_of(producer) == {"x": 1, "y": 2}
    assert after["results"][0][3:6] == ("committed", "done", [offset for _, offset in after["events"]])
    assert after["producers"] == [("p", 0, 1, 1)]


def test_changes_apply_in_the_order_they_were_staged(producer: ProducerStore) -> None:
    do(producer, 0, gone=1, kept=1)
    transaction = opened(producer, 1)
    events = [new_event("s") for _ in range(5)]
    producer.add_events(transaction, events[:2])
    producer.add_state_change(transaction, "kept", 2)
    producer.add_state_change(transaction, "gone", None)
    producer.add_state_change(transaction, "brief", 1)
    producer.add_events(transaction, events[2:])
    producer.add_state_change(transaction, "brief", None)
    producer.add_state_change(transaction, "kept", 3)
    settled = producer.commit_transaction(transaction)
    assert state_of(producer) == {"kept": 3}
    stored = EventStore(producer.connection).get_events("s", "order")
    assert [event.event_id for event in stored] == [event.event_id for event in events]
    assert [event.offset for event in stored] == settled.offsets
    # a JSON null is a value here, and an SQL null removes
    transaction = opened(producer, 2)
    for key, change in (("null", "null"), ("kept", None)):
        producer.connection.execute(
            "select event_store.add_state_change(%s, %s, %s::jsonb)", (transaction, key, change)
        )
    producer.commit_transaction(transaction)
    assert rows(producer.connection, "select key, value::text from event_store.producer_state") == [("null", "null")]


def test_a_second_commit_gives_the_same_answer(producer: ProducerStore, connect: Connect) -> None:
    transaction = staged(producer, 0, total=1)
    first = producer.commit_transaction(transaction, "first")
    before = effects(producer)
    assert producer.commit_transaction(transaction, "second") == first
    assert another(connect).commit_transaction(transaction) == first
    assert effects(producer) == before
    assert statistics(producer).committed == 1
    # also after another instance took over: it is what happened
    producer.register_producer("p")
    assert producer.commit_transaction(transaction) == first


def test_a_second_abort_and_a_second_abandonment_change_nothing(producer: ProducerStore) -> None:
    transaction = opened(producer, 0)
    for _ in range(3):
        producer.abort_transaction(transaction)
    transaction = opened(producer, 0)
    refusal(Malformed, lambda: producer.abandon_transaction(transaction, ""))
    first = producer.abandon_transaction(transaction, "why")
    assert producer.abandon_transaction(transaction, "another why") == first
    assert (statistics(producer).aborted, statistics(producer).abandoned) == (1, 1)


def test_an_instance_that_registers_while_a_commit_waits_fences_it_or_comes_after_it(
    producer: ProducerStore, connect: Connect
) -> None:
    registering, committing = ProducerStore(connect(autocommit=False)), another(connect)
    transaction = staged(producer, 0, total=1)
    registering.register_producer("p")
    late = start(lambda: committing.commit_transaction(transaction))
    wait_blocked(producer.connection, committing.connection.info.backend_pid)
    registering.connection.commit()
    with pytest.raises(ProducerFenced):
        late.result(patience())

    first, later = ProducerStore(connect(autocommit=False)), another(connect)
    first.commit_transaction(staged(producer, 0, epoch=2), "done")
    registered = start(lambda: later.register_producer("p"))
    wait_blocked(producer.connection, later.connection.info.backend_pid)
    first.connection.commit()
    assert (registered.result(patience()).epoch, registered.result(patience()).next_sequence) == (3, 1)


def test_an_unknown_transaction_says_so(producer: ProducerStore) -> None:
    unknown = uuid4()
    for call in (
        lambda: producer.commit_transaction(unknown),
        lambda: producer.abort_transaction(unknown),
        lambda: producer.abandon_transaction(unknown, "why"),
        lambda: producer.add_state_change(unknown, "k", 1),
        lambda: producer.add_events(unknown, two_events()),
    ):
        assert str(unknown) in str(refusal(UnknownTransaction, call))


def test_a_late_commit_is_refused_and_its_message_may_be_begun_again(producer: ProducerStore) -> None:
    set_clock(producer.connection, START)
    transaction = staged(producer, 0, timeout_s=60, total=1)
    set_clock(producer.connection, LATER)
    for call in (
        lambda: producer.commit_transaction(transaction),
        lambda: producer.abandon_transaction(transaction, "why"),
        lambda: producer.add_state_change(transaction, "k", 1),
        lambda: producer.add_events(transaction, two_events()),
    ):
        assert "2030-01-01 00:01:00" in str(refusal(TransactionEnded, call))
    assert (effects(producer)["events"], state_of(producer)) == ([], {})
    do(producer, 0)


def test_a_refused_event_refuses_the_commit_and_the_transaction_stays_open(producer: ProducerStore) -> None:
    store = EventStore(producer.connection)
    append(store, "closed", final=True)
    append(store, "open")
    refused: list[tuple[type[MillraceError], NewEvent]] = [
        (Conflict, replace(new_event("open"), previous_id=uuid4())),
        (StreamClosed, new_event("closed")),
        (Malformed, new_event("")),
        (EventNotRegistered, new_event("x", event="lost")),
    ]
    for sequence, (error, event) in enumerate(refused):
        transaction = staged(producer, sequence, total=1)
        producer.add_events(transaction, [event])
        before = effects(producer)
        refusal(error, partial(producer.commit_transaction, transaction))
        assert effects(producer) == before
        assert statistics(producer).open == 1
        if error is EventNotRegistered:
            store.register_decider_event("order", "lost", "The order was lost.")
            assert len(producer.commit_transaction(transaction).offsets) == 3
        else:
            producer.abort_transaction(transaction)
            do(producer, sequence)


@pytest.mark.parametrize("point", ["an event's stream", "a key of the state"])
def test_killed_in_the_commit_with_several_keys_all_or_none(
    producer: ProducerStore, connect: Connect, point: str
) -> None:
    do(producer, 0, k1=0, k2=0, k3=0)
    before = effects(producer)
    holder, doomed = connect(autocommit=False), another(connect)
    if point == "an event's stream":
        append_to(EventStore(holder), "b")
    else:
        holder.execute("select from event_store.producer_state where key = 'k3' for update")
    transaction = staged(doomed, 1, k1=1, k2=1, k3=1)
    killed = start(lambda: doomed.commit_transaction(transaction, "done"))
    wait_blocked(producer.connection, doomed.connection.info.backend_pid)
    terminate(producer.connection, doomed.connection.info.backend_pid)
    holder.rollback()
    assert killed.exception(patience()) is not None
    assert effects(producer) == before
    # the transaction is open still: whoever has its id may commit it
    settled = producer.commit_transaction(transaction, "done")
    assert (settled.duplicate, settled.next_sequence, len(settled.offsets)) == (False, 2, 2)
    assert state_of(producer) == {"k1": 1, "k2": 1, "k3": 1}
    assert value(producer.connection, "select count(*) from event_store.events") == 4
    statistics(producer)


def test_a_transaction_that_was_open_when_the_server_crashed_is_unknown_and_is_begun_again(
    producer: ProducerStore,
) -> None:
    """What a crash does to unlogged tables is Postgres' affair: they are emptied here."""
    kinds = rows(
        producer.connection,
        "select relname, relpersistence::text from pg_class where relnamespace = 'event_store'::regnamespace"
        " and relkind = 'r' and relpersistence <> 'p' order by 1",
    )
    assert kinds == [("staged_changes", "u"), ("transactions", "u")]
    transaction = staged(producer, 0, total=1)
    producer.connection.execute("truncate event_store.transactions, event_store.staged_changes")
    refusal(UnknownTransaction, lambda: producer.commit_transaction(transaction))
    do(producer, 0, total=1)
    assert state_of(producer) == {"total": 1}


def test_after_an_abort_nothing_is_visible_and_the_same_stamp_is_retryable(producer: ProducerStore) -> None:
    before = effects(producer)
    transaction = staged(producer, 0, total=1)
    producer.abort_transaction(transaction)
    assert effects(producer) == before
    assert rows(producer.connection, "select from event_store.staged_changes") == []
    assert begin(producer, 0).status == "opened"
    do(producer, 0, total=2)
    assert state_of(producer) == {"total": 2}
    assert statistics(producer).aborted == 1


def test_a_transaction_that_ended_takes_nothing_more_and_stays_what_it_is(producer: ProducerStore) -> None:
    aborted, committed = staged(producer, 0), staged(producer, 0)
    producer.abort_transaction(aborted)
    producer.commit_transaction(committed)
    abandoned = staged(producer, 1)
    producer.abandon_transaction(abandoned, "why")
    for transaction, outcome in ((aborted, "aborted"), (committed, "committed"), (abandoned, "abandoned")):
        calls: dict[str, Callable[[], object]] = {
            "aborted": partial(producer.abort_transaction, transaction),
            "committed": partial(producer.commit_transaction, transaction),
            "abandoned": partial(producer.abandon_transaction, transaction, "why"),
            "a change": partial(producer.add_state_change, transaction, "k", 1),
            "events": partial(producer.add_events, transaction, two_events()),
        }
        for name, call in calls.items():
            if name != outcome:
                assert outcome in str(refusal(TransactionEnded, call))


def test_what_has_expired_or_was_superseded_or_fenced_needs_no_abort(producer: ProducerStore, connect: Connect) -> None:
    set_clock(producer.connection, START)
    expired, superseded = opened(producer, 0, timeout_s=60), opened(producer, 0, timeout_s=3600)
    set_clock(producer.connection, LATER)
    producer.expire_transactions()
    do(producer, 0)
    producer.commit_transaction(superseded)
    fenced = opened(producer, 1)
    another(connect).register_producer("p")
    for transaction in (expired, superseded, fenced):
        producer.abort_transaction(transaction)
    found = statistics(producer)
    assert (found.expired, found.superseded, found.aborted) == (1, 1, 1)


def test_an_abandoned_message_is_final_and_the_next_one_is_accepted(producer: ProducerStore) -> None:
    transaction = staged(producer, 0, total=1)
    settled = producer.abandon_transaction(transaction, "line 1 is no order")
    assert settled == SettledMessage(False, "abandoned", None, [], [], 1)
    assert (effects(producer)["events"], state_of(producer)) == ([], {})
    again = begin(producer, 0)
    assert (again.status, again.outcome, again.result, again.offsets) == ("duplicate", "abandoned", None, [])
    query = "select reason from event_store.producer_results"
    assert rows(producer.connection, query) == [("line 1 is no order",)]
    do(producer, 1)
    found = statistics(producer)
    assert (found.abandoned, found.committed) == (1, 1)


def test_of_a_commit_and_an_abandonment_of_one_message_the_first_one_counts(producer: ProducerStore) -> None:
    commits, abandons = staged(producer, 0, total=1), opened(producer, 0)
    producer.abandon_transaction(abandons, "why")
    assert producer.commit_transaction(commits) == SettledMessage(True, "abandoned", None, [], [], 1)
    commits, abandons = staged(producer, 1, total=1), opened(producer, 1)
    settled = producer.commit_transaction(commits, "done")
    assert producer.abandon_transaction(abandons, "why") == SettledMessage(
        True, "committed", "done", settled.offsets, settled.appended, 2
    )
    assert state_of(producer) == {"total": 1}
    assert statistics(producer).superseded == 2
