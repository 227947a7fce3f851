"""Names the streams of events that a build misread, so that the build's other rows can be committed.

Belongs here: whose events they are, and whether the build's rows can stay. Not here: which values are misread
(`read_models.plans`), streams that fail for another reason (`failing_streams`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from millrace.resources.consumption import failing_streams
from millrace.resources.consumption.build_errors import in_one_line
from millrace.resources.consumption.failing_streams import Failure, PartFails, Stream
from millrace.resources.event_store import Lease
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.failing.events import MisreadEvent

# each stream with its first misread event, how many it has, whether it has a lock, and whether others follow the first
_STREAMS = """
    select s.partition, s.decider, s.decider_id, s.first, s.events,
      exists (
        select from event_store.stream_locks k
        where k.view = %(view)s and k.decider_id = s.decider_id and k.decider = s.decider
      ),
      s.events < (
        select count(*)
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = s.decider_id and e.decider = s.decider and e."offset" >= s.first
          and (%(wanted)s::text[] is null or e.event = any (%(wanted)s))
          and l.position < s.until
      )
    from (
      select m.partition, r.until, e.decider, e.decider_id, min(e."offset") as first, count(*) as events
      from unnest(%(partitions)s::int[], %(offsets)s::bigint[]) m(partition, "offset")
      join unnest(%(leased)s::int[], %(until)s::bigint[]) r(partition, until) using (partition)
      join event_store.events e using ("offset")
      group by m.partition, r.until, e.decider, e.decider_id
    ) s
"""


@dataclass(frozen=True)
class Named:
    """The streams of misread events.

    Attributes:
        failures: The streams, each with its first misread event.
        are_followed: Whether such an event is followed by others of its stream, which the build did read.
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
    connection: psycopg.Connection,
    model: ReadModel,
    leases: Sequence[Lease],
    misread: Sequence[MisreadEvent],
    *,
    retries: bool,
) -> Named:
    """Return the streams of events that a build under some leases misread.

    Raises:
        PartFails: Only the archive has some of these events.
    """
    found = connection.execute(
        _STREAMS,
        {
            "view": model.view,
            "wanted": None if model.events is None else [*model.events],
            "partitions": [event.partition for event in misread],
            "offsets": [event.offset for event in misread],
            "leased": [lease.partition for lease in leases],
            "until": [lease.to_position for lease in leases],
        },
    ).fetchall()
    errors = {event.offset: in_one_line(event.error) for event in misread}
    if sum(events for _, _, _, _, events, _, _ in found) < len(misread):
        raise PartFails(errors[min(errors)])
    return Named(
        tuple(Failure(Stream(p, decider, name), first, errors[first]) for p, decider, name, first, *_ in found),
        any(is_followed for *_, is_followed in found),
        sum(not (retries and is_locked) for *_, is_locked, _ in found),
        retries,
    )
