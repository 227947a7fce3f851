"""Models whose declaration, view or history is not what it was: refused with the remedy, never counted twice."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.tables import HistoryMissing
from millrace.resources.read_models.versions import WrongView, ensure_version, reset_model
from tests.support.building.drains import (
    Crossing,
    Everything,
    assert_equals_a_clean_run,
    busiest,
    drain,
    fill,
    rows_of,
    things,
)
from tests.support.patience import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["things"]


def test_a_shortened_log_keeps_a_model_going_and_is_no_ground_to_build_one(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 40)
    drain(dsn, spark)
    before = rows_of(things.connection, Everything)
    full = busiest(things)
    ArchiveStore(things.connection).mark_archived(full, 1)
    ArchiveStore(things.connection).raise_low_water_mark(full, 1, "a test")
    with Consumer.open(dsn, Everything, lambda: spark, "rebuilder") as consumer:
        with pytest.raises(HistoryMissing, match=f"log partition {full} begins at 1"):
            consumer.rebuild(full)
        consumer.rebuild((full + 1) % 16)
    assert rows_of(things.connection, Everything) == before
    fill(things, 20, seed=2)
    assert drain(dsn, spark).events == 20
    with pytest.raises(HistoryMissing):
        ensure_version(things.connection, Crossing)


def test_a_model_whose_view_was_removed_is_refused_and_counts_nothing_twice(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 30)
    drain(dsn, spark)
    things.connection.execute("delete from event_store.views where view = 'everything'")
    with pytest.raises(WrongView, match="was removed"), Consumer.open(dsn, Everything, lambda: spark, "next"):
        pass
    reset_model(things.connection, Everything)
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_a_view_that_is_somebody_elses_is_not_taken_over(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    things.register_view("everything", mode="bulk")
    with (
        pytest.raises(WrongView, match="registered already"),
        Consumer.open(dsn, Everything, lambda: spark, "next"),
    ):
        pass


def test_a_reset_after_the_view_was_renamed_removes_the_old_view(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 10)
    drain(dsn, spark)
    wait_until(lambda: not any(poll.consumers for poll in things.poll_views()), "the drain's session ended")
    reset_model(things.connection, replace(Everything, view="renamed"))
    assert things.poll_views() == []
