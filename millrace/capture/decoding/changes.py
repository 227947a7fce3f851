"""From pgoutput's messages to captured changes: what happened to which row, in which transaction, as JSON.

A change that moves a row to another key is two: the deletion at the old key, then the update at the new one. A change
that cannot be decoded has a fault instead of data, and keeps its number. Only a message that may or may not belong to
a captured table is an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias, cast

from millrace.capture.declaration import CapturedTable, table_name
from millrace.capture.decoding.annotations import ANNOTATIONS, annotations_json
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.changed_rows import RowChange, TableRows, TableUnfit, why_unfit
from millrace.capture.decoding.declared_names import DeclaredName, under_its_name
from millrace.capture.decoding.fields import (
    MAX_DATA_CHARACTERS,
    derived_id,
    packed_id,
    packed_ids,
    source_json,
    time_json,
    too_large,
)
from millrace.capture.decoding.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Lsn,
    PgoutputError,
    Relation,
    Truncate,
    Type,
    Update,
    WholeRow,
    changed_relation,
    decode,
    relation_of_one_row,
    values_of_one_row,
)
from millrace.capture.decoding.schemas import Schemas, changed_body
from millrace.capture.decoding.transactions import SHORT_XIDS, Transaction, whole_xid
from millrace.errors import MillraceError

_INSERTED, _DELETED = ord("I"), ord("D")
_ACTIONS = {_INSERTED: "inserted", ord("U"): "updated", _DELETED: "deleted"}


class TableRenamed(MillraceError):
    """A captured table was renamed, and changed under a name that is not declared."""


@dataclass(frozen=True, slots=True)
class _Described:
    """A captured table as last described, its changes' JSON between body and index, and the describing message."""

    rows: TableRows
    source: str
    message: bytes


# where a change of `feed_all` belongs: its place among them, its transaction, its index there, the annotations
# in force, and its message
_Place: TypeAlias = tuple[int, Transaction, int, str, bytes]


class ChangeDecoder:
    """Turns the messages of one stream, in order, into changes.

    In each stream the server describes every table anew, so each stream gets a decoder of its own.

    Args:
        tables: The captured tables, each with the columns of its key if the replica identity does not define them.
        capture: The capture's name.
        generation: The generation of the slot, never used again in the store: the changes' ids are made of it.
        xid_reference: A recent transaction id of the source; see `whole_xid`.
        declared_names: By table id. From its `since` on, a change under another name is refused, unless the table is
            known to have its own name again. So is a change of a table that does not fit its declaration.
        schemas: The columns that the tables had; None to compare none.
        stored_lsn: Everything that the source committed below it is stored.

    Attributes:
        end_lsn: The end of the last whole transaction that was fed; None before the first.
    """

    def __init__(
        self,
        tables: Iterable[CapturedTable],
        capture: str,
        generation: int,
        xid_reference: int,
        declared_names: Mapping[int, DeclaredName] = MappingProxyType({}),
        schemas: Schemas | None = None,
        stored_lsn: Lsn = Lsn(0),  # noqa: B008 - it is a number
    ) -> None:
        self._tables = {(table.schema, table.table): table for table in tables}
        self._by_name = {table.name: table for table in self._tables.values()}
        self._capture = capture
        self._generation = generation
        self._xid_reference = xid_reference
        self._declared_names = declared_names
        self._schemas = schemas
        self._stored_lsn = stored_lsn
        # by table id; None for a described table that is not captured
        self._described: dict[int, _Described | None] = {}
        # by id of a captured table, its present name if that is not the declared one
        self._renamed: dict[int, str] = {}
        # by id of a captured table, why it does not fit its declaration
        self._unfit: dict[int, str] = {}
        self._transaction: Transaction | None = None
        self.end_lsn: Lsn | None = None

    def feed(self, raw: bytes) -> Sequence[Change]:
        """Take the next message; return its changes: mostly one, two for a new key, none for other messages.

        Raises:
            PgoutputError: The message cannot be decoded, and belongs to no known table.
            TableRenamed: The message changes a captured table under a name that is not declared.
            TableUnfit: The message changes a captured table that does not fit its declaration.
        """
        try:
            message = decode(raw)
        except PgoutputError as bad:
            relation_id = changed_relation(raw)
            if relation_id is None:
                raise
            table = self._table(relation_id)
            return (self._change(table, RowChange(_ACTIONS[raw[0]], None, None, bad.message), raw),) if table else ()
        changes: Sequence[Change] = ()
        match message:
            case Insert():
                table = self._table(message.relation_id)
                changes = (self._change(table, table.rows.inserted(message), raw),) if table else ()
            case Update():
                table = self._table(message.relation_id)
                changes = [self._change(table, change, raw) for change in table.rows.updated(message)] if table else ()
            case Delete():
                table = self._table(message.relation_id)
                changes = (self._change(table, table.rows.deleted(message), raw),) if table else ()
            case Begin():
                self._begin(message)
            case Commit():
                lsn = self._current().lsn
                if lsn != message.commit_lsn:
                    raise PgoutputError(f"transaction {lsn} ends with the commit of {message.commit_lsn}")
                self._transaction = None
                self.end_lsn = message.end_lsn
            case Relation():
                changes = self._describe(message, raw)
            case Truncate():
                tables = [self._table(relation_id) for relation_id in message.relation_ids]
                emptied = RowChange("truncated", "[]", '{"record": null', None)
                changes = [self._change(table, emptied, raw) for table in tables if table]
            case Type() if self._schemas is not None:
                self._schemas.add_type(message)
            case LogicalMessage() if message.transactional and message.prefix == ANNOTATIONS:
                annotations = annotations_json(message.content)
                self._current().annotations = f', "annotations": {annotations}' if annotations else ""
        return changes

    def feed_all(self, messages: Sequence[bytes]) -> list[Change]:
        """Take the next messages; return the same changes as `feed`, at half of its cost.

        Most messages hold one row. Those of a table are decoded together.

        Raises:
            PgoutputError, TableRenamed, TableUnfit: As `feed`.
        """
        changes: list[Change | None] = []
        batches: dict[tuple[TableRows, bool], tuple[_Described, list[_Place], list[WholeRow]]] = {}
        for raw in messages:
            relation_id = relation_of_one_row(raw)
            table = None if relation_id is None else self._described.get(relation_id)
            values = None if table is None else values_of_one_row(raw, table.rows.width)
            transaction = self._transaction
            if table is None or values is None or transaction is None or (table.rows.keyless and raw[0] != _INSERTED):
                changes += self.feed(raw)
                continue
            idx = transaction.next_idx
            transaction.next_idx = idx + 1
            _, places, rows = batches.setdefault((table.rows, raw[0] == _DELETED), (table, [], []))
            places.append((len(changes), transaction, idx, transaction.annotations, raw))
            rows.append(values)
            changes.append(None)
        for (table_rows, deletes), (table, places, rows) in batches.items():
            found = table_rows.endings(rows) if deletes else table_rows.images(rows)
            for (at, transaction, idx, annotations, raw), decider_id, body, fault in zip(places, *found, strict=True):
                changes[at] = self._new_change(
                    table, _ACTIONS[raw[0]], decider_id, body, fault, raw, transaction, idx, annotations
                )
        return cast(list[Change], changes)

    def restore(self, change: Change) -> Change:
        """Decode the message of a faulty change again; return the change, at the same position.

        Use a new decoder for each change. The annotations that were in force are unknown here, and are left out.

        Raises:
            PgoutputError: The change has no message, or its table is not captured.
        """
        if change.raw is None or change.relation is None:
            raise PgoutputError("the change was decoded, so it has no message")
        self.feed(change.relation)
        # One message may be two changes, and the faulty one may be the first or the second. If it is the second, the
        # first has the index before.
        for idx in (change.commit_idx, change.commit_idx - 1):
            self._transaction = None
            self._begin(Begin(change.commit_lsn, change.committed_at, change.xid % SHORT_XIDS))
            self._current().next_idx = idx
            for found in self.feed(change.raw):
                if (found.commit_idx, found.action, found.decider) == (
                    change.commit_idx,
                    change.action,
                    change.decider,
                ):
                    return found
        raise PgoutputError(f"the message holds no change {change.action} of {change.decider}")

    def _begin(self, message: Begin) -> None:
        if self._transaction is not None:
            raise PgoutputError(f"a transaction begins within the one that commits at {self._transaction.lsn}")
        lsn = message.final_lsn
        for relation_id in self._renamed:
            # the server does not repeat the description of a table that keeps its name
            if not self._declared_names[relation_id].owns(lsn):
                self._described[relation_id] = None
        xid = whole_xid(message.xid, self._xid_reference)
        time = time_json(message.committed_at)
        self._transaction = Transaction(
            lsn=lsn,
            xid=xid,
            committed_at=message.committed_at,
            ids=packed_ids(lsn, generation=self._generation),
            command_id=derived_id(f"{self._generation}/{lsn}"),
            after_idx=f', "commit_lsn": "{lsn}", "committed_at": "{time}", "xid": {xid}}}',
        )

    def _describe(self, message: Relation, raw: bytes) -> Sequence[Change]:
        table = self._tables.get((message.schema, message.table))
        self._renamed.pop(message.relation_id, None)
        self._unfit.pop(message.relation_id, None)
        self._described[message.relation_id] = None
        declared = self._declared_names.get(message.relation_id)
        found = table_name(message.schema, message.table)
        # a change that a coming backfill will see counts under the name that it had: a captured table's, or none
        if declared and declared.name != found and (table is None or self._current().lsn >= declared.since):
            self._renamed[message.relation_id] = found
            table = self._by_name[declared.name] if declared.owns(self._current().lsn) else None
            if table is not None:
                message, raw = under_its_name(message, raw, table)
        if table is None:
            return ()
        if declared and not table.keyless and (why := why_unfit(table, message)):
            # rows without keys have streams of their own: each becomes an event, or waits in the quarantine
            self._unfit[message.relation_id] = why
            return ()
        described = _Described(
            rows=TableRows(table, message),
            source=f', "source": {source_json(self._capture, self._generation, message)}, "commit_idx": ',
            message=raw,
        )
        self._described[message.relation_id] = described
        if self._schemas is None:
            return ()
        transaction = self._current()
        changed = self._schemas.add_relation(message, transaction.lsn, transaction.next_idx, self._stored_lsn)
        if changed is None:
            return ()
        where = (table.where if declared and not table.keyless else None) or ""
        before, now = ([column.name for column in schema.columns] for schema in changed)
        if any(name in where and now[place : place + 1] != [name] for place, name in enumerate(before)):
            # the server still filters by the columns that had these names before
            self._refuse_unfit(message.relation_id, "it has other columns, and its where may name one")
        return (self._change(described, RowChange("schema_changed", "schema", changed_body(*changed), None), raw),)

    def _change(self, table: "_Described", row: RowChange, raw: bytes) -> Change:
        transaction = self._current()
        idx = transaction.next_idx
        transaction.next_idx = idx + 1
        return self._new_change(table, *row, raw, transaction, idx, transaction.annotations)

    def _new_change(
        self,
        table: "_Described",
        action: str,
        decider_id: str | None,
        body: str | None,
        fault: str | None,
        raw: bytes,
        transaction: Transaction,
        idx: int,
        annotations: str,
    ) -> Change:
        # positional arguments: keyword arguments take twice as long
        event_id = packed_id(transaction.ids, idx)
        if decider_id is None and table.rows.keyless:
            decider_id = f'[{self._generation},"{transaction.lsn}",{idx}]'
        decider = table.rows.decider
        if body is not None:
            data = f"{body}{annotations}{table.source}{idx}{transaction.after_idx}"
            if len(data) <= MAX_DATA_CHARACTERS:
                return Change(
                    transaction.lsn, idx, transaction.xid, transaction.committed_at, decider, decider_id, action, event_id,
                    transaction.command_id, data,
                )  # fmt: skip
            fault = too_large(data)
        return Change(
            transaction.lsn, idx, transaction.xid, transaction.committed_at, decider, decider_id, action, event_id,
            transaction.command_id, None, fault, None if table.rows.hides else raw, table.message,
        )  # fmt: skip

    def _table(self, relation_id: int) -> "_Described | None":
        try:
            table = self._described[relation_id]
        except KeyError:
            raise PgoutputError(f"a change of relation {relation_id}, which no message described before it") from None
        if table is None and relation_id in self._renamed:
            declared, lsn = self._declared_names[relation_id], self._current().lsn
            if lsn >= declared.since and not declared.owns(lsn):
                raise TableRenamed(
                    f"Table {declared.name} of capture {self._capture} was renamed.",
                    detail=f"in the transaction that committed at {lsn} it is {self._renamed[relation_id]}",
                    hint="Declare it by its new name, or give it its declared one again. The next run goes on"
                    " either way.",
                )
        if table is None and relation_id in self._unfit:
            self._refuse_unfit(relation_id, self._unfit[relation_id])
        return table

    def _refuse_unfit(self, relation_id: int, why: str) -> None:
        """Refuse a change that is not stored, and that no coming backfill will see."""
        declared, lsn = self._declared_names[relation_id], self._current().lsn
        if lsn >= max(declared.since, self._stored_lsn):
            raise TableUnfit(declared.name, f"in the transaction that committed at {lsn} {why}")

    def _current(self) -> Transaction:
        if self._transaction is None:
            raise PgoutputError("a change or a commit outside of a transaction")
        return self._transaction
