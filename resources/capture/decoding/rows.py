"""The rows of a captured table as JSON: its key, its image, what a change says about them.

Belongs here: what a message of a row means, for the columns that its table has at that time. Not here: single values
(`values`), transactions and positions (`changes`).
"""

from typing import NamedTuple

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding.pgoutput import (
    UNCHANGED,
    Delete,
    Insert,
    Relation,
    RelationColumn,
    Update,
    Value,
    Values,
    encoded_row,
)
from millrace.resources.capture.decoding.values import Encoder, Undecodable, encoder_of, hashing, masked, quoted


class RowChange(NamedTuple):
    """What happened to a row.

    Attributes:
        action: inserted, updated or deleted.
        decider_id: The row's key as a JSON array; None if it cannot be decoded, or nothing names the table's rows.
        body: The beginning of a JSON object, open for more keys; None if it cannot be decoded.
        fault: Why key or body cannot be decoded, a sentence; None if both can.
    """

    action: str
    decider_id: str | None
    body: str | None
    fault: str | None


class TableRows:
    """The rows of one table.

    Args:
        table: What is captured, and its key where the replica identity names none.
        relation: The table's description, in force for the rows that follow it.

    Attributes:
        decider: The decider of its events.
        hides: Whether it has values that never leave the source: its messages are not kept either.
        keyless: Whether nothing names its rows.
    """

    def __init__(self, table: CapturedTable, relation: Relation) -> None:
        self.decider = table.stream_decider
        self._names = [column.name for column in relation.columns]
        self._labels = [f"{quoted(name)}: " for name in self._names]
        self._encoders = [_encoder(table, column) for column in relation.columns]
        self.hides = bool(table.hidden)
        self.keyless = table.keyless
        self._record = '{"record": {' + ", ".join(label.replace("%", "%%") + "%s" for label in self._labels) + "}"
        self._columns = list(zip(self._labels, self._encoders, strict=True))
        self._unfit: str | None = None
        # with FULL every column is marked as key, with NOTHING none: then the declaration names the key
        named = not table.keyless and relation.identity in "di"
        key = [at for at, column in enumerate(relation.columns) if column.is_key and named]
        if not key and table.key is None:
            self._unfit = f"table {table.name} has no key: declare one, or give it a primary key"
        elif not key and table.key is not None:
            if missing := [name for name in table.key if name not in self._names]:
                self._unfit = f"table {table.name} has no column {', '.join(missing)}, which its key names"
            key = [at for at, name in enumerate(self._names) if name in table.key]
        if lost := [name for name in table.hidden if name not in self._names]:
            # under another name it would be told
            self._unfit = f"table {table.name} has no column {', '.join(lost)}, which is masked or hashed"
        self._key = key
        self._key_columns = [(at, *self._columns[at]) for at in key]
        self._beside_key = [name for at, name in enumerate(self._names) if at not in key]

    def plain(self, action: str, raw: bytes) -> RowChange | None:
        """Return what `inserted` or `updated` gives of the message of a row without an old one.

        None where anything in it is out of the ordinary: then they say what.

        Args:
            action: inserted or updated.
            raw: The message.
        """
        if self._unfit:
            return None
        try:
            values = encoded_row(raw, self._encoders)
        except Undecodable:
            return None
        if values is None:
            return None
        key = [values[at] for at in self._key]
        if "null" in key or (not key and action != "inserted"):  # that names no row
            return None
        return RowChange(action, f"[{','.join(key)}]" if key else None, self._record % tuple(values), None)

    def inserted(self, message: Insert) -> RowChange:
        """Return a new row's change."""
        return self._with_image("inserted", message.new)

    def updated(self, message: Update) -> list[RowChange]:
        """Return a row's change to its new image; if it moved to another key, before it the deletion at the old key."""
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
            Undecodable: The table has no key, or these values do not hold it.
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
            record = ", ".join(label + self._json(at, old[at]) for at, label, _ in self._key_columns)
            # the other columns are not null: the log does not hold them
            body = f'{{"record": {{{record}}}{_unavailable(self._beside_key)}'
            return RowChange("deleted", decider_id, body, None)
        except Undecodable as bad:
            return RowChange("deleted", decider_id, None, str(bad))

    def _image(self, values: Values) -> str:
        """Write the beginning of the data: the record, and which columns it lacks."""
        parts = []
        unavailable: list[str] = []
        try:
            for (label, encode), value in zip(self._columns, values, strict=True):
                if value is None:
                    parts.append(label + "null")
                elif value is UNCHANGED:
                    unavailable.append(self._names[len(parts) + len(unavailable)])
                else:
                    parts.append(label + encode(value))
        except Undecodable as bad:
            raise Undecodable(f"column {self._names[len(parts) + len(unavailable)]} {bad}") from bad
        record = '{"record": {' + ", ".join(parts) + "}"
        return record + _unavailable(unavailable) if unavailable else record

    def _filled(self, old: Values, new: Values, *, whole: bool) -> Values:
        """Return the new row; a value that the message does not hold is the old row's, if that has it."""
        return tuple(
            old[at] if value is UNCHANGED and (whole or at in self._key) else value for at, value in enumerate(new)
        )

    def _changes(self, old: Values, new: Values) -> str:
        """Write the old values of the columns that changed; both rows are whole."""
        parts = [
            self._labels[at] + self._json(at, before)
            for at, (before, after) in enumerate(zip(old, new, strict=True))
            if before != after
        ]
        return "{" + ", ".join(parts) + "}"

    def _json(self, at: int, value: Value) -> str:
        if value is None or value is UNCHANGED:
            return "null"
        try:
            return self._encoders[at](value)
        except Undecodable as bad:
            raise Undecodable(f"column {self._names[at]} before the change {bad}") from bad

    def _check_fit(self, values: Values) -> None:
        if self._unfit:
            raise Undecodable(self._unfit)
        self._check_number(values)

    def _check_number(self, values: Values) -> None:
        if len(values) != len(self._names):
            raise Undecodable(f"the row has {len(values)} columns, its table {len(self._names)}")


def _encoder(table: CapturedTable, column: RelationColumn) -> Encoder:
    if column.name in table.mask:
        return masked
    return hashing(table.secret()) if column.name in table.hash else encoder_of(column.type_oid)


def _unavailable(names: list[str]) -> str:
    return f', "unavailable": [{", ".join(quoted(name) for name in names)}]' if names else ""
