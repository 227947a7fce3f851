"""Makes the events of an import: the event that a row becomes, or the reason why the row becomes none.

The same row of the same source is always the same event. Each event is written directly as text, without an object in
between: a row costs a few microseconds.
"""

import re
from dataclasses import dataclass
from json import dumps
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple
from uuid import UUID, uuid4, uuid5

from millrace.errors import Malformed
from millrace.importer.file_rows import Row
from millrace.importer.text import json_object
from millrace.importer.times import TimeForm
from millrace.personal.declaration import subject_of
from millrace.personal.marked_text import marked

# Every event_id of an import is derived from it: it must never change.
NAMESPACE = UUID("6d696c6c-7261-5365-8000-696d706f7274")
NAME_BYTES = 1024
UUID_LENGTH = 36
# no text of a file has it
_TOKEN = uuid4().hex
_QUOTED = re.compile(r"(?s)'.*'|\".*\"")
UUID_TEXT = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


@dataclass(frozen=True)
class Columns:
    """The names of columns. A key within an object has a path for a name, such as `repo.name`.

    Attributes:
        stream: The stream's name; of several columns, the JSON array of their values, and they stay in the data.
        event: The event's name.
        time: The time; several columns hold its parts, in order, and the first one is replaced by the whole time.
        metadata: Columns that go beside the data instead of into it.
        id: The event's id, a UUID.
        data: The whole data, a JSON object; columns without a role here are then left out.
        stream_name: The stream of every row, if no column names it.
        event_name: The event of every row, if no column names it.
        nulls: Texts that stand for a cell without a value.
        personal: Columns with values that are sealed; nothing shows them.
        subject: Whose these are: a kind, and the column with the person's id.
    """

    stream: tuple[str, ...]
    event: str | None
    time: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    id: str | None = None
    data: str | None = None
    stream_name: str | None = None
    event_name: str | None = None
    nulls: frozenset[str] = frozenset()
    personal: tuple[str, ...] = ()
    subject: tuple[str, str] | None = None

    def paths(self, file_columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Return the path of keys to each name's value; a name in `file_columns` is a single key."""
        names = (*self._shown, self.data, *self.personal)
        return {name: (name,) if name in file_columns else tuple(name.split(".")) for name in names if name is not None}

    @property
    def _shown(self) -> tuple[str | None, ...]:
        person = None if self.subject is None else self.subject[1]
        return (*self.stream, self.event, *self.time, *self.metadata, self.id, person)

    def shown_anyway(self, file_columns: tuple[str, ...]) -> list[str]:
        """Return the personal columns whose values, or parts of them, another role would show."""
        paths, shown = self.paths(file_columns), list[str]()
        for name in self.personal:
            others = [*filter(None, self._shown), *self.personal]
            others.remove(name)
            sizes = [(paths[other], min(len(paths[other]), len(paths[name]))) for other in others]
            if name == self.data or any(path[:size] == paths[name][:size] for path, size in sizes):
                shown.append(name)
        return shown

    def hidden(self, row: Row, file_columns: tuple[str, ...]) -> str:
        """Return a row as text without its personal values; of one that cannot be read, nothing."""
        if not self.personal:
            return row.raw or dumps(row.values, default=str)
        values, paths = row.values, self.paths(file_columns)
        for name in self.personal:
            values = _hidden(values, paths[name])
        return "" if row.fault else dumps(values, default=str)

    def cells(self, row: Row) -> dict[str, Any]:
        """Return a copy of the row's cells in which each of `nulls` is null."""
        if not self.nulls:
            return row.values.copy()
        return {name: None if type(cell) is str and cell in self.nulls else cell for name, cell in row.values.items()}


class Event(NamedTuple):
    """The event of a row: its name, and the JSON text that `append_events` takes once personal values are sealed."""

    event: str
    json_text: str
    event_id: str


class Mapping:
    """Turns rows of one source, which has certain columns, into events."""

    def __init__(
        self,
        source: str,
        decider: str,
        columns: Columns,
        file_columns: tuple[str, ...] = (),
        form: TimeForm | None = None,
    ) -> None:
        self._columns = columns
        self._paths = columns.paths(file_columns)
        self._form = form or TimeForm()
        # all events have the import of this source as their command
        command = uuid5(NAMESPACE, source)
        self._beginning = f'{{"decider": {quoted(decider)}, "command_id": "{command}", "decider_id": '
        # version 8 of RFC 9562 without the nine digits of the row's number: ids rise as the rows do
        self._id = f"{str(command)[:14]}8{str(command)[15:27]}"
        self._event = f"the event ({columns.event})"
        moved = (*(columns.stream if len(columns.stream) == 1 else ()), columns.event, columns.id, *columns.metadata)
        # a value within an object stays there
        self._moved = [path[0] for name in moved if name is not None and len(path := self._paths[name]) == 1]

    def event(self, row: Row) -> Event | str:
        """Return the event, or the reason why the row has none."""
        if row.fault:
            # it may quote a value
            return _QUOTED.sub("…", row.fault) if self._columns.personal else row.fault
        data = self._columns.cells(row)
        names, paths = self._columns, self._paths
        try:
            if names.data is not None:
                _put(data, paths[names.data], self._object(_at(data, paths[names.data])))
            stream, event = self._stream(data), names.event_name or ""
            if names.event is not None:
                event = _checked_name(self._event, _at(data, paths[names.event]))
            event_id = (
                f"{self._id}{row.number:09x}" if names.id is None else self._stated_id(_at(data, paths[names.id]))
            )
            if names.time:
                _put(data, paths[names.time[0]], self._iso(data))
            # an empty cell is no metadata
            cells = {name: cell for name in names.metadata if (cell := _at(data, paths[name])) not in (None, "")}
            marks = self._marked(data)
            whole = data if names.data is None else self._whole(data)
            for column in self._moved:
                data.pop(column, None)
            data_json = _members(whole)
            for placeholder, mark in marks.items():
                data_json = data_json.replace(quoted(placeholder), mark)
        except _Fault as fault:
            return str(fault)
        except RecursionError:
            return "it is nested too deeply"
        return Event(
            event,
            f'{self._beginning}{quoted(stream)}, "event": {quoted(event)}, "event_id": "{event_id}", '
            f'"data": {{{data_json}}}, "metadata": {{{_members({"imported": True, **cells})}}}}}',
            event_id,
        )

    def _marked(self, data: dict[str, Any]) -> dict[str, str]:
        """Put a placeholder for each personal value, and return the marked values by them."""
        marks = dict[str, str]()
        within = () if self._columns.data is None else self._paths[self._columns.data]
        for name in self._columns.personal:
            path = self._paths[name]
            if (cell := _at(data, path)) is None or self._columns.subject is None:
                continue
            kind, person = self._columns.subject
            try:
                subject = subject_of(kind, _name(_at(data, self._paths[person])))
            except Malformed as error:
                raise _Fault(f"its person ({person}) cannot be told: {error.message}") from error
            placeholder = f"\0{_TOKEN}{len(marks)}\0"
            marks[placeholder] = marked(subject, ".".join(path[len(within) :]), dumps(cell))
            _put(data, path, placeholder)
        return marks

    def _stream(self, data: dict[str, Any]) -> str:
        names = [_checked_name(f"the stream ({name})", _at(data, self._paths[name])) for name in self._columns.stream]
        stream = self._columns.stream_name or ""
        if names:
            stream = names[0] if len(names) == 1 else dumps(names, ensure_ascii=False)
            _checked_name(f"the stream ({', '.join(self._columns.stream)})", stream)
        # Postgres writes a UUID in lower case, and the store accepts no other form
        return stream.lower() if _is_uuid(stream) else stream

    def _stated_id(self, cell: Any) -> str:  # noqa: ANN401 - a cell has any type
        if not isinstance(cell, str) or not _is_uuid(cell):
            raise _Fault(f"its id ({self._columns.id}) is no UUID of {UUID_LENGTH} characters: {cell!r:.100}")
        return cell

    def _iso(self, data: dict[str, Any]) -> str:
        names = self._columns.time
        try:
            parts = [_at(data, self._paths[name]) for name in names]
            whole = parts[0] if len(parts) == 1 else " ".join(map(str, parts))
            return self._form.iso(None if None in parts else whole)
        except ValueError as error:
            raise _Fault(f"its time ({', '.join(names)}) cannot be read: {error}") from error

    def _object(self, cell: Any) -> dict[str, Any]:  # noqa: ANN401 - a cell has any type
        parsed = json_object(cell) if isinstance(cell, str) else cell
        if not isinstance(parsed, dict):
            fault = parsed if isinstance(cell, str) else f"it is not a JSON object but {type(cell).__name__}"
            raise _Fault(f"its data ({self._columns.data}) cannot be read: {fault}")
        return parsed

    def _whole(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the object that is the data, with the time added if it lacks that."""
        within = self._paths[self._columns.data or ""]
        whole: dict[str, Any] = _at(data, within)
        beside = {name: _at(data, self._paths[name]) for name in self._columns.time[:1]}
        if not beside or self._paths[self._columns.time[0]][: len(within)] == within:
            return whole
        if twice := whole.keys() & beside:
            raise _Fault(f"its data ({self._columns.data}) has a member of the name of the time's column: {twice}")
        return whole | beside


def _hidden(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    key, *rest = path
    if key not in values:
        return values
    inner = values[key]
    return {**values, key: _hidden(inner, tuple(rest)) if rest and isinstance(inner, dict) else "***"}


class _Fault(Exception):
    """The reason why a row has no event."""


def _is_uuid(text: str) -> bool:
    return len(text) == UUID_LENGTH and UUID_TEXT.fullmatch(text) is not None


def _checked_name(what: str, cell: Any) -> str:  # noqa: ANN401 - a cell has any type
    name = _name(cell)
    if fault := name_fault(what, name):
        raise _Fault(fault)
    return name or ""


def name_fault(what: str, name: str | None) -> str | None:
    """Return why a text cannot name a stream, an event or a source; None if it can."""
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
    """Return a text, or the digits of a whole number; no other value can name a stream or an event."""
    if isinstance(value, str):
        return value
    # pandas turns a column of ids with gaps into doubles; beyond 2**53 two ids may be the same double
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _at(data: Any, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - a cell has any type
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:  # noqa: ANN401 - a cell has any type
    """Replace a value in its place; the objects on the path are the row's, so they are copied."""
    for key in path[:-1]:
        data[key] = data[key].copy()
        data = data[key]
    data[path[-1]] = value
