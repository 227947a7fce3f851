"""Makes the events of an import: what a row becomes, and why it becomes none.

Belongs here: that, without a database; the same row of the same source is always the same event. Not here: reading
files (`files`, `text`), times (`times`), storing (`importer`).

A row costs a few microseconds here: so its event is written as text at once, and no object is made of it.
"""

import re
from dataclasses import dataclass
from json import dumps
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from millrace.resources.importer.rows import Row
from millrace.resources.importer.times import TimeForm

# Every event_id of an import follows from it: it must never change.
NAMESPACE = UUID("6d696c6c-7261-5365-8000-696d706f7274")
NAME_BYTES = 1024
# beyond, doubles are not each a whole number of their own
EXACT_DOUBLES = 2**53
UUID_LENGTH = 36
UUID_TEXT = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


@dataclass(frozen=True)
class Columns:
    """The names of columns. A key within an object has a path for a name, such as `repo.name`.

    Attributes:
        stream: Names the stream.
        event: Names the event.
        time: The time; of several columns its parts, in order, and the first one takes the whole time.
        metadata: Beside the data, not within.
    """

    stream: str
    event: str
    time: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()

    def paths(self, known: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Return each name with the keys that lead to its value, where these columns are known."""
        names = (self.stream, self.event, *self.time, *self.metadata)
        return {name: (name,) if name in known else tuple(name.split(".")) for name in names}


class Event(NamedTuple):
    """The event of a row: its name, and the JSON text that `append_events` takes."""

    event: str
    json_text: str


class Mapping:
    """Makes an event of a row of one source, which has certain columns."""

    def __init__(
        self, source: str, decider: str, columns: Columns, known: tuple[str, ...] = (), form: TimeForm | None = None
    ) -> None:
        self._columns = columns
        self._paths = columns.paths(known)
        self._form = form or TimeForm()
        # the command that caused every event is the import of this source
        command = uuid5(NAMESPACE, source)
        self._beginning = f'{{"decider": {quoted(decider)}, "command_id": "{command}", "decider_id": '
        # version 8 of RFC 9562, all but the nine digits of the row's number: ids rise as the rows do
        self._id = f"{str(command)[:14]}8{str(command)[15:27]}"
        self._stream = f"the stream ({columns.stream})"
        self._event = f"the event ({columns.event})"

    def event(self, row: Row) -> Event | str:
        """Return the event, or the reason why the row has none."""
        if row.fault:
            return row.fault
        data = row.values.copy()
        names, paths = self._columns, self._paths
        stream, event = _name(_at(data, paths[names.stream])), _name(_at(data, paths[names.event]))
        fault = name_fault(self._stream, stream) or name_fault(self._event, event)
        if names.time and not fault:
            try:
                iso = self._form.iso(_joined([_at(data, paths[name]) for name in names.time]))
                _put(data, paths[names.time[0]], iso)
            except ValueError as error:
                fault = f"its time ({', '.join(names.time)}) cannot be read: {error}"
        if fault or stream is None or event is None:
            return fault or ""
        # Postgres writes a UUID in lower case, and the store takes no other
        if len(stream) == UUID_LENGTH and UUID_TEXT.fullmatch(stream):
            stream = stream.lower()
        for name in (names.stream, names.event):
            _take(data, paths[name])
        # an empty cell says nothing
        metadata = {name: cell for name in names.metadata if (cell := _take(data, paths[name])) not in (None, "")}
        try:
            data_json = _members(data)
            metadata_json = f', "metadata": {{{_members(metadata)}}}' if metadata else ""
        except RecursionError:
            return "it is nested too deeply"
        return Event(
            event,
            f'{self._beginning}{quoted(stream)}, "event": {quoted(event)}, "event_id": "{self._id}{row.number:09x}", '
            f'"data": {{{data_json}}}{metadata_json}}}',
        )


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
    # where a column of ids has a gap, pandas makes them doubles
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_DOUBLES:
        return str(int(value))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _joined(parts: list[Any]) -> Any:  # noqa: ANN401 - a cell has any type
    """Return the value of the time, of which each column has a part; None where one is missing."""
    if len(parts) == 1:
        return parts[0]
    return None if None in parts else " ".join(map(str, parts))


def _at(data: Any, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - a cell has any type
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _take(data: dict[str, Any], path: tuple[str, ...]) -> Any:  # noqa: ANN401 - a cell has any type
    """Return a value, and take it out of the data, but not out of an object."""
    return data.pop(path[0], None) if len(path) == 1 else _at(data, path)


def _put(data: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    """Change a value where it is; the objects on the way are the row's, so they are copied."""
    for key in path[:-1]:
        data[key] = data[key].copy()
        data = data[key]
    data[path[-1]] = value
