"""What is read from the store for a path: the events from a place on, as JSON texts.

Each call is one transaction, so that all its statements see the same moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct
from starlette.exceptions import HTTPException

from millrace.event_store.platform import PlatformStore
from millrace.event_store.rows import Event
from millrace.event_store.sql_functions import SqlFunctions

# the most events of a stream, or of a log partition, in one read
PAGE = 500
OPERATIONS = {"inserted": "insert", "updated": "update", "deleted": "delete"}
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class LogPlace:
    """The end of the log, its beginning, and the store that it is of."""

    store: str
    earliest: list[int]
    marks: list[int]


@dataclass(frozen=True)
class FeedPlace:
    """Where a read model's feed stands: see `feed_place`."""

    epoch: int
    key: list[str]
    columns: list[str]
    unsequenced: list[int]


@dataclass(frozen=True)
class WantedEvents:
    """The deciders and events that a view wants; None means all."""

    deciders: list[str] | None
    events: list[str] | None


class StreamStore(SqlFunctions):
    """The SQL functions for readers over HTTP: one method per function."""

    def log_place(self) -> LogPlace:
        """Return the end of the log, and the store that it is of."""
        return self._one(LogPlace, "select * from event_store_platform.log_place()")

    def feed_place(self, model: str) -> FeedPlace | None:
        """Return where the feed of a read model stands; None without a feed."""
        return self._first(FeedPlace, "select * from event_store_platform.feed_place(%s)", (model,))

    def stream_partition(self, decider_id: str, partitions: int) -> int:
        """Return the log partition of a stream."""
        return self._value(int, "select event_store.stream_partition(%s, %s)", (decider_id, partitions))

    def wanted_events(self, view: str) -> WantedEvents:
        """Return what a view wants."""
        return self._one(WantedEvents, "select * from event_store_platform.wanted_events(%s)", (view,))


@dataclass(frozen=True)
class Chunk:
    """Events that follow a place.

    Attributes:
        messages: Offset and JSON text of each; the text is empty where a reader needs none.
        at: Where the next read begins.
        up_to_date: Whether there were no more.
        epoch: The last epoch of a model's rows that begins among them; 0 for none.
    """

    messages: Sequence[tuple[int, bytes]]
    at: Numbers
    up_to_date: bool
    epoch: int = 0

    @cached_property
    def texts(self) -> list[bytes]:
        """The texts, one list for all readers."""
        return [text for _, text in self.messages if text]

    @cached_property
    def offsets(self) -> frozenset[int]:
        """The offsets."""
        return frozenset(offset for offset, _ in self.messages)


class Ends(NamedTuple):
    """The first place of a stream, its last one, the epoch, and its log partition if it is of one."""

    first: Numbers
    last: Numbers
    epoch: int = 0
    partition: int | None = None


@dataclass(frozen=True)
class Stream:
    """The events of one stream; a place is the version of the last one."""

    decider: str
    decider_id: str

    def ends(self, store: PlatformStore, log: LogPlace) -> Ends:
        """Return the first place and the last one."""
        head = store.head(self.decider, self.decider_id)
        if head is None:
            raise HTTPException(404, "There is no such stream.")
        first = next((each.version for each in store.read(self.decider, self.decider_id, limit=1)), None)
        partition = StreamStore(store.connection).stream_partition(self.decider_id, len(log.marks))
        return Ends(((first or head.version + 1) - 1,), (head.version,), partition=partition)

    def read(self, store: PlatformStore, log: LogPlace, at: Numbers) -> Chunk:
        """Return the events after a version."""
        first, last, *_ = self.ends(store, log)
        (version,) = required(at, first, last)
        found = [*store.read(self.decider, self.decider_id, version + 1, PAGE)]
        at = (found[-1].version or 0,) if found else at
        texts = self.texts(store, found)
        return Chunk([*zip((each.offset for each in found), texts, strict=True)], at, len(found) < PAGE)

    def texts(self, store: PlatformStore, events: Sequence[Event]) -> list[bytes]:  # noqa: ARG002 - a row's
        """Return events as messages."""
        return [event_text(each) for each in events]


@dataclass(frozen=True)
class View:
    """The events that a view wants; a place is the next position of each log partition."""

    name: str

    def ends(self, store: PlatformStore, log: LogPlace) -> Ends:
        """Return the beginning of the log and its end."""
        self.wanted(store)
        return Ends(tuple(log.earliest), tuple(log.marks))

    def wanted(self, store: PlatformStore) -> WantedEvents:
        """Return what the view wants."""
        return StreamStore(store.connection).wanted_events(self.name)

    def text(self, event: Event) -> bytes:
        """Return an event as a message."""
        return event_text(event)

    def epoch(self, events: Sequence[Event]) -> int:  # noqa: ARG002 - a feed's
        """Return the last epoch that begins among some events; 0 for none."""
        return 0

    def read(self, store: PlatformStore, log: LogPlace, at: Numbers) -> Chunk:
        """Return the events from some positions on."""
        wanted, positions = self.wanted(store), [*required(at, log.earliest, log.marks)]
        found = list[Event]()
        up_to_date = True
        for partition, (position, mark) in enumerate(zip(at, log.marks, strict=True)):
            if position < mark:
                page = store.read_log(partition, position, PAGE, wanted.deciders, wanted.events)
                # with fewer than a page, read_log has searched up to the mark
                whole = len(page) < PAGE
                positions[partition] = mark if whole else (page[-1].position or 0) + 1
                up_to_date &= whole
                found += page
        # a stream is of one log partition, and keeps its order
        found.sort(key=lambda event: event.offset)
        messages = [(each.offset, self.text(each)) for each in found]
        return Chunk(messages, tuple(positions), up_to_date, self.epoch(found))


@dataclass(frozen=True)
class Feed(View):
    """The changes of a read model's rows, as the state protocol of Durable Streams has them."""

    def ends(self, store: PlatformStore, log: LogPlace) -> Ends:
        """Return the beginning of the log, its end, and the epoch."""
        return Ends(tuple(log.earliest), tuple(log.marks), self.place(store).epoch)

    def place(self, store: PlatformStore) -> FeedPlace:
        """Return where the feed stands."""
        place = StreamStore(store.connection).feed_place(self.name)
        if place is None:
            raise HTTPException(404, "There is no read model of this name with a feed.")
        return place

    def wanted(self, store: PlatformStore) -> WantedEvents:
        """Return the feed's decider."""
        self.place(store)
        return WantedEvents([f"model:{self.name}"], None)

    def text(self, event: Event) -> bytes:
        """Return a change as a message; `replaced` is none of a row."""
        if event.event == "replaced":
            return b""
        value = None if event.event == "deleted" else msgspec.json.decode(event.data_json, type=_Change).after
        return change_text(self.name, event.decider_id, OPERATIONS[event.event], value)

    def epoch(self, events: Sequence[Event]) -> int:
        """Return the last epoch that begins among some changes."""
        return max((each.metadata["feed_epoch"] for each in events if each.event == "replaced"), default=0)


@dataclass(frozen=True)
class Row(Stream):
    """The changes of a row of a read model. Those with columns that the feed does not tell now are passed over."""

    def texts(self, store: PlatformStore, events: Sequence[Event]) -> list[bytes]:
        """Return changes as messages, empty ones for those that are passed over."""
        # rights are for the columns of now
        told = {*Feed(self.decider.removeprefix("model:")).place(store).columns}
        rows = ({**(each.data.get("before") or {}), **(each.data.get("after") or {})} for each in events)
        return [event_text(each) if told.issuperset(row) else b"" for each, row in zip(events, rows, strict=True)]


# equal ones share their reads
Topic = Stream | View


class _Change(Struct):
    after: Raw


def change_text(model: str, key: str, operation: str, value: Raw | None) -> bytes:
    """Return the change of a row as a message."""
    message: dict[str, object] = {"type": model, "key": key, "headers": {"operation": operation}}
    return msgspec.json.encode(message if value is None else message | {"value": value})


def event_text(event: Event) -> bytes:
    """Return an event as a message, with data and metadata as they are stored."""
    names = ("decider", "decider_id", "version", "event", "event_version", "event_id", "created_at", "final")
    values: dict[str, object] = {name: getattr(event, name) for name in names}
    data, metadata = event.data_json, event.metadata_json or "null"
    return msgspec.json.encode(values | {"data": Raw(data.encode()), "metadata": Raw(metadata.encode())})


def required(at: Numbers, earliest: Sequence[int], last: Sequence[int]) -> Numbers:
    """Return a place that the store goes on from.

    Raises:
        HTTPException: It does not.
    """
    if len(at) != len(last):
        raise HTTPException(400, "The offset is none of this stream.")
    if any(number < least for number, least in zip(at, earliest, strict=True)):
        raise HTTPException(410, "Events behind this offset were purged. Begin again with offset=-1.")
    if any(number > most for number, most in zip(at, last, strict=True)):
        raise HTTPException(410, "The offset is beyond the end of this store. Begin again with offset=-1.")
    return at
