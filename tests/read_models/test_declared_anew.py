"""Models whose declaration, view or history is not what it was: refused with the remedy, never counted twice."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.versions import WrongView, reset_model
from tests.support.building.drains import (
    Everything,
    assert_equals_a_clean_run,
    drain,
    fill,
    things,
)
from tests.support.patience import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["things"]


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

    wait_until(lambda: not any(poll.consumers for poll in things.poll_views()), "the drain's session ended")
    # a reset after the view was renamed removes the old one
    reset_model(things.connection, replace(Everything, view="renamed"))
    assert things.poll_views() == []


def test_a_view_that_is_somebody_elses_is_not_taken_over(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    things.register_view("everything", mode="bulk")
    with (
        pytest.raises(WrongView, match="registered already"),
        Consumer.open(dsn, Everything, lambda: spark, "next"),
    ):
        pass
