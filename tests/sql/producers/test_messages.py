"""A producer's message as the next one, a duplicate, a gap or another owner's; in steps or in one call."""

from collections.abc import Callable
from dataclasses import replace
from typing import LiteralString
from uuid import UUID

import pytest

from millrace.errors import Conflict, Malformed
from millrace.event_store.platform import PlatformStore
from millrace.producers import ExactlyOnce, ProducerStamp, ProducerStore, ReceivedMessage, SettledMessage
from tests.support.factories import Connect, at_once, new_event, refusal, rows, set_clock, start_blocked, value
from tests.support.patience import patience
from tests.support.producing import messages
from tests.support.sql_calls import append_events

RULES = {
    # the producer is at epoch 2 and sequence 3
    "the one before": (2, 2, "duplicate"),
    "the first one": (2, 0, "duplicate"),
    "one is left out": (2, 4, "gap"),
    "many are left out": (2, 10**15, "gap"),
    "next of a lower epoch": (1, 3, "fenced"),
    "duplicate of a lower epoch": (1, 1, "fenced"),
    "gap of a lower epoch": (1, 9, "fenced"),
    "next of a higher epoch": (3, 3, "unknown_epoch"),
    "duplicate of a higher epoch": (3, 1, "unknown_epoch"),
    "gap of a higher epoch": (3, 9, "unknown_epoch"),
    "the next one": (2, 3, "opened"),
}


def test_the_producer_rules(producer: ProducerStore) -> None:
    offsets = {n: messages.do(producer, n) for n in range(3)}
    producer.register_producer("p")
    for rule, (epoch, sequence, status) in RULES.items():
        before = messages.effects(producer), messages.statistics(producer)
        received = messages.begin(producer, sequence, epoch=epoch)
        assert (received.status, received.next_sequence, received.epoch) == (status, 3, 2), rule
        assert [received.transaction_id is None, received.expires_at is None] == [status != "opened"] * 2, rule
        duplicate = status == "duplicate"
        assert received.outcome == ("committed" if duplicate else None), rule
        assert received.result == ({"did": sequence} if duplicate else None), rule
        assert received.offsets == (offsets[sequence] if duplicate else None), rule
        assert messages.effects(producer) == before[0], rule
        counted = messages.statistics(producer)
        counts = ((each.received, each.opened, each.duplicates, each.refused) for each in (before[1], counted))
        more = tuple(now - then for then, now in zip(*counts, strict=True))
        assert more == (1, status == "opened", duplicate, status in {"gap", "fenced", "unknown_epoch"}), rule
        # the same rule in one call
        ingested = producer.ingest_events("p", 0, epoch, sequence)
        assert ingested.status == {"opened": "committed"}.get(status, status), rule
        if duplicate:
            told = (ingested.outcome, ingested.result, ingested.offsets)
            assert told == ("committed", received.result, received.offsets)
        assert status == "opened" or messages.effects(producer) == before[0], rule


def test_a_message_of_long_ago_still_is_a_duplicate(producer: ProducerStore, connect: Connect) -> None:
    """Inserted rows stand for the messages, as that many calls would take minutes: their mark and their results."""
    offsets = messages.do(producer, 0)
    producer.connection.execute(
        """
        insert into event_store.producer_results (producer_id, partition, sequence, outcome, offsets, appended, ended_at)
        select 'p', 0, n, 'committed', '{}', '{}', clock_timestamp() from generate_series(1, 100000) n
        """
    )
    producer.connection.execute(
        "update event_store.producer_progress set next_sequence = 100001, committed = committed + 100000,"
        " received = received + 100000, opened = opened + 100000"
    )
    producer.connection.close()
    fresh = messages.another(connect)
    fresh.expire_transactions(0)
    received = messages.begin(fresh, 0)
    assert (received.status, received.result, received.offsets) == ("duplicate", {"did": 0}, offsets)
    assert messages.begin(fresh, 50_000).status == "duplicate"
    assert messages.begin(fresh, 100_002).status == "gap"
    messages.do(fresh, 100_001)
    assert messages.statistics(fresh).next_sequence == 100_002


def test_a_message_whose_answer_was_purged_is_a_duplicate_all_the_same(producer: ProducerStore, dsn: str) -> None:
    set_clock(producer.connection, "2030-01-01 00:00:00+00")
    for n in range(3):
        messages.do(producer, n)
    abandoned = messages.opened(producer, 3)
    producer.abandon_transaction(abandoned, "no order")
    set_clock(producer.connection, "2030-01-03 00:00:00+00")
    messages.do(producer, 4)
    purge: LiteralString = "select event_store_platform.purge_results('2030-01-02', 'old', %s)"
    assert [value(producer.connection, purge, limit) for limit in (2, 2, 2)] == [2, 1, 0]
    kept = "select sequence, outcome from event_store.producer_results order by 1"
    assert rows(producer.connection, kept) == [(3, "abandoned"), (4, "committed")]
    before = messages.effects(producer)
    for n in range(5):
        found = producer.ingest_events("p", 0, 1, n, messages.two_events())
        assert (found.status, found.outcome) == ("duplicate", "abandoned" if n == 3 else "committed")
        assert (found.offsets is None) == (n < 3)
        assert messages.begin(producer, n).status == "duplicate"
    assert messages.effects(producer) == before
    with ExactlyOnce(dsn) as once:
        answer = once.process(ProducerStamp("p", 0, 1, 0), lambda _: pytest.fail("it was done"))
    assert (answer.duplicate, answer.outcome, answer.kept, answer.offsets) == (True, "committed", False, [])
    assert [entry.detail["results"] for entry in PlatformStore(producer.connection).audit_log()[:2]] == [1, 2]


def test_it_says_of_each_event_whether_it_was_new(producer: ProducerStore) -> None:
    store = PlatformStore(producer.connection)
    batch = [new_event("a"), new_event("b"), new_event("c"), new_event("a")]
    stored = append_events(store, batch[1:3])
    received = producer.ingest_events("p", 0, 1, 0, [each.alone for each in batch])
    assert received.appended == [True, False, False, True]
    assert received.offsets is not None
    assert received.offsets[1:3] == [event.offset for event in stored]
    assert [event.version for event in store.read("order", "a")] == [1, 2]
    again = producer.ingest_events("p", 0, 1, 0, [each.alone for each in batch])
    assert (again.status, again.offsets, again.appended) == ("duplicate", received.offsets, received.appended)
    transaction = messages.opened(producer, 1)
    producer.add_events(transaction, [batch[0].alone, new_event("d").alone])
    assert producer.commit_transaction(transaction).appended == [False, True]


def test_events_state_and_result_are_there_at_once_and_counted(producer: ProducerStore) -> None:
    received = producer.ingest_events("p", 0, 1, 0, messages.two_events(), {"x": 1, "y": [None, "ü"]}, {"did": 0})
    offsets = [row[0] for row in rows(producer.connection, 'select "offset" from event_store.events order by 1')]
    assert received == ReceivedMessage("committed", None, None, "committed", {"did": 0}, offsets, [True, True], 1, 1)
    assert messages.state_of(producer) == {"x": 1, "y": [None, "ü"]}
    found = messages.statistics(producer)
    assert (found.received, found.opened, found.committed, found.open) == (1, 1, 1, 0)
    assert rows(producer.connection, "select from event_store.transactions") == []
    # a JSON null removes the key; each event names its message
    events = [new_event("a"), replace(new_event("b"), metadata={"user": "ada", "message_id": "mine"})]
    producer.ingest_events("p", 0, 1, 1, [each.alone for each in events], {"x": None, "never": None})
    assert messages.state_of(producer) == {"y": [None, "ü"]}
    stored = 'select metadata from event_store.events where "offset" > %s order by "offset"'
    assert rows(producer.connection, stored, max(offsets)) == [
        ({"message_id": "p/0/1"},), ({"user": "ada", "message_id": "p/0/1"},),
    ]  # fmt: skip
    odd = replace(new_event("a"), metadata=["no", "object"])
    assert "not an object" in str(refusal(Malformed, lambda: producer.ingest_events("p", 0, 1, 2, [odd.alone])).detail)


Late = Callable[[ProducerStore, UUID, UUID], ReceivedMessage | SettledMessage]
# a concurrent call for the same message while its commit is under way
LATE: dict[str, Late] = {
    "begins it": lambda late, *_: messages.begin(late, 0),
    "commits the same transaction": lambda late, same, _: late.commit_transaction(same, "theirs"),
    "commits another transaction of it": lambda late, _, other: late.commit_transaction(other, "theirs"),
    "does it in one call": lambda late, *_: late.ingest_events(
        "p", 0, 1, 0, messages.two_events(), {"total": 2}, "theirs"
    ),
}


@pytest.mark.parametrize("what", LATE)
def test_who_loses_a_message_gets_the_winners_answer(producer: ProducerStore, connect: Connect, what: str) -> None:
    first, second = ProducerStore(connect(autocommit=False)), messages.another(connect)
    mine, theirs = messages.staged(producer, 0, total=1), messages.staged(producer, 0, total=2)
    won = first.commit_transaction(mine, "mine")
    late = start_blocked(producer, second, lambda: LATE[what](second, mine, theirs))
    first.connection.commit()
    answer = late.result(patience())
    assert (answer.outcome, answer.result, answer.offsets) == ("committed", "mine", won.offsets)
    if isinstance(answer, ReceivedMessage):
        assert answer.status == "duplicate"
    else:
        assert answer.duplicate is (what == "commits another transaction of it")
    assert messages.state_of(producer) == {"total": 1}
    assert value(producer.connection, "select count(*) from event_store.events") == 2
    # and again, from any caller
    assert producer.commit_transaction(theirs).result == "mine"
    found = messages.statistics(producer)
    assert (found.opened, found.committed, found.superseded, found.open) == (2, 1, 1, 0)


def test_a_transaction_of_a_message_done_in_one_call_gets_its_answer(producer: ProducerStore) -> None:
    transaction = messages.staged(producer, 0, total=1)
    assert producer.ingest_events("p", 0, 1, 0, state={"total": 2}, result="mine").status == "committed"
    settled = producer.commit_transaction(transaction)
    assert (settled.duplicate, settled.result, messages.state_of(producer)) == (True, "mine", {"total": 2})
    assert messages.do(producer, 1)


def test_processes_that_race_one_stamp_get_one_answer(producer: ProducerStore, connect: Connect) -> None:
    stores = [messages.another(connect) for _ in range(4)]
    for sequence in range(10):
        works = [
            lambda n=n, s=s, q=sequence: s.ingest_events("p", 0, 1, q, [new_event("a").alone], {"n": n}, n)
            for n, s in enumerate(stores)
        ]
        results = [result.result() for result in at_once(works)]
        assert sorted(result.status for result in results) == ["committed", "duplicate", "duplicate", "duplicate"]
        assert len({(result.result, str(result.offsets)) for result in results}) == 1
        assert messages.state_of(producer) == {"n": results[0].result}
    assert value(producer.connection, "select count(*) from event_store.events") == 10
    messages.statistics(producer)


def test_a_refused_event_refuses_all_and_counts_nothing(producer: ProducerStore) -> None:
    before = messages.effects(producer), messages.statistics(producer)
    wrong = replace(new_event("a"), expected_version=7)
    refusal(Conflict, lambda: producer.ingest_events("p", 0, 1, 0, [new_event("b").alone, wrong.alone], {"x": 1}))
    assert (messages.effects(producer), messages.statistics(producer)) == before
    assert messages.begin(producer, 0).status == "opened"
