"""From pgoutput's messages to captured changes: what happened to which row, in which transaction, as JSON.

Belongs here: the meaning of messages for the captured tables. Not here: bytes (`pgoutput`), rows (`change_rows`), where
changes are kept.

A change of a row is one `Change`, one that moves the row to another key two: the deletion at the old key, then the update at
the new one. What cannot be decoded is a `Change` with a fault in place of its data, and keeps its number; only what cannot be
told to belong to a captured table is an error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha1
from types import MappingProxyType
from typing import Any
from uuid import UUID

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Lsn,
    PgoutputError,
    Relation,
    Truncate,
    Update,
    changed_relation,
    decode,
)
from millrace.resources.capture.decoding.rows import RowChange, TableRows
from millrace.resources.capture.decoding.values import embedded, quoted
from millrace.resources.errors import MillraceError

ANNOTATIONS = "millrace.annotations"
# a jsonb takes at most six times its text, and 256 MB
MAX_DATA_CHARACTERS = 32 * 1024 * 1024

_NAMESPACE = UUID("5b2f6c1e-3f0a-4d57-9c58-1d5f0c6f7a42")
_ACTIONS = {ord("I"): "inserted", ord("U"): "updated", ord("D"): "deleted"}


class TableRenamed(MillraceError):
    """A captured table changed under a name that is not declared."""


# not frozen: to make one would take three times as long, and there is one for each row
@dataclass(slots=True)
class Change:
    """One change of one row, or one truncation of one table.

    Attributes:
        commit_lsn: Where its transaction committed; with `commit_idx` its position in the source, which is unique.
        commit_idx: The how manieth change of its transaction it is, from 0.
        xid: The whole id of its transaction.
        committed_at: When that committed, by the source's clock.
        decider: The decider of its events.
        decider_id: Its row's key as a JSON array, `[]` for a truncation; None if not even the key can be decoded.
        action: inserted, updated, deleted or truncated.
        event_id: Derived from its position: the same whenever it is read again.
        command_id: Derived from `commit_lsn`: what its transaction's changes share.
        data: What happened, a JSON object; None if it cannot be decoded.
        fault: Why it cannot be decoded, a sentence; None if it can.
        raw: Its message, with a fault only.
        relation: The message that describes its table, with a fault only.
    """

    commit_lsn: Lsn
    commit_idx: int
    xid: int
    committed_at: datetime
    decider: str
    decider_id: str | None
    action: str
    event_id: UUID
    command_id: UUID
    data: str | None
    fault: str | None = None
    raw: bytes | None = None
    relation: bytes | None = None


def derived_id(name: str) -> UUID:
    """The UUID, version 5, of a name in the namespace of captured changes."""
    return UUID(bytes=sha1(_NAMESPACE.bytes + name.encode(), usedforsecurity=False).digest()[:16], version=5)


def time_json(time: datetime) -> str:
    """A time in UTC as data has it: ISO 8601 with microseconds."""
    return f"{time.astimezone(UTC).isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


def source_json(capture: str, generation: int, relation: Relation) -> str:
    """Where a row is from, as data has it."""
    return (
        f'{{"capture": {quoted(capture)}, "generation": {generation}, "schema": {quoted(relation.schema)},'
        f' "table": {quoted(relation.table)}, "oid": {relation.relation_id}}}'
    )


def too_large(data: str) -> str:
    """What is wrong with data of more than `MAX_DATA_CHARACTERS`."""
    return f"its data has {len(data)} characters; at most {MAX_DATA_CHARACTERS} are allowed"


def whole_xid(xid: int, reference: int) -> int:
    """The transaction id of 64 bits that ends in the 32 bits `xid` and is nearest to `reference`, earlier or later.

    Ids that a server can still meet lie within 2^31 of each other.
    """
    distance = (xid - reference) & 0xFFFFFFFF
    whole = reference + distance - (distance >> 31 << 32)
    return whole if whole >= 0 else whole + (1 << 32)


@dataclass(slots=True)
class _Transaction:
    """What the changes of a transaction share, and the number of the next one."""

    lsn: Lsn
    xid: int
    committed_at: datetime
    ids: str
    command_id: UUID
    position: str
    middle: str
    annotations: str = ""
    next_idx: int = 0


@dataclass(frozen=True, slots=True)
class _Described:
    """A captured table as the last message described it, and what its changes bear of that."""

    rows: TableRows
    source: str
    message: bytes


class ChangeDecoder:
    """Turns the messages of one decoding call, in order, into changes.

    A call of the server's decoding describes each table anew, so each call gets a decoder of its own.

    Args:
        tables: What is captured, each with the columns of its key where it is not the replica identity that names them.
        capture: Its name.
        generation: The number of the slot's life, unique in the store for ever: the changes' ids are derived from it.
        xid_reference: A transaction id of the source of about now; see `whole_xid`.
        oids: Of the ids of the captured tables, the name, and from which position on a change under another one is refused.

    Attributes:
        end_lsn: The end of the last whole transaction: all that committed before it was fed. None before the first.
    """

    def __init__(
        self,
        tables: Iterable[CapturedTable],
        capture: str,
        generation: int,
        xid_reference: int,
        oids: Mapping[int, tuple[str, Lsn]] = MappingProxyType({}),
    ) -> None:
        self._tables = {(table.schema, table.table): table for table in tables}
        self._capture = capture
        self._generation = generation
        self._xid_reference = xid_reference
        self._oids = oids
        # None: known, and not captured
        self._described: dict[int, _Described | None] = {}
        self._renamed: dict[int, str] = {}
        self._transaction: _Transaction | None = None
        self.end_lsn: Lsn | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether the next message belongs to a transaction."""
        return self._transaction is not None

    def feed(self, raw: bytes) -> Sequence[Change]:
        """Take the next message; return what it changed: mostly one change, two for a new key, none for other messages.

        Raises:
            PgoutputError: It cannot be decoded, and belongs to no table that is known.
            TableRenamed: It changes a captured table under a name that is not declared.
        """
        try:
            message = decode(raw)
        except PgoutputError as bad:
            return self._undecoded(raw, bad)
        handle = _HANDLERS.get(type(message))
        return handle(self, message, raw) if handle else ()

    def restore(self, change: Change) -> Change:
        """Decode the message of a change with a fault again; return the change, at the same position.

        For a decoder of its own. The annotations that were in force are not known here.

        Raises:
            PgoutputError: The change has no message, or its table is not captured.
        """
        if change.raw is None or change.relation is None:
            raise PgoutputError("the change was decoded, so it has no message")
        self.feed(change.relation)
        # a message that is two changes begins one earlier with its second one
        for idx in (change.commit_idx, change.commit_idx - 1):
            self._transaction = None
            self._begin(Begin(change.commit_lsn, change.committed_at, change.xid & 0xFFFFFFFF), b"")
            self._current().next_idx = idx
            for found in self.feed(change.raw):
                if (found.commit_idx, found.action, found.decider) == (
                    change.commit_idx,
                    change.action,
                    change.decider,
                ):
                    return found
        raise PgoutputError(f"the message holds no change {change.action} of {change.decider}")

    def _begin(self, message: Begin, _: bytes) -> Sequence[Change]:
        if self._transaction is not None:
            raise PgoutputError(f"a transaction begins within the one that commits at {self._transaction.lsn}")
        lsn = message.final_lsn
        xid = whole_xid(message.xid, self._xid_reference)
        ids = f"{self._generation}/{lsn}"
        time = time_json(message.committed_at)
        self._transaction = _Transaction(
            lsn=lsn,
            xid=xid,
            committed_at=message.committed_at,
            ids=ids + "/",
            command_id=derived_id(ids),
            position=f', "commit_lsn": "{lsn}", "commit_idx": ',
            middle=f', "xid": {xid}, "committed_at": "{time}", "source": ',
        )
        return ()

    def _commit(self, message: Commit, _: bytes) -> Sequence[Change]:
        if self._current().lsn != message.commit_lsn:
            raise PgoutputError(f"transaction {self._current().lsn} ends with the commit of {message.commit_lsn}")
        self._transaction = None
        self.end_lsn = message.end_lsn
        return ()

    def _describe(self, message: Relation, raw: bytes) -> Sequence[Change]:
        table = self._tables.get((message.schema, message.table))
        self._renamed.pop(message.relation_id, None)
        if table is None and message.relation_id in self._oids:
            self._renamed[message.relation_id] = f"{message.schema}.{message.table}"
        self._described[message.relation_id] = (
            None
            if table is None
            else _Described(
                rows=TableRows(table, message),
                source=source_json(self._capture, self._generation, message) + "}",
                message=raw,
            )
        )
        return ()

    def _annotate(self, message: LogicalMessage, _: bytes) -> Sequence[Change]:
        if message.transactional and message.prefix == ANNOTATIONS:
            noted = _annotations(message.content)
            self._current().annotations = f', "annotations": {noted}' if noted else ""
        return ()

    def _insert(self, message: Insert, raw: bytes) -> Sequence[Change]:
        table = self._table(message.relation_id)
        return (self._change(table, table.rows.inserted(message), raw),) if table else ()

    def _update(self, message: Update, raw: bytes) -> Sequence[Change]:
        table = self._table(message.relation_id)
        return [self._change(table, change, raw) for change in table.rows.updated(message)] if table else ()

    def _delete(self, message: Delete, raw: bytes) -> Sequence[Change]:
        table = self._table(message.relation_id)
        return (self._change(table, table.rows.deleted(message), raw),) if table else ()

    def _truncate(self, message: Truncate, raw: bytes) -> Sequence[Change]:
        tables = [self._table(relation_id) for relation_id in message.relation_ids]
        emptied = RowChange("truncated", "[]", '{"record": null', None)
        return [self._change(table, emptied, raw) for table in tables if table]

    def _undecoded(self, raw: bytes, bad: PgoutputError) -> Sequence[Change]:
        relation_id = changed_relation(raw)
        if relation_id is None:
            raise bad
        table = self._table(relation_id)
        return (self._change(table, RowChange(_ACTIONS[raw[0]], None, None, bad.message), raw),) if table else ()

    def _change(self, table: "_Described", row: RowChange, raw: bytes) -> Change:
        at = self._current()
        idx = at.next_idx
        at.next_idx = idx + 1
        action, decider_id, body, fault = row
        event_id = derived_id(f"{at.ids}{idx}")
        decider = table.rows.decider
        if body is not None:
            data = f"{body}{at.annotations}{at.position}{idx}{at.middle}{table.source}"
            if len(data) <= MAX_DATA_CHARACTERS:
                return Change(
                    at.lsn, idx, at.xid, at.committed_at, decider, decider_id, action, event_id, at.command_id, data
                )
            fault = too_large(data)
        return Change(
            at.lsn, idx, at.xid, at.committed_at, decider, decider_id, action, event_id, at.command_id,
            None, fault, raw, table.message,
        )  # fmt: skip

    def _table(self, relation_id: int) -> "_Described | None":
        try:
            table = self._described[relation_id]
        except KeyError:
            raise PgoutputError(f"a change of relation {relation_id}, which no message described before it") from None
        if table is None and relation_id in self._renamed:
            self._refuse_renamed(relation_id)
        return table

    def _refuse_renamed(self, relation_id: int) -> None:
        name, since = self._oids[relation_id]
        lsn = self._current().lsn
        if lsn >= since:
            raise TableRenamed(
                f"Table {name} of capture {self._capture} was renamed.",
                detail=f"in the transaction that committed at {lsn} it is {self._renamed[relation_id]}",
                hint=(
                    "Declare it by its new name. If it has its declared name again:"
                    f" millrace capture restart {self._capture} --reason WHY"
                ),
            )

    def _current(self) -> _Transaction:
        if self._transaction is None:
            raise PgoutputError("a change or a commit outside of a transaction")
        return self._transaction


def _annotations(content: bytes) -> str | None:
    """The content as JSON; None if it clears the annotations."""
    try:
        text = content.decode().strip(" \t\r\n")
        return embedded(text) if text not in {"", "null"} else None
    except ValueError:
        return quoted(content.decode(errors="backslashreplace").replace("\0", "\\x00"))


_HANDLERS: dict[type, Callable[[ChangeDecoder, Any, bytes], Sequence[Change]]] = {
    Insert: ChangeDecoder._insert,
    Update: ChangeDecoder._update,
    Delete: ChangeDecoder._delete,
    Begin: ChangeDecoder._begin,
    Commit: ChangeDecoder._commit,
    Relation: ChangeDecoder._describe,
    Truncate: ChangeDecoder._truncate,
    LogicalMessage: ChangeDecoder._annotate,
}
