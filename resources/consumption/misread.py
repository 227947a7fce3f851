"""Names the streams of events that a build misread, so that the build's other rows can be committed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from millrace.resources.consumption import failing_streams
from millrace.resources.consumption.build_errors import in_one_line
from millrace.resources.consumption.commit import Work
from millrace.resources.consumption.failing_streams import Failure, PartFails, Stream
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.failing.events import MisreadEvent

Misread = Sequence[MisreadEvent]


def without_misread(
    store: EventStore, work: Work, misread: Misread, again: Callable[[tuple[Failure, ...]], tuple[Work, Misread]]
) -> Work:
    """Return work without the streams of events that its build misread, and with these as failures.

    Where such an event is followed by others of its stream, which the build did read, or the build may have rows of
    other elements of its array, `again` builds without them.

    Raises:
        PartFails: Only a search can tell which streams are to blame: events are in the archive alone; or maybe every
            new stream fails, and for a reason that they share.
    """
    if not misread:
        return work
    # an event is misread as often as elements of its array are
    events = {event.offset: event for event in reversed(misread)}
    at = [(event.partition, event.offset) for event in events.values()]
    found = store.misread_streams(work.model.view, work.leases, at)
    errors = {offset: in_one_line(event.error) for offset, event in events.items()}
    if sum(one.events for one in found) < len(events):
        raise PartFails(errors[min(errors)])
    failures = tuple(
        Failure(Stream(one.partition, one.decider, one.decider_id), one.offset, errors[one.offset]) for one in found
    )
    built = work
    if work.model.each is not None or any(one.is_followed for one in found):
        built, still = again(failures)
        if still:
            raise PartFails(failures[0].error)
    new = sum(not (work.retries and one.is_locked) for one in found)
    if new >= failing_streams.ALL_FAIL and (work.retries or not built.rows):
        raise PartFails(failures[0].error)
    return replace(built, failures=failures)
