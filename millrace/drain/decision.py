"""Who drains a view now: nobody, a drain of its own, or the one of all views; from what the store knows of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from millrace.patience import REST_S

if TYPE_CHECKING:
    from millrace.event_store import DrainState, ViewPoll

# so many seconds after its start a shared run has joined its views
JOIN_S = 30.0
# so many shared runs that fail in a row make each view try by itself, until the last one ended so many seconds ago
SHARED_FAILURES = 3
# Of the 12 drains of one view at once of dagster.yaml, so that pushes, however many there are, leave some to models.
PUSHES_AT_ONCE = 8
# so far poll_views counts events, and streams to try again
MOST_COUNTED = 1000
# a view that alone is more positions behind than this is for a run of its own, and holds up no other
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


def plan(row: "ViewPoll", own: "DrainState", shared: "DrainState | None" = None, *, is_far: bool = False) -> Poll:
    """Decide for a view whether to start a drain now.

    Args:
        row: The view.
        own: How its own drain stands.
        shared: How the drain of all views stands, if that may consume the view, too.
        is_far: Whether the view, and no other, is too far behind for that.
    """
    if (rests := _rests(row, own, shared)) is not None:
        return Poll(row.view, None, f"{row.view}: {rests}")
    if shared is None:
        return _try(row, own, Start.ALONE)
    if (alone := _alone(row, own, shared, is_far=is_far)) is not None:
        poll = _try(row, own, Start.ALONE)
        return replace(poll, reason=f"{poll.reason}, by itself: {alone}") if poll.start else poll
    if shared.since_s is not None:
        return Poll(row.view, None, f"{row.view}: a drain of all views starts, {due(row)}")
    return _try(row, shared, Start.TOGETHER)


def alone_behind(polls: "Iterable[ViewPoll]") -> str | None:
    """Return the view that is far behind if one alone is; what several want is read once for all of them."""
    far = [poll.view for poll in polls if poll.ahead > LARGE_BACKLOG]
    return far[0] if len(far) == 1 else None


def in_turn(views: Sequence[str], after: str | None, room: int) -> list[str]:
    """Return as many views as there is room for, in the order of their names, beginning behind the one named last."""
    names = sorted(views)
    ahead = [name for name in names if after is not None and name > after]
    return (ahead + names[: len(names) - len(ahead)])[: max(room, 0)]


def due(row: "ViewPoll") -> str:
    """Return how much a view would be given, in words: the store counts to a bound."""
    return f"{row.due}{' or more' if row.due - row.retries >= MOST_COUNTED or row.retries >= MOST_COUNTED else ''} due"


def is_served(row: "ViewPoll") -> bool:
    """Say whether somebody consumes a view who gives it all that it is due: rounds leave streams to try again."""
    return row.consumers > 0 and not row.retries


def _alone(row: "ViewPoll", own: "DrainState", shared: "DrainState", *, is_far: bool) -> str | None:
    """Return why a view needs a run of its own; None if it does not."""
    if row.retries:
        return f"{row.retries} streams are tried again"
    if is_far:
        return f"it alone is {row.ahead} positions behind"
    if own.failures:
        return f"the last try ended with: {own.error}"
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


def _rests(row: "ViewPoll", own: "DrainState", shared: "DrainState | None") -> str | None:
    """Return why the view needs no run at all, if it does not."""
    if not row.enabled:
        return "the view is disabled"
    if row.pooling_delay_s is None and not row.edge_function_url:
        return "the view has no pooling_delay_s: its client polls by itself"
    if row.due == 0:
        return "nothing is due"
    if own.since_s is not None:
        return f"a drain is in flight, {due(row)}"
    return f"drained together with other views, {due(row)}" if shared is not None and is_served(row) else None
