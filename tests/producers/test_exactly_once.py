"""The work of a message is done once: duplicates, failures, repetitions, another instance.

Not here: the rules of stamps, races of one stamp (tests/sql/producers).
"""

from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import DeadlockDetected, SerializationFailure

from millrace.errors import Conflict, ProducerFenced, TransactionEnded
from millrace.event_store import Json
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStamp, ProducerStore, SettledMessage
from millrace.producers.exactly_once import ATTEMPTS, Answer, ExactlyOnce, Transaction
from millrace.user_code import NeverRan
from tests.support import factories
from tests.support.factories import Connect, append, new_event, refusal, rows, start, terminate, value, wait_blocked
from tests.support.patience import patience, wait_until
from tests.support.producing.counting import Counting, total

# One message -----------------------------------------------------------------------------------------------------


def test_work_is_done_once_and_answers_twice(once: ExactlyOnce, other: ExactlyOnce, work: Counting) -> None:
    stamp = once.register("p").issue()
    first = once.process(stamp, work)
    offsets = [row[0] for row in rows(once.store.connection, 'select "offset" from event_store.events')]
    assert first == Answer({"total": 1}, False, "committed", offsets, [True] * len(offsets))
    for each in (once, other, once):
        assert each.process(stamp, work) == Answer(first.result, True, "committed", offsets, first.appended)
    assert (work.runs, total(once)) == (1, 1)
    (found,) = once.store.producer_statistics()
    assert (found.received, found.duplicates, found.refused, found.opened, found.committed) == (4, 3, 0, 1, 1)


def test_what_the_work_raises_leaves_nothing(once: ExactlyOnce, work: Counting) -> None:
    async def later(transaction: Transaction) -> Json:
        return work(transaction)

    def refused(transaction: Transaction) -> Json:
        work(transaction)
        transaction.append_all([replace(new_event("a"), expected_version=5).alone])
        return None

    def late(transaction: Transaction) -> Json:
        clock = "select set_config('event_store.clock', (clock_timestamp() + interval '60 s')::text, false)"
        once.store.connection.execute(clock)
        return work(transaction)

    stamp = once.register("p").issue()
    work.fails = [ValueError("no")]
    raising: dict[type[Exception], Any] = {ValueError: work, Conflict: refused, TransactionEnded: late, NeverRan: later}
    for number, (error, fails) in enumerate(raising.items(), 1):
        with pytest.raises(error):
            once.process(stamp, fails, timeout_s=60)
        assert total(once) is None
        (found,) = once.store.producer_statistics()
        assert (found.aborted + found.expired + found.open, found.next_sequence) == (number, 0), error
    assert once.process(stamp, work).result == {"total": 1}


def test_an_abandoned_message_is_answered_as_such_and_its_work_is_not_run(once: ExactlyOnce, work: Counting) -> None:
    producer = once.register("p")
    stamp = producer.issue()
    assert once.abandon(stamp, "no order") == Answer(None, False, "abandoned", [], [])
    assert once.process(stamp, work) == Answer(None, True, "abandoned", [], [])
    assert work.runs == 0
    assert not once.process(producer.issue(), work).duplicate


def test_an_instance_is_fenced_by_the_next_one(once: ExactlyOnce, other: ExactlyOnce, work: Counting) -> None:
    old = once.register("p")

    def overtaken(transaction: Transaction) -> Json:
        other.register("p")
        return work(transaction)

    refusal(ProducerFenced, lambda: once.process(old.issue(), overtaken))
    refusal(ProducerFenced, lambda: once.process(old.reissue(0), work))
    assert (work.runs, total(once)) == (1, None)
    assert other.process(ProducerStamp("p", 0, 2, 0), work).result == {"total": 1}


# Retries ---------------------------------------------------------------------------------------------------------


def test_a_serialization_failure_is_retried(once: ExactlyOnce, work: Counting) -> None:
    producer = once.register("p")
    work.fails = [SerializationFailure("again"), DeadlockDetected("again")]
    assert once.process(producer.issue(), work).result == {"total": 1}
    assert (work.runs, total(once)) == (3, 1)
    stamp = producer.issue()
    for fails, raised, runs in (
        ([SerializationFailure("again") for _ in range(ATTEMPTS)], SerializationFailure, ATTEMPTS),
        # a retry does not help
        ([psycopg.errors.QueryCanceled("too slow")], psycopg.errors.QueryCanceled, 1),
    ):
        work.runs, work.fails = 0, [*fails]
        with pytest.raises(raised):
            once.process(stamp, work)
        assert work.runs == runs
    assert once.process(stamp, work).result == {"total": 2}


def test_a_real_deadlock_is_retried_without_a_double_effect(once: ExactlyOnce, connect: Connect) -> None:
    append(PlatformStore(once.store.connection), "a")
    stamp = once.register("p").issue()
    holder = connect(autocommit=False)
    holder.execute("set deadlock_timeout = '1h'")  # the other session detects the deadlock
    factories.append_to(PlatformStore(holder), "a")
    runs = []

    def work(transaction: Transaction) -> Json:
        runs.append(1)
        transaction.append_all([new_event("a").alone])
        return len(runs)

    pid = once.store.connection.info.backend_pid
    result = start(lambda: once.process(stamp, work))
    with psycopg.connect(holder.info.dsn, autocommit=True) as observer:
        wait_blocked(observer, pid)
    second = start(lambda: holder.execute("select from event_store.producers for update"))
    second.result(patience())
    holder.rollback()
    assert result.result(patience()).result == len(runs) == 2
    assert value(connect(), "select count(*) from event_store.events") == 2


@pytest.mark.parametrize("where", ["in the work", "in the commit", "after the commit"])
def test_a_session_that_is_killed_is_replaced_and_the_work_counts_once(
    once: ExactlyOnce, connect: Connect, work: Counting, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The connection is really lost; the test makes that happen right after the commit."""
    producer, holder, observer = once.register("p"), connect(autocommit=False), connect()
    once.process(producer.issue(), work)
    pid = once.store.connection.info.backend_pid
    commit = ProducerStore.commit_transaction

    def killed(transaction: Transaction) -> Json:
        result = work(transaction)
        if (where, work.runs) == ("in the work", 2):
            terminate(observer, pid)
        return result

    def lost(store: ProducerStore, transaction_id: UUID, result: Json = None) -> SettledMessage:
        commit(store, transaction_id, result)
        monkeypatch.undo()
        terminate(observer, pid)
        return commit(store, transaction_id, result)

    if where == "after the commit":
        monkeypatch.setattr(ProducerStore, "commit_transaction", lost)
    if where == "in the commit":
        holder.execute("select from event_store.producer_state for update")
    done = start(lambda: once.process(producer.issue(), killed))
    if where == "in the commit":
        wait_blocked(observer, pid)
        terminate(observer, pid)
        holder.rollback()
    answer = done.result(patience())
    # a commit counts even if its reply is lost, and a retry gets its answer
    assert (answer.result, answer.duplicate) == ({"total": 2}, where == "after the commit")
    assert (work.runs, total(once)) == (2 if where == "after the commit" else 3, 2)


def test_a_lost_session_is_replaced_before_a_message(once: ExactlyOnce, work: Counting, connect: Connect) -> None:
    producer, observer = once.register("p"), connect()
    first = once.store.connection
    once.process(producer.issue(), work)
    assert once.store.connection is first

    def terminated(session: psycopg.Connection) -> None:
        terminate(observer, session.info.backend_pid)

    def noticed(session: psycopg.Connection) -> None:
        terminated(session)
        with pytest.raises(psycopg.OperationalError):
            session.execute("select")

    def idle(session: psycopg.Connection) -> None:
        session.execute("set idle_session_timeout = '1ms'")

    def idle_in_a_transaction(session: psycopg.Connection) -> None:
        session.execute("set idle_in_transaction_session_timeout = '1ms'")
        session.execute("begin")

    sessions = "select from pg_stat_activity where pid = %s"
    for number, lose in enumerate((terminated, noticed, idle, idle_in_a_transaction), 2):
        session = once.store.connection
        pid = session.info.backend_pid
        lose(session)
        wait_until(lambda pid=pid: not rows(observer, sessions, pid), "the session ended")  # type: ignore[misc]
        assert once.process(producer.issue(), work).result == {"total": number}, lose.__name__
        assert once.store.connection is not session
        assert (work.runs, total(once)) == (number, number)


def test_a_state_that_is_null_is_none_at_all(once: ExactlyOnce) -> None:
    producer = once.register("p")

    def changes(**values: Json) -> Json:
        def work(transaction: Transaction) -> Json:
            before: Json = transaction.state("k")
            for key, new in values.items():
                transaction.set_state(key, new)
            return before

        found: Json = once.process(producer.issue(), work).result
        return found

    assert changes(k={"n": None}, other=False) is None
    assert changes(k=None) == {"n": None}
    assert [(entry.key, entry.value) for entry in once.store.get_producer_state("p", 0)] == [("other", False)]
    assert changes() is None
    once.store.ingest_events("p", 0, producer.epoch, producer.issue().sequence, state={"other": None, "k": 0})
    assert [(entry.key, entry.value) for entry in once.store.get_producer_state("p", 0)] == [("k", 0)]
