"""Leaves out the events that a build misreads, and the later ones of their streams, so that all others are built."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from millrace.drain import failing_streams
from millrace.drain.build_errors import in_one_line
from millrace.drain.failing_streams import Failure, PartFails, Stream
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.column_types import refusal
from millrace.read_models.declared.columns import ORDER, Column, KeyColumn

Built = TypeVar("Built")

# a batch is built anew at most this many times, without the events that the build before misread
MOST_BUILDS = 5


class NothingBuilds(PartFails):
    """Nothing of a batch can be committed, for a reason outside of its streams; the text states the reason."""


class MisreadEvent(NamedTuple):
    """An event that a build misread, and why; for a fold also its stream: the build took the events before this one."""

    partition: int
    offset: int
    error: str
    stream: tuple[str, str] | None = None


def misread_event(misread_text: str, read: Mapping[str, Column | KeyColumn]) -> MisreadEvent:
    """Return the event that a MISREAD text describes, for a model that reads these columns, in order."""
    found = json.loads(misread_text)
    if (stream := found.get("stream")) is not None:
        return MisreadEvent(found["partition"], found[ORDER], found["error"], tuple(stream))
    name, column = next((name, column) for name, column in read.items() if found.get(name) is not None)
    return MisreadEvent(found["partition"], found[ORDER], refusal(found[name], str(column.source), column.type))


def without_misread(
    build: Callable[[tuple[Failure, ...]], tuple[Built, Sequence[MisreadEvent]]],
    streams_at: Callable[[Sequence[int]], Iterable[tuple[int, str, str, int]]],
) -> tuple[Built, tuple[Failure, ...]]:
    """Build without misread events and the later ones of their streams; return the result, and the failures.

    Args:
        build: Builds, but leaves out failing streams from their events on; also returns the events that it misread.
        streams_at: Returns log partition, decider, decider_id and offset of the events at some offsets.

    Raises:
        PartFails: Each new build misreads further events.
    """
    failures: dict[Stream, Failure] = {}
    built, misread = build(())
    for _ in range(MOST_BUILDS):
        if not misread:
            break
        # an event is listed once for each misread element of its array
        errors = {event.offset: in_one_line(event.error) for event in reversed(misread)}
        of_streams = [(event.partition, *event.stream, event.offset) for event in misread if event.stream is not None]
        for partition, decider, decider_id, offset in sorted(
            of_streams or streams_at([*errors]), key=lambda one: -one[-1]
        ):
            stream = Stream(partition, decider, decider_id)
            failures[stream] = Failure(stream, offset, errors[offset])
        if of_streams:
            break
        built, misread = build(tuple(failures.values()))
    else:
        if misread:
            raise PartFails(in_one_line(misread[0].error))
    return built, tuple(failures.values())


def require_some(store: PlatformStore, owner: str, view: str, rows: int, failures: Sequence[Failure]) -> None:
    """Require that something was built, or that few streams fail; those that failed before may fail again.

    Raises:
        NothingBuilds: Enough streams fail to conclude that they share a cause: no stream is blamed.
    """
    if rows or len(failures) < failing_streams.ALL_FAIL:
        return
    locked = {(one.decider, one.decider_id) for one in store.locked_streams(owner) if one.view == view}
    if sum((one.stream.decider, one.stream.decider_id) not in locked for one in failures) >= failing_streams.ALL_FAIL:
        raise NothingBuilds(failures[0].error)
