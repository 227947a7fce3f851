"""The rows that the event store's functions take and return.

Not here: the rows of leases (`lease_rows`), and of the state of log and views (`status_rows`).

A field `<name>_json` is the text of the column `<name>`, as Postgres prints it. The attribute `<name>` parses it when
it is read: Postgres holds JSON that Python cannot parse, and one such row must not fail the others.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, LiteralString, TypeVar
from uuid import UUID

from msgspec import Struct

from millrace.errors import UnreadableData

if TYPE_CHECKING:
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")
# The columns of an `Event`, JSON as text. Those of fstore-sql:
RECORDED: LiteralString = (
    "event, event_id, event_version, decider, decider_id, data::text,"
    ' command_id, previous_id, final, created_at, "offset"'
)
# all:
STORED: LiteralString = f"{RECORDED}, version, metadata::text"
# all, data in the newest shape:
NEWEST_SHAPE: LiteralString = STORED.replace(
    "data::text", "event_store.upcast(decider, event, event_version, data)::text as data", 1
)
Json = Mapping[str, Any] | Sequence[Any] | str | int | float | bool | None


class Event(Struct, frozen=True, dict=True):
    """An event as it is stored.

    A struct, since clients read many: a frozen dataclass takes ten times as long to make.

    Attributes:
        data_json: The text of its data.
        version: Its number in its stream, from 1; None from `stream_events`.
        metadata_json: The text of its metadata; None for an event without metadata, and where `version` is None.
        position: Its position in its log partition; None while it is not sequenced. Only `latest_events`, `read_log`
            and `read_batch` set it.
        partition: Its log partition; only `latest_events` sets it.
    """

    # the driver reads uuids and times three times as fast in binary; no time of an event is infinite
    in_binary: ClassVar[bool] = True

    event: str
    event_id: UUID
    event_version: int
    decider: str
    decider_id: str
    data_json: str
    command_id: UUID
    previous_id: UUID | None
    final: bool
    created_at: datetime
    offset: int
    version: int | None = None
    metadata_json: str | None = None
    position: int | None = None
    partition: int | None = None

    @cached_property
    def data(self) -> Any:  # noqa: ANN401 - it is what JSON holds
        """The value of its data.

        Raises:
            UnreadableData: Python cannot read it: too many digits or levels. With `fail_event` only its stream waits.
        """
        return parsed(
            self.data_json, f"event {self.event_id} at offset {self.offset} of {self.decider} {self.decider_id}"
        )

    @cached_property
    def metadata(self) -> Any:  # noqa: ANN401 - it is what JSON holds
        """The value of its metadata, None if `metadata_json` is None.

        Raises:
            UnreadableData: Python cannot read it: too many digits or levels.
        """
        return None if self.metadata_json is None else parsed(self.metadata_json, f"metadata of event {self.event_id}")

    def as_(self, model: "type[Model]") -> "Model":
        """Return its data as an object of a declared event; for an older version, `read` with `upcast`.

        Raises:
            pydantic.ValidationError: The data do not fit the model.
        """
        return model.model_validate(self.data)


@dataclass(frozen=True)
class StreamHead:
    """The last event of a stream, the number of its events so far, and whether the last one closed it."""

    last_event_id: UUID
    last_offset: int
    version: int
    final: bool


@dataclass(frozen=True)
class StreamState:
    """A fold read model's state of one stream, with version and offset of the last event folded into it."""

    state: Any  # the fold's result, which may be None
    version: int
    offset: int


class EventBehindState(Event, frozen=True):
    """An event behind a fold's state of its stream, numbered from 1; the first row also has the state.

    Without a state its version and offset are None. Without an event the number and all fields of the event are None.
    """

    number: int | None = None
    state: Any = None
    state_version: int | None = None
    state_offset: int | None = None
    is_stored: bool = False


class Delivery(Event, frozen=True):
    """An event that a rows view delivered to a consumer; its `version` is never None.

    Attributes:
        lease_token: Fences its lock.
        attempt: The number of the attempt, from 1.
        suspect: Whether an earlier lock, leased ahead, ended without an answer: call `extend_lock` when the handling
            begins.
    """

    version: int = 0
    lease_token: int = 0
    attempt: int = 0
    suspect: bool = False


@dataclass(frozen=True)
class Scheduled:
    """What `schedule` did.

    Attributes:
        event_id: The id that the event will have.
        due_at: It is not appended before.
        outcome: None while it waits; else as that of `ScheduledEvent`.
        scheduled: False where the very event was scheduled before.
    """

    event_id: UUID
    due_at: datetime
    outcome: str | None
    scheduled: bool


@dataclass(frozen=True)
class ScheduledEvent:
    """An event that waits to be appended, or that is done.

    Attributes:
        name: Its name in its stream.
        made_by: The role that scheduled it.
        tries: How many tries failed, the last with `last_error`.
        outcome: None while it waits; `fired`, `cancelled`, `unless`, `closed`, `no_stream`; `refused` by the store.
    """

    decider: str
    decider_id: str
    name: str
    event_id: UUID
    event: str
    due_at: datetime
    made_by: str
    tries: int
    last_error: str | None
    done_at: datetime | None
    outcome: str | None


@dataclass(frozen=True)
class LogPosition:
    """Where an event is in the log; `position` is None while it is not sequenced."""

    partition: int
    position: int | None


@dataclass(frozen=True)
class EventPosition(LogPosition):
    """Where an event is in the log; `position` is None if it was not sequenced in time."""

    event_id: UUID


class Appended(Struct, frozen=True):
    """The result of an append to one stream; `wait_for` and `positions` take it.

    Attributes:
        event_ids: The ids of the events, in order.
        version: The number of events in the stream after the append.
        offset: The offset of the last event.
        appended: False if all of the events were stored before.
    """

    decider: str
    decider_id: str
    event_ids: tuple[UUID, ...]
    version: int
    offset: int
    appended: bool


class AppendedEvent(Struct, frozen=True):
    """Where an event is stored; `appended` is false if it was stored before."""

    event_id: UUID
    offset: int
    version: int
    appended: bool


@dataclass(frozen=True)
class AppendedCount:
    """The number of events of a batch that were not stored before, and of those that are the first of their stream."""

    appended: int
    first: int


@dataclass(frozen=True)
class DeciderEvent:
    """An event that a decider may append."""

    decider: str
    event: str
    event_version: int
    description: str


@dataclass(frozen=True)
class EventSchema:
    """The schema that data of an event must fit, named by its digest."""

    decider: str
    event: str
    event_version: int
    digest: str


@dataclass(frozen=True)
class EventUpcast:
    """The upcast of an event's data from the version before `to_version`; the digest names its moves."""

    decider: str
    event: str
    to_version: int
    digest: str


@dataclass(frozen=True)
class View:
    """A named consumer of the log and its settings."""

    view: str
    start_at: datetime
    lock_timeout_s: int
    pooling_delay_s: int | None
    edge_function_url: str | None
    created_at: datetime
    updated_at: datetime
    mode: str
    deciders: list[str] | None
    events: list[str] | None
    enabled: bool
    max_attempts: int
    owner: str
    version: int
    push_format: str
    push_upcast: bool
    max_lag_s: int
    push_unseal: bool


@dataclass(frozen=True)
class LogMark:
    """A moment of the log: the high-water marks of all log partitions, `marks[n]` for log partition n.

    `reason` is None for the marks that the sequencer records once a minute.
    """

    mark_id: int
    marked_at: datetime
    marks: list[int]
    reason: str | None


@dataclass(frozen=True)
class Lock:
    """A stream of a rows view with events to deliver; `offset` is the stream's head."""

    view: str
    decider_id: str
    offset: int
    last_offset: int
    locked_until: datetime
    offset_final: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class DeadLetter:
    """A parked stream: its failed event, the error, and the number of waiting events, the failed one included.

    A stream that waits for a retry has no `parked_at`.
    """

    view: str
    decider: str
    decider_id: str
    partition: int
    event: str | None
    offset: int | None
    attempts: int
    last_error: str
    parked_at: datetime | None
    waiting: int


@dataclass(frozen=True)
class StreamView:
    """A view and one stream: its checkpoint, the number and first offset of its pending events, the stream's lock.

    Without a lock `last_offset`, `in_flight`, `locked_until`, `last_error` and `parked_at` are None.
    """

    view: str
    mode: str
    enabled: bool
    partition: int
    position: int
    owed: int
    first_owed: int | None
    last_offset: int | None
    in_flight: int | None
    attempts: int
    locked_until: datetime | None
    last_error: str | None
    parked_at: datetime | None


@dataclass(frozen=True)
class Seek:
    """A view's old and new position in one log partition, and the number of locks and dead letters removed."""

    partition: int
    from_position: int
    to_position: int
    earliest_position: int
    high_water_mark: int
    locks_removed: int
    dead_letters_removed: int
    note: str | None


@dataclass(frozen=True)
class AvailableRange:
    """The positions [earliest_position, high_water_mark) that a log partition holds."""

    partition: int
    earliest_position: int
    high_water_mark: int
    events: int


@dataclass(frozen=True)
class AuditEntry:
    """An operation, its operator and the reason; `detail` holds the values before and after."""

    audit_id: int
    done_at: datetime
    done_by: str
    operation: str
    view: str | None
    reason: str | None
    detail_json: str

    @cached_property
    def detail(self) -> Any:  # noqa: ANN401 - it is what JSON holds
        """The values before and after."""
        return parsed(self.detail_json, f"entry {self.audit_id} of audit_log")


@dataclass(frozen=True)
class BackupCut:
    """The identity of the store, and the last offset and lease token that it assigned."""

    archive_id: UUID
    last_offset: int
    lease_token: int


@dataclass(frozen=True)
class DatabaseIdentity:
    """The identity of a database: the cluster's system identifier, the database's name and its oid."""

    system_identifier: str
    database: str
    database_oid: int


def parsed(text: str, of: str) -> Any:  # noqa: ANN401 - it is what JSON holds
    """Return the value of a JSON text of Postgres; `of` names its row for the error.

    Raises:
        UnreadableData: Python cannot read it.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableData(
            "Python cannot read this JSON, which Postgres holds.",
            detail=f"{of}: {error}",
            hint="The text itself is there beside the value. A consumer reports the event with fail_event: only its stream waits.",
        ) from error
