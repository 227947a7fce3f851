"""Makes the events of an import: what a row becomes, and why it becomes none.

Belongs here: that, without a database; the same row of the same source is always the same event. Not here: reading
files (`files`, `text`), times (`times`), storing (`importer`).

A row costs a few microseconds here: so its event is written as text at once, and no object is made of it.
"""

import re
from dataclasses import dataclass
from hashlib import sha1
from json import dumps
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from millrace.resources.importer.rows import Row
from millrace.resources.importer.times import iso_time

# Every event_id of an import follows from it: it must never change.
NAMESPACE = UUID("6d696c6c-7261-5365-8000-696d706f7274")
NAME_BYTES = 1024
UUID_LENGTH = 36
UUID_TEXT = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
# The first two bits of this digit say that a UUID is of the kind that RFC 4122 describes.
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


@dataclass(frozen=True)
class Columns:
    """The names of the columns of the stream, of the event, of the time if the file has one, and of metadata."""

    stream: str
    event: str
    time: str | None = None
    metadata: tuple[str, ...] = ()


class Event(NamedTuple):
    """The event of a row: its name, and the JSON text that `append_events` takes."""

    event: str
    json_text: str


class Mapping:
    """Makes an event of a row of one source."""

    def __init__(self, source: str, decider: str, columns: Columns) -> None:
        self._columns = columns
        # the command that caused every event is the import of this source
        command = uuid5(NAMESPACE, source)
        self._beginning = f'{{"decider": {quoted(decider)}, "command_id": "{command}", "decider_id": '
        self._ids = EventIds(command)
        self._stream = f"the stream ({columns.stream})"
        self._event = f"the event ({columns.event})"

    def event(self, row: Row) -> Event | str:
        """Return the event, or the reason why the row has none."""
        if row.fault:
            return row.fault
        data = row.values.copy()
        names = self._columns
        stream, event = _name(data.get(names.stream)), _name(data.get(names.event))
        fault = name_fault(self._stream, stream) or name_fault(self._event, event)
        if names.time is not None and not fault:
            try:
                data[names.time] = iso_time(data.get(names.time))
            except ValueError as error:
                fault = f"its time ({names.time}) cannot be read: {error}"
        if fault or stream is None or event is None:
            return fault or ""
        # Postgres writes a UUID in lower case, and the store takes no other
        if len(stream) == UUID_LENGTH and UUID_TEXT.fullmatch(stream):
            stream = stream.lower()
        del data[names.stream]
        data.pop(names.event, None)
        # an empty cell says nothing
        metadata = {name: cell for name in names.metadata if (cell := data.pop(name, None)) not in (None, "")}
        try:
            data_json = _members(data)
            metadata_json = f', "metadata": {{{_members(metadata)}}}' if metadata else ""
        except RecursionError:
            return "it is nested too deeply"
        return Event(
            event,
            f'{self._beginning}{quoted(stream)}, "event": {quoted(event)}, "event_id": "{self._ids.of(row.number)}", '
            f'"data": {{{data_json}}}{metadata_json}}}',
        )


class EventIds:
    """The ids of the rows of one source: `uuid5(command, str(number))`, but a sixth of its time."""

    def __init__(self, command: UUID) -> None:
        self._hash = sha1(command.bytes, usedforsecurity=False)

    def of(self, number: int) -> str:
        """Return the id of a row's event as text."""
        hashed = self._hash.copy()
        hashed.update(b"%d" % number)
        digits = hashed.hexdigest()
        variant = _VARIANT[digits[16]]
        return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def name_fault(what: str, name: str | None) -> str | None:
    """Return the reason why a text cannot name a stream, an event or a source; None if it can."""
    if name is None or not name.strip():
        return f"{what} is missing or neither text nor a whole number"
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        return f"{what} is not UTF-8"
    if "\0" in name:
        return f"{what} contains a NUL character"
    return f"{what} has {size} bytes; at most {NAME_BYTES} are allowed" if size > NAME_BYTES else None


def _members(values: dict[str, Any]) -> str:
    return ", ".join(
        [f"{quoted(key)}: {quoted(cell) if type(cell) is str else dumps(cell)}" for key, cell in values.items()]
    )


def _name(value: Any) -> str | None:  # noqa: ANN401 - a cell has any type
    """Return text, or the digits of a whole number; nothing else can name a stream or an event."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
