"""Drains that end on request, and their results: the model always equals a clean run."""

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from psycopg import Connection
from pyspark.errors import AnalysisException

from millrace.drain import round as one_round
from millrace.drain.report import DrainReport
from millrace.drain.view_drain import ViewDrain
from millrace.read_models.stored.versions import ensure_version
from tests.support.building.drains import Counted, Crossing, all_blocked, held, staged, thing, wait_blocked_in
from tests.support.building.lab import Lab
from tests.support.building.poison import WORTHS, correct, poison
from tests.support.factories import Connect, at_once, rows, start
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_drain_without_budget_takes_nothing(lab: Lab) -> None:
    lab.fill(10)
    with lab.consumer(Counted) as consumer:
        assert consumer.drain(budget_s=0, idle_s=60) == DrainReport()
    assert lab.lease_owners("counted") == []
    assert lab.rows("select view from event_store.consumers") == []


def test_a_drain_that_is_told_to_stop_ends_after_its_batch(lab: Lab) -> None:
    lab.fill(60)
    stop = threading.Event()
    with lab.consumer(Counted) as consumer:
        report = consumer.drain(
            budget_s=patience(), idle_s=60, batch_events=10, stop=stop, on_commit=lambda _: stop.set()
        )
    assert (report.batches, report.events) == (1, 10)
    assert lab.lease_owners("counted") == []


def test_an_idle_drain_takes_what_comes_before_it_ends(lab: Lab, observer: Connection) -> None:
    asked: list[int] = []
    idle = replace(Counted, pooling_delay_s=0)
    with lab.consumer(idle) as consumer:
        running = start(
            lambda: consumer.drain(budget_s=patience(), idle_s=1, on_commit=lambda c: asked.append(c.events))
        )
        wait_until(
            lambda: rows(
                observer, "select from pg_stat_activity where query ilike '%%claim_batch(%%' and state = 'idle'"
            ),
            "the drain polled and found nothing",
        )
        lab.fill(30)
        report = running.result(patience())
    assert (report.events, sum(asked)) == (30, 30)
    lab.is_clean(Counted)


def test_few_events_are_committed_without_staging(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_round, "ROUND_EVENTS", 2)
    numbers = "select case when is_called then last_value else 0 end from read_models.batch_seq"
    with lab.consumer(WORTHS) as consumer:

        def drained(*events: BatchEvent) -> list[tuple[int, bool]]:
            """Return for each commit with new events their number, and whether a batch has been staged so far."""
            append_events(lab, events)
            found: list[tuple[int, bool]] = []
            before = lab.value(numbers)
            consumer.drain(
                budget_s=patience(), idle_s=0, on_commit=lambda c: found.append((c.events, lab.value(numbers) > before))
            )
            return [commit for commit in found if commit[0]]

        assert drained(*(thing("t-1", worth=1) for _ in range(3))) == [(3, True)]
        assert drained(thing("t-1", worth=1)) == [(1, False)]
        assert drained(poison("t-2"), thing("t-1", worth=1)) == [(2, False)]
        correct(lab.connection, "t-2", '{"worth": 1}')
        assert drained(thing("t-1", worth=1)) == [(1, False)]
        assert drained(thing("t-1", worth=1)) == [(1, False)]
    assert lab.rows("select events, worth from read_models.worths where thing_id = 't-1'") == [(7, 7)]


def test_where_a_round_cannot_be_built_a_batch_is(lab: Lab) -> None:
    lab.fill(30)

    def fail() -> None:
        raise AnalysisException("a plan that nobody can make for a moment")

    with ViewDrain(lab.dsn, Counted, lab.once(fail), "next") as consumer:
        assert consumer.drain(budget_s=patience(), idle_s=0).events == 30
    lab.is_clean(Counted)


def test_a_batch_that_is_not_committed_leaves_no_rows(lab: Lab) -> None:
    lab.fill(60)
    lost = threading.Event()

    def spark_whose_leases_are_lost_meanwhile() -> "SparkSession":
        lab.execute("update event_store.checkpoints set lease_token = lease_token + 1")
        lost.set()
        return lab.spark

    with ViewDrain(lab.dsn, Counted, spark_whose_leases_are_lost_meanwhile, "late") as consumer:
        report = staged(consumer).drain(budget_s=patience(), idle_s=0, stop=lost)
        assert (report.batches, report.failed) == (0, {})
    assert lab.rows("select count(*) from read_models.counted_staging") == [(0,)]


def test_a_model_whose_key_crosses_streams_is_drained_by_two(lab: Lab) -> None:
    lab.fill(80)
    ensure_version(lab.connection, Crossing)
    at_once([lambda: lab.drain(Crossing, "A"), lambda: lab.drain(Crossing, "B")])
    lab.is_clean(Crossing)


class Interrupted(BaseException):
    """Stands for the exception that Dagster raises in a run's thread: no KeyboardInterrupt."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_commit_frees_every_lease_at_once(lab: Lab, connect: Connect, observer: Connection) -> None:
    lab.fill(40)
    ensure_version(lab.connection, Counted)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt_in_its_wait() -> list[str]:
        wait_blocked_in(observer, Counted.name)
        owners = lab.lease_owners(Counted.view)
        signal.pthread_kill(main, signal.SIGUSR1)
        return owners

    with held(connect(), f"lock table read_models.{Counted.name} in exclusive mode"):
        interrupted = start(interrupt_in_its_wait)
        with pytest.raises(Interrupted):
            lab.drain(Counted, owner="interrupted")
        assert interrupted.result(patience()) == ["interrupted"]
        assert lab.lease_owners(Counted.view) == []
        assert all_blocked(observer, Counted.name) == []
    lab.drain(Counted)
    lab.is_clean(Counted)
