"""The lengths of all waits of the product, and its ways to retry.

Spark's tasks import this, possibly where Tenacity is not installed.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

# whether a retry may succeed after an error
Passes = Callable[[BaseException], bool]
Errors = type[BaseException] | tuple[type[BaseException], ...]

# between two checks for an end that is near, such as that of a child process: too short to be noticed
GLANCE_S = 0.05
# between two polls of a server that sends no notifications; and for a lock that may just as well come later
POLL_S = 0.2
# between two checks of a watcher: often enough for people, and below Postgres' deadlock_timeout
LOOK_S = 0.5
# before a retry of a call that was just blocked; and the longest wait for a notification, which may be lost
PAUSE_S = 1
# for the end of a process or call that was told to stop: its result is not needed, so it gets only time to clean up
FAREWELL_S = 2
# for a connection, or an answer that costs a server nothing; and before the retry of a request that failed
ASK_S = 5
# for a resource that another process will release soon, such as a lock, a slot, or the turn of a busy process
BUSY_S = 10
# between two checks of the overall state, which people read later
WATCH_S = 15
# the longest backoff while a server is away; and how long a silent connection is trusted
AWAY_S = 30
# for a server that restarts, or is silent during a call; and between two rounds of housekeeping
PATIENCE_S = 60
# between two attempts at something that seldom changes, and two records that Dagster keeps for ever
REST_S = 300
# for a call that is known to be long: a statement that merges many rows, or decodes much of a log
LONG_S = 1800


def while_away(
    passes: Passes, stop: threading.Event, on_retry: "Callable[[RetryCallState], None]", *, quietly: bool = False
) -> "Retrying":
    """Retry a call that fails while a server is away, until `stop` is set; then raise the last error.

    There is no time limit: without the server the caller has nothing else to do. If `quietly`, return None instead of
    raising: for a loop that simply ends when it is stopped.
    """
    import tenacity

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_exponential(multiplier=GLANCE_S, max=ASK_S),
        stop=tenacity.stop_when_event_set(stop),
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=on_retry,
        retry_error_callback=(lambda _: None) if quietly else None,
        reraise=True,
    )


def while_held(
    passes: Passes | Errors,
    for_s: float,
    *,
    stop: threading.Event | None = None,
    on_retry: "Callable[[RetryCallState], None] | None" = None,
) -> "Retrying":
    """Retry a call that another process blocks for a short time, for `for_s` seconds; then raise the last error.

    The pauses let sessions proceed that queued behind an attempt. Once `stop` is set there are no pauses.
    """
    import tenacity

    if isinstance(passes, type | tuple):
        retry: tenacity.retry_if_exception = tenacity.retry_if_exception_type(passes)
    else:
        retry = tenacity.retry_if_exception(passes)
    return tenacity.Retrying(
        retry=retry,
        wait=tenacity.wait_exponential(multiplier=GLANCE_S, max=PAUSE_S),
        stop=tenacity.stop_after_delay(for_s),
        sleep=tenacity.sleep_using_event(stop or threading.Event()),
        before_sleep=on_retry,
        reraise=True,
    )


def anew(passes: Passes, attempts: int | None = None) -> "Retrying":
    """Retry a transaction that lost to another one, or to an index; random pauses separate two competitors."""
    import tenacity

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_random_exponential(multiplier=GLANCE_S, max=FAREWELL_S),
        stop=tenacity.stop_never if attempts is None else tenacity.stop_after_attempt(attempts),
        reraise=True,
    )
