"""Producers: registration, the owning role, counters, and the hold for a backup's cut."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from millrace.errors import Malformed, MillraceError, NotProducerOwner, ProducerFenced
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore, RegisteredProducer
from tests.support.factories import Connect, append_to, at_once, refusal, set_clock, start, value, wait_blocked
from tests.support.logins import Login
from tests.support.patience import patience
from tests.support.producing.messages import another, begin, do, effects, opened, staged, statistics, two_events


def test_a_new_instance_goes_on_where_the_one_before_was(producer: ProducerStore) -> None:
    do(producer, 0)
    do(producer, 1)
    assert producer.register_producer("p") == RegisteredProducer("p", 0, 2, 2)
    # each partition of a producer is independent; its first epoch is 1, and each registration raises it
    assert [producer.register_producer("p", 1) for _ in range(2)] == [RegisteredProducer("p", 1, n, 0) for n in (1, 2)]
    assert producer.begin_transaction("p", 1, 2, 0).status == "opened"
    assert begin(producer, 2, epoch=2).status == "opened"
    for name, partition in (("q", 1), ("q", 0), ("a", 0)):
        producer.register_producer(name, partition)
    found = [(each.producer_id, each.partition) for each in producer.producer_statistics()]
    assert found == [("a", 0), ("p", 0), ("p", 1), ("q", 0), ("q", 1)]
    assert [each.partition for each in producer.producer_statistics("q")] == [0, 1]
    assert producer.producer_statistics("nobody") == []


def test_what_the_instance_before_has_open_is_aborted(producer: ProducerStore) -> None:
    transaction = staged(producer, 0, total=1)
    producer.register_producer("p")
    found = statistics(producer)
    assert (found.aborted, found.open) == (1, 0)
    refusal(ProducerFenced, lambda: producer.abandon_transaction(transaction, "why"))
    refused = refusal(ProducerFenced, lambda: producer.commit_transaction(transaction))
    assert "is of epoch 1, the producer is at epoch 2" in str(refused)
    assert value(producer.connection, "select count(*) from event_store.staged_changes") == 0
    assert effects(producer)["events"] == []


def test_whoever_is_at_a_transaction_is_fenced_at_its_commit(producer: ProducerStore, connect: Connect) -> None:
    transaction = opened(producer, 0)
    busy = ProducerStore(connect(autocommit=False))
    busy.add_state_change(transaction, "total", 1)
    another(connect).register_producer("p")
    busy.connection.commit()
    refusal(ProducerFenced, lambda: producer.commit_transaction(transaction))
    assert effects(producer)["state"] == []


def test_instances_that_register_at_once_get_different_epochs(producer: ProducerStore, connect: Connect) -> None:
    stores = [another(connect) for _ in range(4)]
    results = [result.result() for result in at_once([lambda s=s: s.register_producer("new") for s in stores])]  # type: ignore[misc]
    assert sorted(registered.epoch for registered in results) == [1, 2, 3, 4]
    assert producer.register_producer("new").epoch == 5


def test_any_text_round_trips_as_producer_id(producer: ProducerStore) -> None:
    odd = ["x", " ", "a'b\"c", "a,b/c|d", "line\nbreak\ttab", "🐘", "null", "\\N", "%s", "{}", "' or true --"]
    for name in ("ü" * 512, *odd):
        assert producer.register_producer(name).producer_id == name
        assert producer.ingest_events(name, 0, 1, 0, state={name[:500]: name}, result=name).result == name
        assert producer.ingest_events(name, 0, 1, 0).status == "duplicate"
        ((entry),) = producer.get_producer_state(name, 0)
        assert (entry.key, entry.value) == (name[:500], name)
        assert [found.producer_id for found in producer.producer_statistics(name)] == [name]


def test_each_message_is_counted_as_what_it_became(producer: ProducerStore) -> None:
    do(producer, 0)
    producer.abandon_transaction(opened(producer, 1), "why")
    producer.abort_transaction(opened(producer, 2))
    late = opened(producer, 2)
    producer.ingest_events("p", 0, 1, 2)
    producer.commit_transaction(late)
    for sequence, epoch in ((0, 1), (9, 1), (3, 2)):
        begin(producer, sequence, epoch=epoch)
    opened(producer, 3)
    found = statistics(producer)
    assert (found.received, found.duplicates, found.refused, found.opened) == (9, 1, 2, 6)
    assert (found.committed, found.abandoned, found.aborted, found.superseded, found.open) == (2, 1, 1, 1, 1)
    assert (found.producer_id, found.partition, found.epoch, found.next_sequence) == ("p", 0, 1, 3)


def test_counters_add_up_after_any_course(producer: ProducerStore) -> None:
    """For random right and wrong calls: each refusal undoes only its own count."""
    random = Random(7)
    transactions: list[UUID] = []
    epoch, seconds = 1, 0
    calls: dict[str, Callable[[UUID], object]] = {
        "commit": producer.commit_transaction,
        "abort": producer.abort_transaction,
        "abandon": lambda transaction: producer.abandon_transaction(transaction, "why"),
    }
    for _ in range(400):
        sequence = max(statistics(producer).next_sequence + random.choice([0, 0, 0, -1, 1]), 0)
        call = random.choice(["begin", "begin", "commit", "commit", "abort", "abandon", "ingest", "register", "expire"])
        try:
            if call == "begin":
                if (begun := begin(producer, sequence, epoch=epoch, timeout_s=30).transaction_id) is not None:
                    transactions.append(begun)
            elif call == "ingest":
                producer.ingest_events("p", 0, epoch, sequence, state={"n": sequence})
            elif call == "register" and random.random() < 0.2:
                epoch = producer.register_producer("p").epoch
            elif call == "expire":
                seconds += 20
                set_clock(producer.connection, (datetime(2030, 1, 1, tzinfo=UTC) + timedelta(0, seconds)).isoformat())
                producer.expire_transactions()
            elif call in calls and transactions:
                calls[call](random.choice(transactions))
        except MillraceError:
            pass
    found = statistics(producer)
    ended = (found.committed, found.aborted, found.abandoned, found.expired, found.superseded)
    assert min(found.duplicates, found.refused, *ended) > 0
    results: LiteralString = "select array_agg(sequence order by sequence) from event_store.producer_results"
    assert value(producer.connection, results) == list(range(found.next_sequence))


WRITER = "event_store_writer"


def name(connection: psycopg.Connection) -> str:
    return connection.info.user


def test_another_writer_does_nothing_with_a_producer(login: Login) -> None:
    """With each function that docs/who_may_do_what.md marks `own`."""
    owner, other = ProducerStore(login(WRITER)), ProducerStore(login(WRITER))
    owner.register_producer("p")
    settled = owner.begin_transaction("p", 0, 1, 0).transaction_id
    assert settled is not None
    owner.commit_transaction(settled, "the answer")
    later = owner.begin_transaction("p", 0, 1, 1).transaction_id
    assert later is not None
    for attempt in (
        partial(other.register_producer, "p", 0, name(other.connection)),
        partial(other.begin_transaction, "p", 0, 1, 1),
        partial(other.commit_transaction, settled),
        partial(other.add_events, later, two_events()),
        partial(other.add_state_change, later, "total", 1),
        partial(other.commit_transaction, later),
        partial(other.abandon_transaction, later, "no"),
        partial(other.abort_transaction, later),
        partial(other.ingest_events, "p", 0, 1, 1, state={"a": 1}),
        partial(other.get_producer_state, "p", 0),
    ):
        assert name(owner.connection) in str(refusal(NotProducerOwner, attempt).detail)


def test_members_of_the_owning_role_share_it(orders: PlatformStore, login: Login) -> None:
    team = name(login(WRITER))
    one, other = (ProducerStore(login(WRITER, team)) for _ in range(2))
    one.register_producer("p", 0, team)
    assert other.register_producer("p").epoch == 2
    assert other.ingest_events("p", 0, 2, 0, state={"a": 1}).status == "committed"
    assert len(one.get_producer_state("p", 0)) == 1
    # a member gives the producer away, which is audited
    one.register_producer("p", 0, one.connection.info.user)
    with pytest.raises(NotProducerOwner):
        other.register_producer("p")
    mine = name(one.connection)
    audited = [entry for entry in orders.audit_log() if entry.operation == "register_producer"]
    assert [(entry.done_by, entry.detail["owner"], entry.detail.get("owner_before")) for entry in audited] == [
        (mine, mine, team), (mine, team, None),
    ]  # fmt: skip
    # a producer registered by an owner of the store serves every writer
    ProducerStore(orders.connection).register_producer("everybodys")
    assert one.register_producer("everybodys").epoch == 2


def test_an_owner_is_a_role_that_the_login_is_a_member_of(login: Login) -> None:
    register = partial(ProducerStore(login(WRITER)).register_producer, "p", 0)
    assert "there is no role nobody" in str(refusal(Malformed, partial(register, "nobody")))
    refusal(NotProducerOwner, partial(register, "event_store_reader"))


def test_the_greatest_number_is_no_messages_as_none_could_follow(producer: ProducerStore) -> None:
    last = 2**63 - 1
    with pytest.raises(Malformed, match=f"from 0 to {last - 1}"):
        producer.register_producer("q", initial_sequence=last)
    assert producer.register_producer("q", initial_sequence=last - 1).next_sequence == last - 1
    assert producer.ingest_events("q", 0, 1, last - 1).next_sequence == last
    with pytest.raises(Malformed, match=f"from 0 to {last - 1}"):
        producer.ingest_events("q", 0, 1, last)


def test_a_hold_keeps_messages_until_its_end_and_others_go_on(producer: ProducerStore, connect: Connect) -> None:
    transaction = staged(producer, 0)
    holder, judged, committed = connect(autocommit=False), another(connect), another(connect)
    ProducerStore(holder).hold_producers()
    calls = [start(lambda: begin(judged, 0).status), start(lambda: committed.commit_transaction(transaction).outcome)]
    for store in (judged, committed):
        wait_blocked(producer.connection, store.connection.info.backend_pid)
    append_to(PlatformStore(producer.connection), "o-1")
    assert PlatformStore(producer.connection).sequence_events() == 1
    assert producer.producer_statistics("p")[0].received == 1
    holder.commit()
    assert calls[1].result(patience()) == "committed"
    assert calls[0].result(patience()) in {"opened", "duplicate"}


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
    late = PlatformStore(connect(autocommit=False))
    append_to(late, "late")
    append_to(PlatformStore(producer.connection), "o-1")
    assert not producer.is_sequenced(committed)
    PlatformStore(producer.connection).sequence_events()
    assert producer.is_sequenced(committed)
    late.connection.commit()
    # this commit was not part of that hold
    assert producer.is_sequenced(committed)
    assert not producer.is_sequenced(producer.hold_producers())
    PlatformStore(producer.connection).sequence_events()
    assert producer.is_sequenced(producer.hold_producers())


def test_what_commits_beside_a_sequencer_is_seen_as_missed(producer: ProducerStore, connect: Connect) -> None:
    """A sequencer that read before a commit returns 0: only is_sequenced shows the miss."""
    sequencing = PlatformStore(connect(autocommit=False))
    do(producer, 0)
    assert sequencing.sequence_events() == 2
    do(producer, 1)
    committed = producer.hold_producers()
    assert PlatformStore(producer.connection).sequence_events() == 0
    assert not producer.is_sequenced(committed)
    sequencing.connection.commit()
    assert not producer.is_sequenced(committed)
    assert PlatformStore(producer.connection).sequence_events() == 2
    assert producer.is_sequenced(committed)
