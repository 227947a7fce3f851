"""What does not end, in a rebuild and in a Spark of a process of our own: it is cancelled, and its process ends."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.limits import Limits
from millrace.resources.consumption.report import PartitionsFailed
from millrace.resources.event_store import EventStore
from millrace.resources.settings import PROJECT
from tests.support.building.drains import thing, things
from tests.support.building.hanging import Hanging, all_over, hang_at
from tests.support.building.shared_drains import FEW, positions
from tests.support.factories import rows
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]

LIMITS = Limits(build_s=15)


def test_a_rebuild_that_does_not_end_is_cancelled_and_says_so(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    told = tmp_path / "told"
    (event,) = things.append_events([hang_at(told, stubborn=True)])
    things.sequence_events()
    ((partition,),) = rows(
        things.connection, 'select partition from event_store.event_log where "offset" = %s', event.offset
    )
    with (
        Consumer.open(dsn, Hanging, lambda: spark, "own", limits=LIMITS) as consumer,
        pytest.raises(PartitionsFailed, match="Spark had not ended after 15 s"),
    ):
        consumer.rebuild(partition)
    all_over(told)
    assert things.lease_owners("hanging") == []


LOCALLY = """
import sys
from pathlib import Path
from millrace.resources.consumption.limits import Limits
from millrace.resources.consumption.rounds.drain import SharedDrain
from millrace.resources.spark import spark_session
from tests.support.building.hanging import Hanging, all_over
from tests.support.building.shared_drains import FEW, why_away
with spark_session() as spark:
    # what is new here is that Spark runs in a process of ours
    with SharedDrain(sys.argv[1], [*FEW, Hanging], lambda: spark, "rounds", limits=Limits(round_s=15)) as shared:
        shared.run(budget_s=600, idle_s=0)
        print(why_away(shared))
    all_over(Path(sys.argv[2]))
"""


def test_in_a_local_session_a_function_that_nothing_in_python_ends_is_ended_too(
    things: EventStore, dsn: str, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    things.append_events([hang_at(told, stubborn=True), thing("a"), thing("b", owner="o")])
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(
        [sys.executable, "-c", LOCALLY, dsn, str(told)],
        cwd=PROJECT,
        env=env | {"SPARK_MASTER": "local[2]"},
        capture_output=True,
        text=True,
        timeout=2 * patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "'hanging': 'Spark had not ended after 15 s'" in done.stdout
    assert [positions(things.connection, model.view) for model in FEW] == [3, 3, 3]
