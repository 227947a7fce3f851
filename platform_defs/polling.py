"""When to start a drain: a pure function over what is known of views and their runs.

Belongs here: the decision. Not here: where the facts come from (`sensors`), what a drain does
(`millrace.resources.consumption`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.resources.event_store import ViewPoll

BACKOFF_S = 5.0
LONGEST_BACKOFF_S = 60.0
# a run needs some seconds to start its process, its Python and its consumer
STARTUP_S = 120.0
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
    """

    in_flight: bool = False
    started: float | None = None
    last_ended: float | None = None
    failures: int = 0


@dataclass(frozen=True)
class Poll:
    """The decision for one view, with a reason that an operator can act on."""

    view: str
    start: bool
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


def _plan(row: "ViewPoll", runs: ViewRuns, now: float) -> Poll:
    obstacle = _obstacle(row, runs, now)
    return Poll(row.view, start=obstacle is None, reason=f"{row.view}: {obstacle or due(row)}")


def _obstacle(row: "ViewPoll", runs: ViewRuns, now: float) -> str | None:  # noqa: PLR0911 - an obstacle each
    """Return the first reason against starting a drain now, if there is one."""
    since_end = float("inf") if runs.last_ended is None else now - runs.last_ended
    wait = backoff_s(runs.failures)
    # its process was killed together with the code server, which would have noticed: Dagster still calls the run
    # started
    dead = row.consumers == 0 and runs.started is not None and now - runs.started > STARTUP_S
    if not row.enabled:
        return "the view is disabled"
    if row.pooling_delay_s is None and not row.edge_function_url:
        return "the view has no pooling_delay_s: its client polls by itself"
    if row.due == 0:
        return "nothing is due"
    if runs.in_flight and not dead:
        return f"a drain is in flight, {due(row)}"
    if since_end < wait:
        return f"{runs.failures} drains failed in a row; the next one starts in {wait - since_end:.0f} s"
    if since_end < (row.pooling_delay_s or 0):
        return f"its pooling_delay_s of {row.pooling_delay_s} is not over"
    return None
