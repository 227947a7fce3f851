"""Drains that end as they are told, and what they leave: the model always equals a clean run."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import DrainReport
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.versions import ensure_version
from tests.support.building.drains import (
    Crossing,
    Everything,
    all_events,
    assert_equals_a_clean_run,
    close,
    drain,
    fill,
    observer,
    rows_of,
    things,
)
from tests.support.building.read_models import expected_crossing
from tests.support.factories import at_once, rows, start
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["observer", "things"]


# Budget, idle, stop ----------------------------------------------------------------------------------------


def test_a_drain_without_budget_takes_nothing(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 10)
    with Consumer.open(dsn, Everything, lambda: spark, "next") as consumer:
        assert consumer.drain(budget_s=0, idle_s=60) == DrainReport()
    assert things.lease_owners("everything") == []


def test_a_drain_that_is_told_to_stop_ends_after_its_batch(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 60)
    stop = threading.Event()
    with Consumer.open(dsn, Everything, lambda: spark, "next") as consumer:
        report = consumer.drain(
            budget_s=patience(), idle_s=60, batch_events=10, stop=stop, on_commit=lambda _: stop.set()
        )
    assert (report.batches, report.events) == (1, 10)
    assert things.lease_owners("everything") == []


def test_an_idle_drain_takes_what_comes_and_ends_when_nothing_came_for_its_idle_time(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection
) -> None:
    asked: list[int] = []
    idle = replace(Everything, pooling_delay_s=0)
    with Consumer.open(dsn, idle, lambda: spark, "next") as consumer:
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
    assert_equals_a_clean_run(things)


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

    with Consumer.open(dsn, Everything, spark_whose_leases_are_lost_meanwhile, "late") as consumer:
        report = consumer.drain(budget_s=60, idle_s=0, stop=lost)
        assert (report.batches, report.failed) == (0, {})
    assert rows(things.connection, "select count(*) from read_models.everything_staging") == [(0,)]


def test_a_model_whose_key_crosses_streams_is_drained_by_two_and_equals_a_clean_run(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 80)
    ensure_version(things.connection, Crossing)
    at_once([lambda: drain(dsn, spark, Crossing, "A"), lambda: drain(dsn, spark, Crossing, "B")])
    assert close(rows_of(things.connection, Crossing)) == close(expected_crossing(all_events(things)))
