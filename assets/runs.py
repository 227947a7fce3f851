"""Runs of Dagster and the store: the begin and end of drains, owners of leases, the progress of a long run."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import dagster as dg
import psycopg

from millrace.drain.build_errors import cause
from millrace.errors import MillraceError
from millrace.patience import POLL_S, REST_S, WATCH_S
from millrace.redact import masked
from millrace.resources.postgres import PostgresResource

T = TypeVar("T")


def release_dead(instance: dg.DagsterInstance, owners: Iterable[str], release: Callable[[str], object]) -> None:
    """Call `release` for each owner of leases that is a finished run in Dagster: a killed run could not do so."""
    for owner in owners:
        run = instance.get_run_by_id(owner)
        if run is not None and run.is_finished:
            release(owner)


@contextmanager
def one_try(postgres: PostgresResource, drain: str, owner: str, wait_s: float = 0) -> Iterator[bool]:
    """Record a drain's begin and end in the store, for the sensors. Yield False if another run has the drain.

    A run that renews another run's drain waits up to `wait_s` seconds for its end. A terminated drain does not count as
    failed.
    """
    deadline = time.monotonic() + wait_s
    with postgres.store() as store:
        while not (began := store.begin_drain(drain, owner)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    error: str | None = None
    try:
        yield began
    except Exception as failed:
        error = masked(cause(failed))
        raise
    finally:
        # if the store does not answer, it detects the end by itself
        with suppress(MillraceError, psycopg.Error):
            if began:
                with postgres.store() as store:
                    store.end_drain(drain, owner, error)


class _WhileItRuns(dg.Executor):
    def __init__(self, in_process: dg.Executor) -> None:
        self._in_process = in_process

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever Dagster asks of an executor
        return getattr(self._in_process, name)

    @property
    def retries(self) -> Any:  # noqa: ANN401 - the type is private to Dagster
        return self._in_process.retries

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[Any]:  # noqa: ANN401 - private types, too
        """Execute a plan; interrupt the main thread once the run is over, as its termination does."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(WATCH_S):
                try:
                    run = plan_context.instance.get_run_by_id(plan_context.run_id)
                except Exception:  # noqa: BLE001, S112  whatever Dagster's storage raises while it is away
                    continue
                if run is not None and run.is_finished and not ended.is_set():
                    # a real signal: only a signal wakes a waiting thread
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    return

        watcher = threading.Thread(target=watch, name="its run", daemon=True)
        watcher.start()
        try:
            yield from self._in_process.execute(plan_context, execution_plan)
        finally:
            ended.set()
            # a silent storage must not block the run: from here on the thread interrupts nothing
            watcher.join(WATCH_S)


def _made(context: dg.InitExecutorContext) -> dg.Executor:
    make = dg.in_process_executor.executor_creation_fn
    assert make is not None
    return _WhileItRuns(make(context))


# All steps run in the run's own process, which ends once Dagster has finished the run: Dagster may mark a run as failed
# or canceled while its process lives, and its work would be invisible.
while_it_runs = dg.ExecutorDefinition(
    name=dg.in_process_executor.name,
    config_schema=dg.in_process_executor.config_schema,  # type: ignore[arg-type]  # as it gives it
    executor_creation_fn=_made,
)


class Progress(Generic[T]):
    """Shows the progress of a running drain or capture: after its first step with a result, then every five minutes."""

    def __init__(self, show: Callable[[T], None]) -> None:
        self._show = show
        self._shown_at = float("-inf")

    def step(self, sofar: T) -> None:
        """Show the progress if it is time."""
        # not more often: each view has sixteen partitions to record
        if time.monotonic() - self._shown_at >= REST_S:
            self.show(sofar)

    def show(self, sofar: T) -> None:
        """Show the progress now."""
        self._show(sofar)
        self._shown_at = time.monotonic()
