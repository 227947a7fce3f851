"""The rules of exactly-once producers: which message is the next one, a duplicate, a gap, or somebody else's."""

from functools import partial

import pytest

from millrace.resources.errors import Malformed, UnknownProducer
from millrace.resources.producers import ProducerStore, ReceivedMessage
from tests.support.factories import Connect, at_once, refusal, rows, set_clock, start, value, wait_blocked
from tests.support.producing.messages import (
    START,
    another,
    begin,
    do,
    effects,
    opened,
    producer,
    staged,
    state_of,
    statistics,
)

__all__ = ["producer"]

RULES = [
    # the producer is at epoch 2 and sequence 3
    ("the next one", 2, 3, "opened"),
    ("the one before", 2, 2, "duplicate"),
    ("the first one", 2, 0, "duplicate"),
    ("one is left out", 2, 4, "gap"),
    ("many are left out", 2, 10**15, "gap"),
    ("next of a lower epoch", 1, 3, "fenced"),
    ("duplicate of a lower epoch", 1, 1, "fenced"),
    ("gap of a lower epoch", 1, 9, "fenced"),
    ("next of a higher epoch", 3, 3, "unknown_epoch"),
    ("duplicate of a higher epoch", 3, 1, "unknown_epoch"),
    ("gap of a higher epoch", 3, 9, "unknown_epoch"),
]


@pytest.mark.parametrize(("epoch", "sequence", "status"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_the_producer_rules(producer: ProducerStore, epoch: int, sequence: int, status: str) -> None:
    for n in range(3):
        do(producer, n)
    producer.register_producer("p")
    before = effects(producer), statistics(producer)
    received = begin(producer, sequence, epoch=epoch)
    assert (received.status, received.next_sequence, received.epoch) == (status, 3, 2)
    assert (received.transaction_id is not None) == (status == "opened")
    assert (received.expires_at is not None) == (status == "opened")
    duplicate = status == "duplicate"
    assert received.outcome == ("committed" if duplicate else None)
    assert received.result == ({"did": sequence} if duplicate else None)
    assert effects(producer) == before[0]
    counted = statistics(producer)
    assert counted.received == before[1].received + 1
    assert counted.opened == before[1].opened + (status == "opened")
    assert counted.duplicates == before[1].duplicates + duplicate
    assert counted.refused == before[1].refused + (status in {"gap", "fenced", "unknown_epoch"})
    # the same rule in one call
    ingested = producer.ingest_events("p", 0, epoch, sequence)
    assert ingested.status == {"opened": "committed"}.get(status, status)
    assert (ingested.outcome, ingested.offsets) == (
        (None, None) if received.offsets is None and status != "opened" else ("committed", received.offsets or [])
    )


def test_a_duplicate_gets_the_original_result_and_nothing_is_done(producer: ProducerStore) -> None:
    offsets = do(producer, 0, total=7)
    before = effects(producer)
    for _ in range(3):
        assert begin(producer, 0) == ReceivedMessage("duplicate", None, None, "committed", {"did": 0}, offsets, 1, 1)
    assert effects(producer) == before
    found = statistics(producer)
    assert (found.received, found.duplicates, found.opened, found.committed) == (4, 3, 1, 1)


def test_a_gap_is_refused_with_the_expected_value(producer: ProducerStore) -> None:
    do(producer, 0)
    received = begin(producer, 2)  # the last one + 2
    assert (received.status, received.next_sequence) == ("gap", 1)
    do(producer, 1)
    assert begin(producer, 2).status == "opened"


def test_after_a_million_later_messages_and_in_a_new_session_it_still_is_a_duplicate_with_its_result(
    producer: ProducerStore, connect: Connect
) -> None:
    """A million rows stand for the messages, for a million calls take minutes: the mark and the results are theirs."""
    offsets = do(producer, 0)
    producer.connection.execute(
        """
        insert into event_store.producer_results (producer_id, partition, sequence, outcome, offsets, ended_at)
        select 'p', 0, n, 'committed', '{}', clock_timestamp() from generate_series(1, 1000000) n
        """
    )
    producer.connection.execute(
        "update event_store.producer_progress set next_sequence = 1000001, committed = committed + 1000000,"
        " received = received + 1000000, opened = opened + 1000000"
    )
    producer.connection.close()
    fresh = another(connect)
    fresh.expire_transactions(0)
    received = begin(fresh, 0)
    assert (received.status, received.result, received.offsets) == ("duplicate", {"did": 0}, offsets)
    assert begin(fresh, 500_000).status == "duplicate"
    assert begin(fresh, 1_000_002).status == "gap"
    do(fresh, 1_000_001)
    assert statistics(fresh).next_sequence == 1_000_002


def test_several_transactions_of_one_message_may_be_open_so_that_nobody_waits_for_a_deadline(
    producer: ProducerStore, connect: Connect
) -> None:
    killed, again = opened(producer, 0, timeout_s=3600), opened(another(connect), 0)
    assert killed != again
    assert producer.commit_transaction(again).next_sequence == 1


def test_two_processes_race_one_stamp_one_wins_and_the_other_gets_its_answer(
    producer: ProducerStore, connect: Connect
) -> None:
    first, second = ProducerStore(connect(autocommit=False)), another(connect)
    mine, theirs = staged(producer, 0, total=1), staged(producer, 0, total=2)
    won = first.commit_transaction(mine, "mine")
    lost = start(lambda: second.commit_transaction(theirs, "theirs"))
    wait_blocked(producer.connection, second.connection.info.backend_pid)
    first.connection.commit()
    answer = lost.result(20)
    assert (answer.duplicate, answer.result, answer.offsets) == (True, "mine", won.offsets)
    assert state_of(producer) == {"total": 1}
    assert value(producer.connection, "select count(*) from event_store.events") == 2
    found = statistics(producer)
    assert (found.opened, found.committed, found.superseded, found.open) == (2, 1, 1, 0)
    # and again, from anybody
    assert producer.commit_transaction(theirs) == answer


def test_a_message_that_waits_for_the_commit_of_the_same_one_is_a_duplicate(
    producer: ProducerStore, connect: Connect
) -> None:
    first, second = ProducerStore(connect(autocommit=False)), another(connect)
    first.commit_transaction(staged(producer, 0), "mine")
    late = start(lambda: begin(second, 0))
    wait_blocked(producer.connection, second.connection.info.backend_pid)
    first.connection.commit()
    assert (late.result(20).status, late.result(20).result) == ("duplicate", "mine")


def test_many_racing_sessions_do_each_message_once(producer: ProducerStore, connect: Connect) -> None:
    def work(store: ProducerStore) -> int:
        won = 0
        sequence = 0
        while sequence < 30:
            received = begin(store, sequence)
            if received.transaction_id is not None:
                store.add_state_change(received.transaction_id, f"k{sequence}", sequence)
                won += not store.commit_transaction(received.transaction_id, sequence).duplicate
            sequence += 1
        return won

    stores = [another(connect) for _ in range(4)]
    results = at_once([partial(work, s) for s in stores])
    assert sum(result.result() for result in results) == 30
    assert state_of(producer) == {f"k{n}": n for n in range(30)}
    assert statistics(producer).received == 120


def test_the_deadline_is_so_many_seconds_from_now_by_the_stores_clock(producer: ProducerStore) -> None:
    set_clock(producer.connection, START)
    received = begin(producer, 0, timeout_s=90)
    assert received.expires_at is not None
    assert received.expires_at.isoformat() == "2030-01-01T00:01:30+00:00"


def test_an_unknown_producer_is_refused_and_another_partition_is_one(producer: ProducerStore) -> None:
    refused = refusal(UnknownProducer, lambda: producer.begin_transaction("nobody", 0, 1, 0))
    assert "'nobody', partition 0" in str(refused)
    refusal(UnknownProducer, lambda: producer.begin_transaction("p", 1, 1, 0))
    assert rows(producer.connection, "select count(*) from event_store.producers") == [(1,)]


@pytest.mark.parametrize(
    "arguments",
    [
        (None, 0, 1, 0, 60), ("", 0, 1, 0, 60), ("p", None, 1, 0, 60), ("p", -1, 1, 0, 60), ("p", 0, None, 0, 60),
        ("p", 0, 0, 0, 60), ("p", 0, 1, None, 60), ("p", 0, 1, -1, 60), ("p", 0, 1, 0, None), ("p", 0, 1, 0, 0),
        ("p", 0, 1, 0, 2**31),
    ],
)  # fmt: skip
def test_null_and_negative_arguments_are_refused_and_count_nothing(
    producer: ProducerStore, arguments: tuple[str, int, int, int, int]
) -> None:
    refusal(Malformed, lambda: producer.begin_transaction(*arguments))
    assert statistics(producer).received == 0
