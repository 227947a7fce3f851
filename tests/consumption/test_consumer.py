"""Drains that end as they are told, and what they leave: the model always equals a clean run."""

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyspark.errors import AnalysisException

from millrace.resources.consumption import round as one_round
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import DrainReport
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.read_models.stored.versions import ensure_version
from tests.support.building.drains import (
    Counted,
    Crossing,
    all_blocked,
    assert_equals_a_clean_run,
    drain,
    fill,
    held,
    observer,
    staged,
    thing,
    things,
    wait_blocked_in,
)
from tests.support.building.poison import WORTHS, correct, poison
from tests.support.factories import Connect, at_once, rows, start, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["observer", "things"]


# Budget, idle, stop ----------------------------------------------------------------------------------------


def test_a_drain_without_budget_takes_nothing(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 10)
    with Consumer(dsn, Counted, lambda: spark, "next") as consumer:
        assert consumer.drain(budget_s=0, idle_s=60) == DrainReport()
    assert things.lease_owners("counted") == []
    assert rows(things.connection, "select view from event_store.consumers") == []


def test_a_drain_that_is_told_to_stop_ends_after_its_batch(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 60)
    stop = threading.Event()
    with Consumer(dsn, Counted, lambda: spark, "next") as consumer:
        report = consumer.drain(
            budget_s=patience(), idle_s=60, batch_events=10, stop=stop, on_commit=lambda _: stop.set()
        )
    assert (report.batches, report.events) == (1, 10)
    assert things.lease_owners("counted") == []


def test_an_idle_drain_takes_what_comes_and_ends_when_nothing_came_for_its_idle_time(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection
) -> None:
    asked: list[int] = []
    idle = replace(Counted, pooling_delay_s=0)
    with Consumer(dsn, idle, lambda: spark, "next") as consumer:
        running = start(
            lambda: consumer.drain(budget_s=patience(), idle_s=1, on_commit=lambda c: asked.append(c.events))
        )
        wait_until(
            lambda: rows(
                observer, "select from pg_stat_activity where query ilike '%%claim_batch(%%' and state = 'idle'"
            ),
            "the drain polled and found nothing",
        )
        fill(things, 30)
        report = running.result(patience())
    assert (report.events, sum(asked)) == (30, 30)
    assert_equals_a_clean_run(things, Counted)


def test_few_events_are_committed_without_staging_and_what_is_more_or_follows_a_failure_is_staged(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_round, "ROUND_EVENTS", 2)
    numbers = "select case when is_called then last_value else 0 end from read_models.batch_seq"
    with Consumer(dsn, WORTHS, lambda: spark, "next") as consumer:

        def drained(*events: NewEvent) -> list[tuple[int, bool]]:
            """Return of each commit with new events how many, and whether a batch was staged since the beginning."""
            things.append_events(events)
            found: list[tuple[int, bool]] = []
            before = value(things.connection, numbers)
            consumer.drain(
                budget_s=patience(),
                idle_s=0,
                on_commit=lambda c: found.append((c.events, value(things.connection, numbers) > before)),
            )
            return [commit for commit in found if commit[0]]

        assert drained(*(thing("t-1", worth=1) for _ in range(3))) == [(3, True)]
        assert drained(thing("t-1", worth=1)) == [(1, False)]
        assert drained(poison("t-2"), thing("t-1", worth=1)) == [(2, False)]
        correct(things.connection, "t-2", '{"worth": 1}')
        assert drained(thing("t-1", worth=1)) == [(1, False)]
        assert drained(thing("t-1", worth=1)) == [(1, False)]
    assert rows(things.connection, "select events, worth from read_models.worths where thing_id = 't-1'") == [(7, 7)]


def test_a_round_that_cannot_be_built_gives_its_leases_back_and_a_batch_is_staged(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 30)
    asked: list[int] = []

    def session() -> "SparkSession":
        asked.append(1)
        if len(asked) == 1:
            raise AnalysisException("a plan that nobody can make for a moment")
        return spark

    with Consumer(dsn, Counted, session, "next") as consumer:
        assert consumer.drain(budget_s=patience(), idle_s=0).events == 30
    assert_equals_a_clean_run(things, Counted)


# Staged and shared ----------------------------------------------------------------------------------------


def test_a_batch_that_is_not_committed_leaves_no_staged_rows(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    lost = threading.Event()

    def spark_whose_leases_are_lost_meanwhile() -> "SparkSession":
        things.connection.execute("update event_store.checkpoints set lease_token = lease_token + 1")
        lost.set()
        return spark

    with Consumer(dsn, Counted, spark_whose_leases_are_lost_meanwhile, "late") as consumer:
        report = staged(consumer).drain(budget_s=patience(), idle_s=0, stop=lost)
        assert (report.batches, report.failed) == (0, {})
    assert rows(things.connection, "select count(*) from read_models.counted_staging") == [(0,)]


def test_a_model_whose_key_crosses_streams_is_drained_by_two_and_equals_a_clean_run(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 80)
    ensure_version(things.connection, Crossing)
    at_once([lambda: drain(dsn, spark, Crossing, "A"), lambda: drain(dsn, spark, Crossing, "B")])
    assert_equals_a_clean_run(things, Crossing)


# Interrupted, as Dagster does where a run is terminated ---------------------------------------------------


class Interrupted(BaseException):
    """What Dagster raises in the thread of a run: no KeyboardInterrupt."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
def test_a_commit_that_waits_for_a_table_frees_every_lease_while_the_table_is_still_in_use(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect, observer: psycopg.Connection
) -> None:
    fill(things, 40)
    ensure_version(things.connection, Counted)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt_in_its_wait() -> list[str]:
        wait_blocked_in(observer, Counted.name)
        owners = things.lease_owners(Counted.view)
        signal.pthread_kill(main, signal.SIGUSR1)
        return owners

    with held(connect(), f"lock table read_models.{Counted.name} in exclusive mode"):
        interrupted = start(interrupt_in_its_wait)
        with pytest.raises(Interrupted):
            drain(dsn, spark, Counted, owner="interrupted")
        assert interrupted.result(patience()) == ["interrupted"]
        assert things.lease_owners(Counted.view) == []
        assert all_blocked(observer, Counted.name) == []
    drain(dsn, spark, Counted)
    assert_equals_a_clean_run(things, Counted)
