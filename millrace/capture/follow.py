"""A capture without Dagster: one drain after another until it is stopped, also through restarts of both servers."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from uuid import uuid4

from tenacity import RetryCallState

from millrace.capture.declaration import Capture
from millrace.capture.decoding.changed_rows import TableUnfit
from millrace.capture.decoding.changes import TableRenamed
from millrace.capture.drain import LEASE_S, CaptureDrain, CaptureReport
from millrace.capture.source.slot import SlotBusy
from millrace.errors import CaptureInUse, LeaseLost, Unreachable
from millrace.patience import PATIENCE_S, while_away
from millrace.postgres import connecting

# A new drain looks at the source anew: its timeline, its publication, its tables and their partitions. It also purges.
ROUND_S = 600.0
# Errors that another process, a restart, patience or a new look at the source resolves
PASSING = (Unreachable, SlotBusy, CaptureInUse, LeaseLost, TableRenamed, TableUnfit)

logger = logging.getLogger(__name__)


def follow(
    dsn: str,
    capture: Capture,
    stop: threading.Event,
    *,
    owner: str | None = None,
    lease_s: int = LEASE_S,
    on_step: Callable[[CaptureReport], None] = lambda _: None,
) -> None:
    """Capture until `stop` is set. A second process that follows the same capture waits, then takes over.

    Args:
        dsn: The event store.
        capture: What is captured.
        stop: Ends it, once the current step is stored.
        owner: The name of the lease's holder, such as a run's id; None for a generated name.
        lease_s: How long the lease lasts without renewal, in seconds.
        on_step: Called after each step that did something, with the totals of the drain so far.

    Raises:
        NotReady: The source lacks something; the text says what, and how to give it.
        GapOpen: Changes of the source are lost.
        SlotLost: The slot is gone, or is no longer good. The gap is recorded.
        PublicationMissing: The publication is gone, or was for a while. The gap is recorded.
        ChangesDiffer: The slot gives other changes than those that are stored.
        SessionsShared: The store is reached through a pooler in transaction mode.
    """
    owner = owner or f"follow {uuid4()}"
    patiently = while_away(
        lambda error: connecting.passes(error) or isinstance(error, PASSING), stop, _Waiting(capture.name), quietly=True
    )
    while not stop.is_set():
        patiently(_drain, dsn, capture, owner, stop, lease_s, on_step)


def _drain(
    dsn: str,
    capture: Capture,
    owner: str,
    stop: threading.Event,
    lease_s: int,
    on_step: Callable[[CaptureReport], None],
) -> None:
    log = _ProgressLog(capture.name)

    def step(totals: CaptureReport) -> None:
        log.step(totals)
        on_step(totals)

    with CaptureDrain(dsn, capture, owner, lease_s=lease_s, stop=stop) as capturing:
        for table, why in capturing.stopped.items():
            logger.warning("%s: table %s is stopped, the others are captured: %s", capture.name, table, why)
        try:
            capturing.drain(budget_s=ROUND_S, idle_s=float("inf"), stop=stop, on_step=step)
        finally:
            log.write(capturing.report)


class _Waiting:
    """Logs what the capture waits for: at once, and every minute while it lasts."""

    def __init__(self, capture: str) -> None:
        self._capture = capture
        self._kind: type[BaseException] | None = None
        self._logged_at = 0.0

    def __call__(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        now = time.monotonic()
        if error is None or (
            type(error) is self._kind and state.attempt_number > 1 and now - self._logged_at < PATIENCE_S
        ):
            return
        self._kind, self._logged_at = type(error), now
        # of two processes that follow one capture, one waits by design
        level = logging.INFO if isinstance(error, CaptureInUse) else logging.WARNING
        logger.log(level, "%s waits, and tries again: %s", self._capture, error)


class _ProgressLog:
    """Logs now and then how much was captured since the last such line."""

    def __init__(self, capture: str) -> None:
        self._capture = capture
        self._logged = CaptureReport()
        self._logged_at = time.monotonic()

    def step(self, totals: CaptureReport) -> None:
        if time.monotonic() - self._logged_at >= PATIENCE_S:
            self.write(totals)

    def write(self, totals: CaptureReport) -> None:
        totals = CaptureReport(*astuple(totals))  # another thread may add to it meanwhile
        added = CaptureReport(*(now - then for now, then in zip(astuple(totals), astuple(self._logged), strict=True)))
        # elapsed time alone is no news
        if any(astuple(replace(added, busy_s=0.0))):
            logger.info(
                "%s: %d changes stored, %d events, %d rows backfilled, %d unchanged, %d quarantined in %.0f s",
                self._capture,
                added.stored,
                added.emitted,
                added.backfilled,
                added.unchanged,
                added.quarantined,
                time.monotonic() - self._logged_at,
            )
        self._logged, self._logged_at = totals, time.monotonic()
