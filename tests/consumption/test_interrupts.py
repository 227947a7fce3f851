"""A drain that is interrupted while a statement waits, as Dagster does where a run is terminated."""

import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from millrace.resources.read_models.versions import ensure_version
from tests.support.building.drains import (
    Everything,
    all_blocked,
    assert_equals_a_clean_run,
    drain,
    fill,
    held,
    observer,
    things,
    wait_blocked_in,
)
from tests.support.factories import Connect, start
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["observer", "things"]


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
    ensure_version(things.connection, Everything)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt_in_its_wait() -> list[str]:
        wait_blocked_in(observer, Everything.name)
        owners = things.lease_owners(Everything.view)
        signal.pthread_kill(main, signal.SIGUSR1)
        return owners

    with held(connect(), f"lock table read_models.{Everything.name} in exclusive mode"):
        interrupted = start(interrupt_in_its_wait)
        with pytest.raises(Interrupted):
            drain(dsn, spark, owner="interrupted")
        assert interrupted.result(patience()) == ["interrupted"]
        assert things.lease_owners(Everything.view) == []
        assert all_blocked(observer, Everything.name) == []
    drain(dsn, spark)
    assert_equals_a_clean_run(things)
