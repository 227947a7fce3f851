"""When to start a drain: a pure function over what is known of views and their runs.

Belongs here: the decision. Not here: where the facts come from (`sensors`), what a drain does
(`millrace.resources.consumption`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.resources.event_store import ViewPoll

BACKOFF_S = 5.0
LONGEST_BACKOFF_S = 60.0
# a run needs some seconds to start its process, its Python and its consumer
STARTUP_S = 120.0
# so many shared runs that fail in a row make each view try by itself, until the last one ended so many seconds ago
SHARED_FAILURES = 3
SHARED_REST_S = 300.0
# Of the 16 runs at once of dagster.yaml, so that pushes, however many there are, leave half to read models.
PUSHES_AT_ONCE = 8
# so far poll_views counts events, and streams to try again
MOST_COUNTED = 1000


@dataclass(frozen=True)
class ViewRuns:
    """What Dagster knows of a view's drains; times in seconds since the epoch.

    Attributes:
        in_flight: Whether there is an unfinished run, queued ones included.
        started: When the newest unfinished run started; None while it is queued, or if there is none.
        last_ended: When the newest finished run ended; None if there is none.
        failures: How many of the newest finished runs failed in a row.
        unfinished: The newest unfinished run.
    """

    in_flight: bool = False
    started: float | None = None
    last_ended: float | None = None
    failures: int = 0
    unfinished: str | None = None


class Start(Enum):
    """The run to start: one of the view by itself, or one of all views that are due."""

    ALONE = "alone"
    TOGETHER = "together"


@dataclass(frozen=True)
class SharedRun:
    """What is known of the run that drains many views.

    Attributes:
        runs: Its runs, as those of a view.
        starting: Whether one is queued, or began so short ago that it may not have joined its views.
        lives: Whether an unfinished one is attached to some view.
        left: The views that the newest one has left, and why.
        since: When the newest one was asked for, in seconds since the epoch.
    """

    runs: ViewRuns = ViewRuns()
    starting: bool = False
    lives: bool = False
    left: Mapping[str, str] = field(default_factory=dict)
    since: float = 0.0


@dataclass(frozen=True)
class Poll:
    """The decision for one view, with a reason that an operator can act on; `start` is None for no run."""

    view: str
    start: Start | None
    reason: str


def plan_polls(rows: "Sequence[ViewPoll]", runs: Mapping[str, ViewRuns], now: float) -> list[Poll]:
    """Decide for each view whether to start a drain now."""
    return [_plan(row, runs.get(row.view, ViewRuns()), now) for row in rows]


def in_turn(views: Sequence[str], after: str | None, room: int) -> list[str]:
    """Return as many views as there is room for, in the order of their names, beginning behind the one named last."""
    names = sorted(views)
    ahead = [name for name in names if after is not None and name > after]
    return (ahead + names[: len(names) - len(ahead)])[: max(room, 0)]


def backoff_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row, in seconds: doubling, bounded."""
    return 0.0 if failures == 0 else min(BACKOFF_S * 2 ** min(failures - 1, 16), LONGEST_BACKOFF_S)


def due(row: "ViewPoll") -> str:
    """Return how much a view would be given, in words: the store counts to a bound."""
    return f"{row.due}{' or more' if row.due - row.retries >= MOST_COUNTED or row.retries >= MOST_COUNTED else ''} due"


def plan_together(row: "ViewPoll", own: ViewRuns, shared: SharedRun, alone: str | None, now: float) -> Poll:
    """Decide for a view that a run of many views may consume, too.

    Args:
        row: The view.
        own: Its own runs.
        shared: The run of many views.
        alone: Why the view needs a run of its own; None if it does not.
        now: The time, in seconds since the epoch.
    """
    if _rests(row) or (own.in_flight and not _is_dead(row, own, now)):
        return _plan(row, own, now)
    if alone is None and row.consumers:
        return Poll(row.view, None, f"{row.view}: drained together with other views, {due(row)}")
    if alone is None and shared.starting and row.view not in shared.left:
        return Poll(row.view, None, f"{row.view}: a drain of all views starts, {due(row)}")
    alone = alone or _left(row, own, shared, now)
    if alone is not None:
        poll = _plan(row, own, now)
        return Poll(row.view, poll.start, f"{poll.reason}, by itself: {alone}") if poll.start else poll
    # a shared run that is dead is no run in flight
    poll = _plan(row, replace(shared.runs, in_flight=False), now)
    return Poll(row.view, Start.TOGETHER, poll.reason) if poll.start else poll


def _left(row: "ViewPoll", own: ViewRuns, shared: SharedRun, now: float) -> str | None:
    """Return why the shared run does not consume a view, if it lives or ended without it; None if it is to be asked."""
    mended = own.failures == 0 and own.last_ended is not None and own.last_ended > shared.since
    if row.view in shared.left and (shared.lives or not mended):
        return f"the drain of all views left it: {shared.left[row.view]}"
    if shared.lives:
        return "the drain of all views does not consume it"
    if shared.runs.failures >= SHARED_FAILURES and now - (shared.runs.last_ended or now) < SHARED_REST_S:
        return f"{shared.runs.failures} drains of all views failed in a row"
    return None


def _plan(row: "ViewPoll", runs: ViewRuns, now: float) -> Poll:
    obstacle = _rests(row) or _obstacle(row, runs, now)
    start = None if obstacle else Start.ALONE
    return Poll(row.view, start, reason=f"{row.view}: {obstacle or due(row)}")


def _rests(row: "ViewPoll") -> str | None:
    """Return why the view needs no run at all, if it does not."""
    if not row.enabled:
        return "the view is disabled"
    if row.pooling_delay_s is None and not row.edge_function_url:
        return "the view has no pooling_delay_s: its client polls by itself"
    return "nothing is due" if row.due == 0 else None


def _is_dead(row: "ViewPoll", runs: ViewRuns, now: float) -> bool:
    """Say whether the run in flight is dead.

    Its process was killed together with the code server, which would have noticed: Dagster still calls it started.
    """
    return row.consumers == 0 and has_started(runs, now)


def has_started(runs: ViewRuns, now: float) -> bool:
    """Say whether the run in flight began so long ago that it must be at work."""
    return runs.started is not None and now - runs.started > STARTUP_S


def _obstacle(row: "ViewPoll", runs: ViewRuns, now: float) -> str | None:
    """Return the first reason against starting a drain now, if there is one."""
    since_end = float("inf") if runs.last_ended is None else now - runs.last_ended
    wait = backoff_s(runs.failures)
    if runs.in_flight and not _is_dead(row, runs, now):
        return f"a drain is in flight, {due(row)}"
    if since_end < wait:
        return f"{runs.failures} drains failed in a row; the next one starts in {wait - since_end:.0f} s"
    if since_end < (row.pooling_delay_s or 0):
        return f"its pooling_delay_s of {row.pooling_delay_s} is not over"
    return None
