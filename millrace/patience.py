"""How long Millrace waits, and how it tries again: every wait of the product has one of these lengths.

Tasks of Spark import this where Tenacity need not be installed.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

# by an error, whether another try may succeed
Passes = Callable[[BaseException], bool]
Errors = type[BaseException] | tuple[type[BaseException], ...]

# between two looks at what ends in a moment, such as a child process: nobody notices so short a time
GLANCE_S = 0.05
# between two questions to a server that sends no word of what is new; and for a lock that may as well come later
POLL_S = 0.2
# between two looks of who watches over something: often enough for people, and below Postgres' deadlock_timeout
LOOK_S = 0.5
# what was in the way a moment ago is tried again; a word that would have ended the wait may be lost
PAUSE_S = 1
# what was told to stop, or to be stopped, ends: nobody needs it any more, so it gets no more than it needs to say so
FAREWELL_S = 2
# for a connection, or an answer that costs a server nothing; what it could not do it is asked for again so much later
ASK_S = 5
# for what somebody else has and gives back soon, such as a lock, a slot, or the turn of a busy process
BUSY_S = 10
# between two looks at how all goes, for people who read of it later
WATCH_S = 15
# between two tries while a server stays away, at most; a connection that says nothing is believed for so long
AWAY_S = 30
# for a server that restarts, or says nothing to a call; and between two times that something is put in order
PATIENCE_S = 60
# between two tries of what seldom changes, and two notes of what Dagster keeps for ever
REST_S = 300
# for a call that is known to be long: one statement merges many rows, or decodes much of a log
LONG_S = 1800


def while_away(
    passes: Passes, stop: threading.Event, tell: "Callable[[RetryCallState], None]", *, quietly: bool = False
) -> "Retrying":
    """Try again until `stop` is set what fails as long as a server is away; then raise the last error.

    Nobody knows how long a server is away, and who runs beside it has nothing else to do. If `quietly`, None is
    returned instead: for a loop that is over when it was stopped.
    """
    import tenacity

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_exponential(multiplier=GLANCE_S, max=ASK_S),
        stop=tenacity.stop_when_event_set(stop),
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=tell,
        retry_error_callback=(lambda _: None) if quietly else None,
        reraise=True,
    )


def while_held(
    passes: Passes | Errors,
    for_s: float,
    *,
    stop: threading.Event | None = None,
    tell: "Callable[[RetryCallState], None] | None" = None,
) -> "Retrying":
    """Try again for so long what somebody else is in the way of, who will be done soon; then raise the last error.

    The pauses let those go first who queued behind a try. Once `stop` is set there are none.
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
        before_sleep=tell,
        reraise=True,
    )


def anew(passes: Passes, attempts: int | None = None) -> "Retrying":
    """Do a transaction anew that another one, or an index, was in the way of; by chance one of two begins first."""
    import tenacity

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_random_exponential(multiplier=GLANCE_S, max=FAREWELL_S),
        stop=tenacity.stop_never if attempts is None else tenacity.stop_after_attempt(attempts),
        reraise=True,
    )
