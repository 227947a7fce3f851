"""The rows of a captured table as JSON: its key, its image, and the changes of a row."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.pgoutput import (
    UNCHANGED,
    Delete,
    Insert,
    Relation,
    RelationColumn,
    Update,
    Value,
    Values,
    WholeRow,
)
from millrace.capture.decoding.values import Encoder, Undecodable, encoded_column, encoder_of, hashing, masked, quoted
from millrace.errors import Malformed, MillraceError
from millrace.personal.declaration import subject_of
from millrace.personal.marked_text import marked


class TableUnfit(MillraceError):
    """A captured table does not fit its declaration: a column is missing, or other columns identify its rows.

    Attributes:
        table: Its name.
    """

    def __init__(self, table: str, why: str) -> None:
        self.table = table
        super().__init__(
            f"Table {table} does not fit its declaration.",
            detail=why,
            hint="The next run looks at it: it stops the table, and says why, or reads it anew.",
        )


def why_unfit(table: CapturedTable, relation: Relation) -> str | None:
    """Return why a table of this description does not fit its declaration, as a sentence; None if it does.

    Args:
        table: The declaration, with the columns of its key.
        relation: The table's description.
    """
    names = [column.name for column in relation.columns]
    if lost := [name for name in (*(table.key or ()), *table.needed, *(table.columns or ())) if name not in names]:
        return f"it has no column {', '.join(dict.fromkeys(lost))}; there are {', '.join(names)}"
    named = [column.name for column in relation.columns if column.is_key and relation.identity in "di"]
    if table.key and named and set(named) != set(table.key):
        return f"{', '.join(named)} name its rows; as it was looked at, {', '.join(table.key)} did"
    return None


class RowChange(NamedTuple):
    """What happened to a row.

    Attributes:
        action: inserted, updated or deleted.
        decider_id: The row's key as a JSON array; None if it cannot be decoded, or no columns identify a row.
        body: The beginning of a JSON object, open for more keys; None if it cannot be decoded.
        fault: Why key or body cannot be decoded, a sentence; None if both can.
    """

    action: str
    decider_id: str | None
    body: str | None
    fault: str | None


class Images(NamedTuple):
    """Key, body and fault of many rows, as `RowChange` has them."""

    decider_ids: Sequence[str | None]
    bodies: Sequence[str | None]
    faults: Sequence[str | None]


class TableRows:
    """The rows of one table.

    Args:
        table: The declaration, with the key if the replica identity has none.
        relation: The table's description, in force for the rows that follow it.

    Attributes:
        decider: The decider of its events.
        width: How many columns a row has.
        hides: Whether it has values that never leave the source. If so, its messages are not stored either.
        keyless: Whether no columns identify its rows.
    """

    def __init__(self, table: CapturedTable, relation: Relation) -> None:
        self.decider = table.stream_decider
        self._names = [column.name for column in relation.columns]
        self.width = len(self._names)
        self._labels = [f"{quoted(name)}: " for name in self._names]
        self._encoders = [_encoder(table, column) for column in relation.columns]
        self.hides = bool(table.hidden)
        self.keyless = table.keyless
        self._record = _record(self._labels)
        self._columns = list(zip(self._labels, self._encoders, strict=True))
        self._unfit: str | None = None
        # FULL marks every column as key, and NOTHING marks none: then the declaration defines the key
        named = not table.keyless and relation.identity in "di"
        key = [at for at, column in enumerate(relation.columns) if column.is_key and named]
        if not key and table.key is None:
            self._unfit = f"table {table.name} has no key: declare one, or give it a primary key"
        elif not key and table.key is not None:
            if missing := [name for name in table.key if name not in self._names]:
                self._unfit = f"table {table.name} has no column {', '.join(missing)}, which its key names"
            key = [at for at, name in enumerate(self._names) if name in table.key]
        if lost := [name for name in table.needed if name not in self._names]:
            # a renamed column would reach the store unhidden
            self._unfit = f"table {table.name} has no column {', '.join(lost)}, which is masked, hashed or personal, or says whose one is"
        places = {name: at for at, name in enumerate(self._names)}
        # by the place of a personal column: that of its person's id, and the kind
        self._people = {places[name]: (places[mark.of], mark.kind) for name, mark in table.people.items() if not lost}
        self._key = key
        self._key_columns = [(at, *self._columns[at]) for at in key]
        beside_key = [name for at, name in enumerate(self._names) if at not in key]
        # the other columns are unavailable, not null: the log does not hold them
        self._key_record = _record([self._labels[at] for at in key]) + _unavailable(beside_key).replace("%", "%%")

    def images(self, rows: Sequence[WholeRow]) -> "Images":
        """Return key, body and fault of many new rows as wide as the table, each as `inserted` gives them."""
        try:
            columns = self._encoded(rows, range(self.width))
            bodies = [self._record % row for row in zip(*columns, strict=True)]
            keys = [None] * len(rows) if self.keyless else _keys([columns[at] for at in self._key])
            return Images(keys, bodies, [None] * len(rows))
        except Undecodable:
            # one of the rows is faulty: decoded one by one, that row gets the fault
            return _listed([self._with_image("inserted", tuple(row)) for row in rows])

    def endings(self, rows: Sequence[WholeRow]) -> "Images":
        """Return key, body and fault of many deleted rows with known keys, each as `deleted` gives them."""
        try:
            columns = self._encoded(rows, self._key)
            bodies = [self._key_record % row for row in zip(*columns, strict=True)]
            return Images(_keys(columns), bodies, [None] * len(rows))
        except Undecodable:
            return _listed([self._without(tuple(row), whole=False) for row in rows])

    def _encoded(self, rows: Sequence[WholeRow], columns: Sequence[int]) -> list[list[str]]:
        """Return the JSON of some columns: one column at a time, because the work for each value costs the most."""
        if self._unfit:
            raise Undecodable(self._unfit)
        whole = list(zip(*rows, strict=True)) or [()] * self.width
        return [self._column(at, whole) for at in columns]

    def _column(self, at: int, whole: Sequence[Sequence[bytes | None]]) -> list[str]:
        texts = encoded_column(self._encoders[at], whole[at])
        if at not in self._people:
            return texts
        of, _ = self._people[at]
        return [
            text if value is None else self._marked(at, text, person)
            for text, value, person in zip(texts, whole[at], whole[of], strict=True)
        ]

    def inserted(self, message: Insert) -> RowChange:
        """Return a new row's change."""
        return self._with_image("inserted", message.new)

    def updated(self, message: Update) -> list[RowChange]:
        """Return a row's change to its new image; if its key changed, the deletion at the old key comes first."""
        old, new = message.old, message.new
        if old is None:
            return [self._with_image("updated", new)]
        whole = message.old_kind == "O"
        try:
            self._check_number(old)
            self._check_number(new)
            filled = new if UNCHANGED not in new else self._filled(old, new, whole=whole)
            new_key = self.key(filled)
            moved = [at for at, *_ in self._key_columns if old[at] != filled[at]]
            old_key = self.key(old) if moved else new_key
        except Undecodable as bad:
            return [RowChange("updated", None, None, str(bad))]
        try:
            body = self._image(filled)
            if whole:
                body += f', "changes": {self._changes(old, filled)}'
            fault = None
        except Undecodable as bad:
            body, fault = None, str(bad)
        if not moved:
            return [RowChange("updated", new_key, body, fault)]
        ended = self._without(old, whole=whole)
        if ended.body:
            ended = ended._replace(body=f'{ended.body}, "new_key": {new_key}')
        return [ended, RowChange("updated", new_key, body and f'{body}, "old_key": {old_key}', fault)]

    def deleted(self, message: Delete) -> RowChange:
        """Return a row's deletion."""
        return self._without(message.old, whole=message.old_kind == "O")

    def key(self, values: Values) -> str:
        """Return the key of a row as a JSON array.

        Raises:
            Undecodable: The table has no key, or these values lack it.
        """
        self._check_fit(values)
        if self.keyless:
            raise Undecodable("nothing names the rows of its table")
        parts = []
        for at, _, encode in self._key_columns:
            value = values[at]
            if value is None:
                raise Undecodable(f"column {self._names[at]} belongs to the key and is null")
            if value is UNCHANGED:
                raise Undecodable(f"column {self._names[at]} belongs to the key, and the log does not hold it")
            try:
                parts.append(encode(value))
            except Undecodable as bad:
                raise Undecodable(f"column {self._names[at]} {bad}") from bad
        return f"[{','.join(parts)}]"

    def _with_image(self, action: str, values: Values) -> RowChange:
        decider_id = None
        try:
            self._check_fit(values)
            if action != "inserted" or not self.keyless:
                decider_id = self.key(values)
            return RowChange(action, decider_id, self._image(values), None)
        except Undecodable as bad:
            return RowChange(action, decider_id, None, str(bad))

    def _without(self, old: Values, *, whole: bool) -> RowChange:
        if whole:
            return self._with_image("deleted", old)
        decider_id = None
        try:
            decider_id = self.key(old)
            body = self._key_record % tuple(self._json(at, old, " before the change") for at in self._key)
            return RowChange("deleted", decider_id, body, None)
        except Undecodable as bad:
            return RowChange("deleted", decider_id, None, str(bad))

    def _image(self, values: Values) -> str:
        """Write the beginning of the data: the record, and the columns that it lacks."""
        parts = []
        unavailable: list[str] = []
        for at, ((label, encode), value) in enumerate(zip(self._columns, values, strict=True)):
            if value is None:
                parts.append(label + "null")
            elif value is UNCHANGED:
                unavailable.append(self._names[at])
            elif at in self._people:
                parts.append(label + self._json(at, values))
            else:
                try:
                    parts.append(label + encode(value))
                except Undecodable as bad:
                    raise Undecodable(f"column {self._names[at]} {bad}") from bad
        record = '{"record": {' + ", ".join(parts) + "}"
        return record + _unavailable(unavailable) if unavailable else record

    def _filled(self, old: Values, new: Values, *, whole: bool) -> Values:
        """Return the new row; a value that the message lacks comes from the old row, if that has it."""
        return tuple(
            old[at] if value is UNCHANGED and (whole or at in self._key) else value for at, value in enumerate(new)
        )

    def _changes(self, old: Values, new: Values) -> str:
        """Write the old values of the columns that changed; both rows are whole."""
        parts = [
            self._labels[at] + self._json(at, old, " before the change")
            for at, (before, after) in enumerate(zip(old, new, strict=True))
            if before != after
        ]
        return "{" + ", ".join(parts) + "}"

    def _json(self, at: int, values: Values, when: str = "") -> str:
        value = values[at]
        if value is None or value is UNCHANGED:
            return "null"
        try:
            text = self._encoders[at](value)
        except Undecodable as bad:
            # the error quotes the value
            why = "has no JSON form, and is not shown: it is personal" if at in self._people else bad
            raise Undecodable(f"column {self._names[at]}{when} {why}") from bad
        return text if at not in self._people else self._marked(at, text, values[self._people[at][0]])

    def _marked(self, at: int, text: str, person: Value) -> str:
        of, kind = self._people[at]
        try:
            if isinstance(person, bytes):
                return marked(_subject(kind, person), self._names[at], text)
        except (Malformed, UnicodeDecodeError):
            pass
        raise Undecodable(
            f"column {self._names[at]} is personal, and column {self._names[of]} has no id of a person: it is null, has @ or a"
            " blank, or is not in the log"
        )

    def _check_fit(self, values: Values | WholeRow) -> None:
        if self._unfit:
            raise Undecodable(self._unfit)
        self._check_number(values)

    def _check_number(self, values: Values | WholeRow) -> None:
        if len(values) != self.width:
            raise Undecodable(f"the row has {len(values)} columns, its table {self.width}")


# a batch is encoded column by column, and several may be of one person
@lru_cache(1024)
def _subject(kind: str, person: bytes) -> str:
    return subject_of(kind, person.decode())


def _encoder(table: CapturedTable, column: RelationColumn) -> Encoder:
    if column.name in table.mask:
        return masked
    return hashing(table.secret()) if column.name in table.hash else encoder_of(column.type_oid)


def _record(labels: Sequence[str]) -> str:
    """Return the template of a record with these columns."""
    return '{"record": {' + ", ".join(label.replace("%", "%%") + "%s" for label in labels) + "}"


def _keys(columns: Sequence[Sequence[str]]) -> list[str]:
    if not columns or any("null" in column for column in columns):
        raise Undecodable("a row has no key")
    return [f"[{','.join(key)}]" for key in zip(*columns, strict=True)]


def _listed(changes: Sequence[RowChange]) -> Images:
    return Images(
        [change.decider_id for change in changes],
        [change.body for change in changes],
        [change.fault for change in changes],
    )


def _unavailable(names: list[str]) -> str:
    return f', "unavailable": [{", ".join(quoted(name) for name in names)}]' if names else ""
