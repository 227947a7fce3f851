"""Names the streams of events that a build misread, so that the build's other rows can be committed.

Belongs here: whose events they are, and whether the build's rows can stay. Not here: which values are misread
(`read_models.built.plans`), streams that fail for another reason (`failing_streams`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.resources.consumption import failing_streams
from millrace.resources.consumption.build_errors import in_one_line
from millrace.resources.consumption.failing_streams import Failure, PartFails, Stream
from millrace.resources.event_store import EventStore, Lease
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.failing.events import MisreadEvent


@dataclass(frozen=True)
class Named:
    """The streams of misread events.

    Attributes:
        failures: The streams, each with its first misread event.
        are_followed: Whether such an event is followed by others of its stream, which the build did read; or the build
            may have rows of other elements of its array.
        new: How many of these streams did not fail before.
        retries: Whether the build tried streams again that did.
    """

    failures: tuple[Failure, ...]
    are_followed: bool
    new: int
    retries: bool

    def require_others(self, *, built: bool) -> None:
        """Require that these streams are to blame; `built` says whether the build has rows without them.

        Raises:
            PartFails: Maybe every new stream fails, and for a reason that they share: only a search can tell.
        """
        if self.new >= failing_streams.ALL_FAIL and (self.retries or not built):
            raise PartFails(self.failures[0].error)


def name_streams(
    store: EventStore, model: ReadModel, leases: Sequence[Lease], misread: Sequence[MisreadEvent], *, retries: bool
) -> Named:
    """Return the streams of events that a build under some leases misread.

    Raises:
        PartFails: Only the archive has some of these events.
    """
    # an event is misread as often as elements of its array are
    events = {event.offset: event for event in reversed(misread)}
    found = store.misread_streams(model.view, leases, [(event.partition, event.offset) for event in events.values()])
    errors = {offset: in_one_line(event.error) for offset, event in events.items()}
    if sum(one.events for one in found) < len(events):
        raise PartFails(errors[min(errors)])
    return Named(
        tuple(
            Failure(Stream(one.partition, one.decider, one.decider_id), one.offset, errors[one.offset]) for one in found
        ),
        model.each is not None or any(one.is_followed for one in found),
        sum(not (retries and one.is_locked) for one in found),
        retries,
    )
