"""How late the rows of a view are while another view has trouble: it fails, is far behind, or waits for a lock.

Belongs here: the trouble, and a process that consumes that view alone, as the sensor of the view has it. Not here: how
late rows are (`latency`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event as Signal
from typing import cast

import psycopg

from benchmarks.views.bench import Bench, Shop, append
from benchmarks.views.latency import Latency, of_drain
from benchmarks.views.models import models
from millrace import fold
from millrace.resources.consumption.build_errors import build_errors
from millrace.resources.consumption.collected import ROUND_CONFIGURATION
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.drain import Drain
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.spark import spark_session
from millrace.rows import FoldEvent, State

VIEWS = 8
FAILS, IS_BEHIND, WAITS = "parcels", "products", "payments"

Trouble = Callable[[str], AbstractContextManager[None]]


def of_views(bench: Bench, trouble: str, appends: int, behind: int) -> tuple[Latency, Latency]:
    """Return the latency of eight views without trouble, and beside one that has it; `behind` events are far."""
    sides: list[tuple[Trouble, int]] = [
        (_none, 2000),
        (TROUBLES[trouble], behind if trouble == FAR else 2000),
    ]
    found = []
    for causes, before in sides:
        shop, dsn = Shop(), bench.store()
        append(dsn, shop.events(before))
        with causes(dsn):
            found.append(of_drain(bench, dsn, shop, _views(fails=causes is _fails), appends))
    free, beside = found
    return free, beside


@contextmanager
def _none(_: str) -> Iterator[None]:
    yield


@contextmanager
def _fails(dsn: str) -> Iterator[None]:
    """Let one view's function raise at each event."""
    with _own_runs(dsn, FAILS):
        yield


@contextmanager
def _is_behind(dsn: str) -> Iterator[None]:
    """Let one view begin with the log, which the others have consumed."""
    _catch_up(dsn, [model for model in _views() if model.view != IS_BEHIND])
    with _own_runs(dsn, IS_BEHIND), psycopg.connect(dsn, autocommit=True) as connection:
        store = EventStore(connection)
        # the view's own run is at work
        while not any(poll.consumers for poll in store.poll_views([IS_BEHIND])):
            time.sleep(0.1)
        yield


@contextmanager
def _waits(dsn: str) -> Iterator[None]:
    """Hold a lock that one view's commits need."""
    _catch_up(dsn, _views())
    with psycopg.connect(dsn) as holder:
        holder.execute(f"lock table read_models.{WAITS} in access exclusive mode".encode())
        with _own_runs(dsn, WAITS):
            yield
            holder.rollback()


FAR = "is far behind"
TROUBLES: dict[str, Trouble] = {"fails": _fails, FAR: _is_behind, "waits for a lock": _waits}


def _catch_up(dsn: str, views: Sequence[ReadModel]) -> None:
    with (
        spark_session(ROUND_CONFIGURATION) as session,
        Drain(dsn, views, lambda: session, "first") as shared,
    ):
        shared.run(budget_s=3600, idle_s=0)


def _views(*, fails: bool = False) -> list[ReadModel]:
    @fold(view=FAILS, deciders=["shipment"], key="shipment_id", columns={"at": "string"})
    def parcels(_: State | None, event: FoldEvent) -> State:
        """Where a parcel is, which nobody finds out."""
        raise ValueError(event.event)

    return [cast("ReadModel", parcels) if fails and model.view == FAILS else model for model in models(VIEWS)]


@contextmanager
def _own_runs(dsn: str, view: str) -> Iterator[None]:
    """Consume a view in a process of its own, one drain after the other, as its sensor starts them."""
    spawn = get_context("spawn")
    stop = spawn.Event()
    process = spawn.Process(target=_consume, args=(dsn, view, stop), daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(60)
        process.terminate()
        process.join()


def _consume(dsn: str, view: str, stop: Signal) -> None:
    (model,) = (model for model in _views(fails=view == FAILS) if model.view == view)
    failures = 0
    errors: tuple[type[Exception], ...] = (MillraceError, *build_errors())
    with spark_session() as session:
        while not stop.is_set():
            try:
                with Consumer(dsn, model, lambda: session, f"own {view}") as consumer:
                    consumer.drain(budget_s=30, idle_s=1)
                failures = 0
            except errors:
                failures += 1
            # as long as the store has a sensor wait
            stop.wait(min(5.0 * 2 ** max(failures - 1, 0), 60.0))
