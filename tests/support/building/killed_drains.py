"""A drain in its own process, to be killed at some step, and functions that observe the step from outside."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import psycopg

from tests.support.building.drains import all_blocked
from tests.support.factories import value
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT

Victim = subprocess.Popen[bytes]
# a drain in its own process, like a Dagster run
VICTIM = """
import sys
from millrace.drain.view_drain import ViewDrain
from millrace.spark import spark_session
from tests.support.building import read_models as read_models_for_tests
from tests.support.building import poison
from tests.support.building.drains import staged
model = getattr(read_models_for_tests, sys.argv[3], None) or getattr(poison, sys.argv[3])
with spark_session() as spark, ViewDrain(sys.argv[1], model, lambda: spark, "victim", lease_s=600) as consumer:
    staged(consumer).drain(budget_s=600, idle_s=600, batch_events=int(sys.argv[2]))
"""
# a drain of several views, like the shared run
SHARING_VICTIM = """
import sys
from millrace.drain import round as one_round
from millrace.drain.loop import Drain
from millrace.spark import spark_session
from tests.support.building.shared_drains import TOGETHER
one_round.ROUND_EVENTS = one_round.MOST_EVENTS = int(sys.argv[2]) * len(TOGETHER)
with spark_session() as spark, Drain(sys.argv[1], TOGETHER, lambda: spark, "victim", lease_s=600) as shared:
    shared.run(budget_s=600, idle_s=600)
"""


def victim(dsn: str, batch_events: int, model: str = "Everything") -> AbstractContextManager[Victim]:
    return killed_in_the_end(VICTIM, dsn, str(batch_events), model)


def sharing_victim(dsn: str, round_events: int) -> AbstractContextManager[Victim]:
    return killed_in_the_end(SHARING_VICTIM, dsn, str(round_events))


@contextmanager
def killed_in_the_end(script: str, *arguments: str) -> Iterator[Victim]:
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=PROJECT, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait(patience())


def kill_at(process: Victim, observer: psycopg.Connection, step: Callable[[psycopg.Connection], bool]) -> None:
    wait_until(lambda: step(observer) or process.poll() is not None, getattr(step, "__name__", "the step"))
    assert process.poll() is None, "it ended before the step"
    process.kill()
    process.wait(patience())


def lease_taken(observer: psycopg.Connection) -> bool:
    return bool(value(observer, "select count(*) from event_store.checkpoints where lease_owner = 'victim'"))


def rows_staged(observer: psycopg.Connection) -> bool:
    """Return whether rows of any model are staged, committed or in progress."""
    sizes = "select sum(pg_relation_size(oid)) from pg_class where relname like '%%_staging' and relkind = 'r'"
    return bool(value(observer, sizes))


def consumed(observer: psycopg.Connection) -> int:
    return int(value(observer, "select coalesce(sum(position), 0)::int from event_store.checkpoints"))


def some_commits(observer: psycopg.Connection) -> bool:
    return consumed(observer) >= 60


def merged_but_not_committed(observer: psycopg.Connection) -> bool:
    # the checkpoint is moved and the merge waits for the table's lock, which the test holds
    return bool(all_blocked(observer, 'insert into "read_models"'))


def some_views_committed_and_one_waits(observer: psycopg.Connection) -> bool:
    return consumed(observer) > 0 and merged_but_not_committed(observer)
