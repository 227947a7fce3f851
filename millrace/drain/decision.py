"""Decides from the store's state which drain a view gets now: none, one of its own, or the one of all views."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from millrace.patience import REST_S

if TYPE_CHECKING:
    from millrace.event_store import DrainState, ViewPoll

# a shared run has joined its views this many seconds after its start
JOIN_S = 30.0
# after this many failed shared runs in a row each view tries by itself, until the last one ended REST_S seconds ago
SHARED_FAILURES = 3
# Fewer than the 12 concurrent drains of one view in dagster.yaml: any number of pushes leaves some to models.
PUSHES_AT_ONCE = 8
# poll_views counts events, and streams to retry, up to this number
MOST_COUNTED = 1000
# a view that alone is further behind than this many positions gets a run of its own, and delays no other view
LARGE_BACKLOG = 100_000


class Start(Enum):
    """The run to start: one of the view by itself, or one of all views that are due."""

    ALONE = "alone"
    TOGETHER = "together"


@dataclass(frozen=True)
class Poll:
    """The decision for one view, with a reason that an operator can act on; `start` is None for no run."""

    view: str
    start: Start | None
    reason: str


def plan(row: "ViewPoll", own_drain: "DrainState", shared: "DrainState | None" = None, *, is_far: bool = False) -> Poll:
    """Decide for a view whether to start a drain now.

    Args:
        row: The view.
        own_drain: The state of its own drain.
        shared: The state of the drain of all views, if that may consume the view, too.
        is_far: Whether the view, and no other, is too far behind for the drain of all views.
    """
    if (reason := _rest_reason(row, own_drain, shared)) is not None:
        return Poll(row.view, None, f"{row.view}: {reason}")
    if shared is None:
        return _try(row, own_drain, Start.ALONE)
    if (reason := _own_run_reason(row, own_drain, shared, is_far=is_far)) is not None:
        poll = _try(row, own_drain, Start.ALONE)
        return replace(poll, reason=f"{poll.reason}, by itself: {reason}") if poll.start else poll
    if shared.since_s is not None:
        return Poll(row.view, None, f"{row.view}: a drain of all views starts, {due(row)}")
    return _try(row, shared, Start.TOGETHER)


def alone_behind(polls: "Iterable[ViewPoll]") -> str | None:
    """Return the view that is far behind if it is the only one; events for several are read once for all of them."""
    far = [poll.view for poll in polls if poll.ahead > LARGE_BACKLOG]
    return far[0] if len(far) == 1 else None


def in_turn(views: Sequence[str], after: str | None, room: int) -> list[str]:
    """Return as many views as there is room for, in the order of their names, beginning after the view `after`."""
    names = sorted(views)
    ahead = [name for name in names if after is not None and name > after]
    return (ahead + names[: len(names) - len(ahead)])[: max(room, 0)]


def due(row: "ViewPoll") -> str:
    """Return how much is due for a view, as text: the store counts up to a limit."""
    return f"{row.due}{' or more' if row.due - row.retries >= MOST_COUNTED or row.retries >= MOST_COUNTED else ''} due"


def is_served(row: "ViewPoll") -> bool:
    """Return whether a consumer gives a view all that is due: rounds skip streams that are to be retried."""
    return row.consumers > 0 and not row.retries


def _own_run_reason(row: "ViewPoll", own_drain: "DrainState", shared: "DrainState", *, is_far: bool) -> str | None:
    """Return why a view needs a run of its own; None if it does not."""
    if row.retries:
        return f"{row.retries} streams are tried again"
    if is_far:
        return f"it alone is {row.ahead} positions behind"
    if own_drain.failures:
        return f"the last try ended with: {own_drain.error}"
    if shared.lives and shared.since_s is not None and shared.since_s >= JOIN_S:
        return "the drain of all views does not consume it"
    if shared.failures >= SHARED_FAILURES and (shared.ended_s or 0) < REST_S:
        return f"{shared.failures} drains of all views failed in a row"
    return None


def _try(row: "ViewPoll", drain: "DrainState", start: Start) -> Poll:
    """Start a drain, unless it is too early for one."""
    if drain.wait_s > 0:
        why_not = f"{drain.failures} drains failed in a row; the next one starts in {drain.wait_s:.0f} s: {drain.error}"
    elif drain.ended_s is not None and drain.ended_s < (row.pooling_delay_s or 0):
        why_not = f"its pooling_delay_s of {row.pooling_delay_s} is not over"
    else:
        return Poll(row.view, start, f"{row.view}: {due(row)}")
    return Poll(row.view, None, f"{row.view}: {why_not}")


def _rest_reason(row: "ViewPoll", own_drain: "DrainState", shared: "DrainState | None") -> str | None:
    """Return why the view needs no run at all; None if it needs one."""
    if not row.enabled:
        return "the view is disabled"
    if row.pooling_delay_s is None and not row.edge_function_url:
        return "the view has no pooling_delay_s: its client polls by itself"
    if row.due == 0:
        return "nothing is due"
    if own_drain.since_s is not None:
        return f"a drain is in flight, {due(row)}"
    return f"drained together with other views, {due(row)}" if shared is not None and is_served(row) else None
