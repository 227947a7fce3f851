"""What a user writes: a function that is called for each event of a view.

    @subscription(view="mails", deciders=["order"], events=["order_placed"], concurrency=8)
    def send_mail(event: Delivery) -> None: ...

A handler takes the event; or the event and a connection, with a transaction that also holds the acknowledgement; or it
is `async` and takes the event. It must run to its end before it returns: a generator is refused, and an event fails
if its handler returns a coroutine, a generator or a future.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from millrace.errors import InvalidSubscription
from millrace.labels import labels_fault
from millrace.times import ACCEPTED_FORMS, bound
from millrace.user_code import is_async, is_generator

if TYPE_CHECKING:
    from millrace.event_store import EventStore

Handler = Callable[..., Awaitable[object] | object]

MOST_AT_ONCE = 256
LONGEST_WAIT_S = 365 * 86_400


class Told(Exception):
    """An error of a handler whose text quotes no event: it is always kept."""


class Refused(Told):
    """Raised by a handler to fail the event; the store keeps this text unchanged."""


@dataclass(frozen=True)
class Subscription:
    """A view and the function that gets its events; calling the subscription calls the function.

    Attributes:
        handler: The function.
        view: The view's name.
        deciders: The deciders that it wants; empty for all.
        events: The events that it wants; empty for all.
        concurrency: How many streams are handled at once, in one process.
        start: Where a new view begins: a time, '-infinity' for all events, None for now.
        version: If two programs have the same view, the settings of the higher version count.
        max_attempts: The number of failures after which a stream is parked.
        lock_timeout_s: How long after a process is killed other processes get its events, in seconds.
        timeout_s: How long the handler may take for one event, in seconds.
        upcast: Whether data come in the newest shape of their event.
        owners: The owners that Dagster shows.
        tags: The tags that Dagster shows.
    """

    handler: Handler
    view: str
    deciders: Sequence[str] = ()
    events: Sequence[str] = ()
    concurrency: int = 8
    start: datetime | str | None = None
    version: int = 0
    max_attempts: int = 5
    lock_timeout_s: int = 30
    timeout_s: float = 300.0
    upcast: bool = False
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    takes_connection: bool = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        # the parameters that a caller must give
        parameters = [
            each
            for each in inspect.signature(self.handler).parameters.values()
            if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD} and each.default is each.empty
        ]
        object.__setattr__(self, "takes_connection", len(parameters) == 2)
        object.__setattr__(self, "is_async", is_async(self.handler))
        checks = (
            (not self.view, "it names no view"),
            (is_generator(self.handler), "its function is a generator, whose code would not run: it must not yield"),
            (len(parameters) not in {1, 2}, "its function takes neither (event) nor (event, connection)"),
            (
                self.is_async and len(parameters) == 2,
                "an async function takes the event only; the transaction of an acknowledgement is no place to wait in",
            ),
            (not 1 <= self.concurrency <= MOST_AT_ONCE, f"concurrency is from 1 to {MOST_AT_ONCE}"),
            (isinstance(self.deciders, str) or isinstance(self.events, str), "deciders and events are lists of names"),
            (not 1 <= self.lock_timeout_s <= 3600, "lock_timeout_s is from 1 to 3600"),
            (self.timeout_s <= 0, "timeout_s is above 0"),
            (
                isinstance(self.start, str) and bound(self.start) is None,
                f"start is a time such as {ACCEPTED_FORMS}; or -infinity",
            ),
            (self.version < 0, "version is at least 0"),
            (self.max_attempts < 1, "max_attempts is at least 1"),
            ((unfit := labels_fault(self.owners, self.tags)) is not None, unfit),
        )
        for wrong, fault in checks:
            if wrong:
                raise InvalidSubscription(
                    f"The subscription of {self.name} cannot work: {fault}.", detail=f"Its view is {self.view!r}."
                )

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - what the function takes and returns
        """Call the function, as a test does."""
        return self.handler(*arguments)

    def prepare(self, store: "EventStore") -> None:
        """Register what it needs beside its view."""

    @property
    def name(self) -> str:
        """The function's name, with its module's."""
        return f"{getattr(self.handler, '__module__', '?')}.{getattr(self.handler, '__qualname__', '?')}"

    def wants(self, decider: str, event: str) -> bool:
        """Return whether it declares an event; a newer version may have given its view wider settings."""
        return (not self.deciders or decider in self.deciders) and (not self.events or event in self.events)


def subscription(
    *,
    view: str,
    deciders: Sequence[str] = (),
    events: Sequence[str] = (),
    concurrency: int = 8,
    start: datetime | str | None = None,
    version: int = 0,
    max_attempts: int = 5,
    lock_timeout_s: int = 30,
    timeout_s: float = 300.0,
    upcast: bool = False,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> Callable[[Handler], Subscription]:
    """Declare that a function is called for each event of a view, in the order of each stream.

    Args:
        view: The view's name; it is registered when it is first consumed.
        deciders: The deciders that it wants; empty for all.
        events: The events that it wants; empty for all.
        concurrency: How many streams are handled at once, in one process.
        start: Where a new view begins: a time, '-infinity' for all events, None for now. Later values have no effect.
        version: The version of the program. If two run at once, the settings of the higher version count.
        max_attempts: The number of failures after which a stream is parked.
        lock_timeout_s: How long after a process is killed other processes get its events. The locks of running handlers
            are extended.
        timeout_s: How long the handler may take for one event; then the event fails.
        upcast: Whether data come in the newest shape of their event; `event_version` is the stored one.
        owners: The owners that Dagster shows: email addresses, and `team:` with a name.
        tags: The tags that Dagster shows.

    Raises:
        InvalidSubscription: The declaration cannot work; the text says why.
    """

    def declared(handler: Handler) -> Subscription:
        return Subscription(
            handler,
            view,
            deciders,
            events,
            concurrency,
            start,
            version,
            max_attempts,
            lock_timeout_s,
            timeout_s,
            upcast,
            owners,
            tags or {},
        )

    return declared
