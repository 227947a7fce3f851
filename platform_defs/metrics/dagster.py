"""The metrics of Dagster: its queue, its daemons, its sensors, and what is wrong with it."""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import dagster as dg
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from millrace.operations.alerts.findings import SUBJECT_BYTES, shortened
from millrace.operations.metrics.families import gauge, seconds_since
from millrace.patience import ASK_S, WATCH_S
from millrace.platform_defs.liveness import beats, ticking
from millrace.platform_defs.standing import DagsterStanding

logger = logging.getLogger(__name__)

# the newest runs whose waiting time is measured
NEWEST_RUNS = 20


class DagsterMetrics(Collector):
    """Collects the metrics of the Dagster instance that DAGSTER_HOME names; they are up to 15 seconds old.

    While its storage does not answer, `millrace_dagster_up` is 0, and every other metric is missing.
    """

    def __init__(self) -> None:
        self._standing: DagsterStanding | None = None
        self._worker = ThreadPoolExecutor(1, "dagster-metrics")
        self._pending: Future[list[Metric]] | None = None
        self._until = 0.0
        self._turn = threading.Lock()
        self._was_up = True

    def collect(self) -> Iterator[Metric]:
        """Ask Dagster's storage and return its metrics."""
        with self._turn:
            if self._pending is None or (self._pending.done() and time.monotonic() >= self._until):
                self._pending = self._worker.submit(self._read_metrics)
                # frequent scrapes must not each ask Dagster's database
                self._until = time.monotonic() + WATCH_S
            pending = self._pending
        found: list[Metric] = []
        try:
            # Dagster itself retries for longer when its database is away
            found = pending.result(ASK_S)
        except Exception as error:  # noqa: BLE001  any error of any storage, or a timeout while it retries
            if self._was_up:
                logger.warning("Dagster's storage does not answer: %s", type(error).__name__)
        self._was_up = bool(found)
        yield gauge("dagster_up", "Whether Dagster's storage answers.", [], [([], float(bool(found)))])
        yield from found

    def close(self) -> None:
        """End without waiting for a storage that does not answer."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _read_metrics(self) -> list[Metric]:
        if self._standing is None:
            self._standing = DagsterStanding(dg.DagsterInstance.get())
        return [*metrics_of(self._standing)]


def metrics_of(standing: DagsterStanding) -> Iterator[Metric]:
    """Return the metrics of a Dagster instance."""
    now, instance = time.time(), standing.instance
    for status in (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED):
        yield gauge(
            f"dagster_{status.value.lower()}_runs",
            f"Runs that are {status.value}.",
            [],
            [([], instance.get_runs_count(dg.RunsFilter(statuses=[status])))],
        )
    waiting = instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]), limit=1, ascending=True)
    yield gauge(
        "dagster_queued_seconds",
        "How long the oldest queued run has waited.",
        [],
        [([], max((now - record.create_timestamp.timestamp() for record in waiting), default=0.0))],
    )
    newest = instance.get_run_records(limit=NEWEST_RUNS)
    waited = [r.start_time - r.create_timestamp.timestamp() for r in newest if r.start_time is not None]
    yield gauge(
        "dagster_start_seconds",
        f"The longest wait of the newest {NEWEST_RUNS} runs from being asked for to their start.",
        [],
        [([], max(waited, default=0.0))],
    )
    yield gauge(
        "dagster_daemon_idle_seconds",
        "How long ago a daemon said that it lives.",
        ["daemon"],
        [([name], now - at) for name, at in beats(instance).items()],
    )
    # of several with the same name the last and worst one counts, here and below
    sensors = sorted((each.failures, each.name) for each in ticking(instance) if each.kind == "sensor")
    yield gauge(
        "dagster_sensor_failures",
        "Ticks of a sensor that failed in a row.",
        ["sensor"],
        {(name,): float(failures) for failures, name in sensors}.items(),
    )
    found = sorted((seconds_since(each.since), each.kind, each.subject, each.severity) for each in standing.found())
    yield gauge(
        "dagster_standing_seconds",
        "For how long something has been wrong in Dagster, by what it is, of what, and how bad.",
        ["kind", "name", "severity"],
        {(kind, shortened(name, SUBJECT_BYTES), severity): seconds for seconds, kind, name, severity in found}.items(),
    )
