"""Producers that are killed at random moments: the end state is that of a run without a kill."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.errors import UnknownTransaction
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore
from millrace.producers.exactly_once import ExactlyOnce, Transaction
from tests.processes.producers.killed_producers import SOURCE, payments, work
from tests.support.factories import Connect, assert_log_holds_every_event_once, new_event, register_orders, rows, value
from tests.support.patience import wait_until
from tests.support.producing.messages import state_of
from tests.support.project import PROJECT
from tests.support.running.own_server import own_server
from tests.support.running.programs import ran


def events_of(store: ProducerStore, prefix: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for decider_id, data in rows(
        store.connection,
        'select decider_id, data from event_store.events where starts_with(decider_id, %s) order by "offset"',
        prefix,
    ):
        found.setdefault(decider_id.removeprefix(prefix), []).append(data)
    return found


def results_of(store: ProducerStore, producer_id: str) -> list[tuple[Any, ...]]:
    """Return the outcome of each message, and the events at its offsets."""
    return rows(
        store.connection,
        """
        select sequence, outcome, result, array(
          select e.data from unnest(r.offsets) with ordinality o("offset", number)
          join event_store.events e using ("offset") order by o.number
        )
        from event_store.producer_results r where producer_id = %s order by sequence
        """,
        producer_id,
    )


@pytest.mark.timeout(3600)
def test_after_random_kills_all_is_as_in_a_clean_run(dsn: str, connect: Connect, pytestconfig: pytest.Config) -> None:
    kills = pytestconfig.getoption("kills")
    store = ProducerStore(connect())
    register_orders(PlatformStore(store.connection))
    killing = (sys.executable, "-m", "tests.processes.producers.killed_producers", dsn, kills, 4711)
    told = json.loads(ran(*killing, cwd=PROJECT, patiences=50).stdout)
    assert told["kills"] >= kills
    messages = told["messages"]

    # a clean run of the same source
    with ExactlyOnce(dsn) as exactly_once:
        producer = exactly_once.register("clean")
        while producer.current_sequence < messages:
            stamp = producer.issue()
            exactly_once.process(stamp, work(stamp.sequence, prefix="clean:"))

    paid = [payment for number in range(messages) for payment in payments(number)]
    assert state_of(store, SOURCE) == state_of(store, "clean")
    assert state_of(store, SOURCE)["total"] == sum(amount for _, amount in paid)
    assert state_of(store, SOURCE)["position"] == messages - 1
    assert results_of(store, SOURCE) == results_of(store, "clean")
    assert [row[0] for row in results_of(store, SOURCE)] == list(range(messages))
    assert events_of(store, "s-") == {key.removeprefix("s-"): data for key, data in events_of(store, "clean:").items()}
    assert value(store.connection, "select count(*) from event_store.events") == 2 * len(paid)

    (found,) = store.producer_statistics(SOURCE)
    assert (found.next_sequence, found.committed) == (messages, messages)
    assert found.received == found.duplicates + found.refused + found.opened
    assert found.opened == found.committed + found.aborted + found.expired + found.superseded + found.open
    if kills >= 100:  # with this many kills each outcome comes
        assert min(found.duplicates, found.aborted, told["raced"]) > 0
        assert found.epoch > kills / 10
    orphans = """select from event_store.staged_changes c where not exists (
        select from event_store.transactions t where t.transaction_id = c.transaction_id and t.state = 'open')"""
    assert rows(store.connection, orphans) == []
    while PlatformStore(store.connection).sequence_events():
        pass
    assert_log_holds_every_event_once(store.connection)


def test_messages_are_done_once_though_the_server_crashes() -> None:
    with own_server("crashes") as server:
        dsn = server.dsn("crashes")
        with ExactlyOnce(dsn) as exactly_once, ExactlyOnce(dsn) as other:
            register_orders(PlatformStore(exactly_once.store.connection))
            producer = exactly_once.register("p")
            ran = []

            def count(transaction: Transaction) -> int:
                total = (transaction.state("total") or 0) + 1
                transaction.set_state("total", total)
                transaction.append_all([new_event("a").alone])
                ran.append(total)
                if len(ran) == 2:
                    crash(other)
                return total

            assert exactly_once.process(producer.issue(), count).result == 1
            left = other.store.begin_transaction("p", 0, 1, 1).transaction_id
            assert left is not None
            # killed in the work of the second message: a new session begins it again
            assert exactly_once.process(producer.issue(), count).result == 2
            assert ran == [1, 2, 2]
            with pytest.raises(UnknownTransaction):
                other.store.commit_transaction(left)
            assert other.process(producer.reissue(0), count).duplicate
            store = other.store
            assert value(store.connection, "select count(*) from event_store.events") == 2
            assert [entry.value for entry in store.get_producer_state("p", 0)] == [2]
            assert rows(store.connection, "select from event_store.transactions") == []


def crash(session: ExactlyOnce) -> None:
    """Kill a backend as the kernel would: the server ends all other backends and recovers from its log."""
    pid = value(session.store.connection, "select pg_backend_pid()")
    dsn = session.store.connection.info.dsn
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        try:
            with psycopg.connect(dsn) as connection:
                connection.execute("select")
        except psycopg.OperationalError:
            return False
        return True

    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the backend is gone")
    wait_until(is_back, "the server has recovered")
    session.store.connection.close()
