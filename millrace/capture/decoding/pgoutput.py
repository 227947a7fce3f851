"""Decodes the messages of Postgres' output plugin `pgoutput`, protocol version 1, text values; nothing is guessed."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from struct import Struct, error
from typing import Final, Literal, Self, TypeAlias

from millrace.errors import MillraceError

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_UINT32 = Struct(">I")
_UINT64 = Struct(">Q")
_COLUMN = Struct(">Ii")
_COLUMNS = Struct(">H")
_TRUNCATE = Struct(">IB")
_MESSAGE = Struct(">BQ")
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")

_NULL, _TEXT, _UNCHANGED = b"ntu"
_NEW, _KEY, _OLD = b"NKO"
# the byte before the row in a message that holds one
_ONE_ROW = {b"I": b"N", b"U": b"N", b"D": b"K"}


class PgoutputError(MillraceError):
    """The bytes are not a message of pgoutput's protocol version 1."""


class Lsn(int):
    """A position in the WAL, printed as Postgres does: `0/16B3748`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form, such as `0/16B3748`.

        Raises:
            ValueError: The text is not an LSN.
        """
        halves = _LSN.fullmatch(text)
        if halves is None:
            raise ValueError(f"{text!r} is no LSN")
        return cls(int(halves[1], 16) << 32 | int(halves[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""Stands for a value that is stored out of line and was not changed: the message does not hold it."""

Value: TypeAlias = bytes | Literal[Unchanged.UNCHANGED] | None
Values: TypeAlias = tuple[Value, ...]
WholeRow: TypeAlias = Sequence[bytes | None]
"""The values of a row that lacks none."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins; it commits at `final_lsn`, and `xid` is the lower half of its id."""

    final_lsn: Lsn
    committed_at: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction ends; the commits of later ones start at `end_lsn` or after it."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was replicated to the source from another server."""

    commit_lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column; `is_key` says whether it belongs to the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is for the changes that follow; `identity` is d(efault), n(othing), f(ull) or i(ndex)."""

    relation_id: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """A type that is not built in."""

    type_oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_id: int
    new: Values


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `old` is the old replica identity if `old_kind` is K, the whole old row if O, None if None."""

    relation_id: int
    old_kind: str | None
    old: Values | None
    new: Values


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row; `old` is as in `Update`."""

    relation_id: int
    old_kind: str
    old: Values


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables emptied by one command."""

    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message that a session of the source wrote with `pg_logical_emit_message`."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


Message: TypeAlias = Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage


def decode(data: bytes) -> Message:
    """Decode one message.

    Raises:
        PgoutputError: The bytes are not exactly one message.
    """
    if not data:
        raise PgoutputError("a message has no bytes")
    decoder = _DECODERS.get(data[0])
    if decoder is None:
        raise PgoutputError(f"a message of the unknown kind {data[:1]!r}")
    try:
        message, end = decoder(data)
    except (error, IndexError) as short:
        raise PgoutputError(f"a message {data[:1]!r} is cut off after {len(data)} bytes") from short
    except UnicodeDecodeError as bad:
        raise PgoutputError(f"a name in a message {data[:1]!r} is not UTF-8: {bad}") from bad
    # a slice past the end is no error, so `end` may lie beyond the bytes
    if end != len(data):
        raise PgoutputError(f"a message {data[:1]!r} has {len(data)} bytes and says {end}")
    return message


def changed_relation(data: bytes) -> int | None:
    """Return the relation_id of an insert, update or delete, also of an unreadable one; None for other messages."""
    return _UINT32.unpack_from(data, 1)[0] if data[:1] in {b"I", b"U", b"D"} and len(data) >= 5 else None


def is_commit(data: bytes) -> bool:
    """Return whether a message ends a transaction."""
    return data[:1] == b"C"


def relation_of_one_row(data: bytes) -> int | None:
    """Return the relation_id of a message that holds one row; None for any other message.

    That is an insert, an update without an old row, or a delete with the key only.
    """
    return _UINT32.unpack_from(data, 1)[0] if data[5:6] == _ONE_ROW.get(data[:1]) else None


def values_of_one_row(data: bytes, number: int) -> WholeRow | None:
    """Return the values of a message of `relation_of_one_row` with a row of `number` columns.

    They equal those of `decode`, at a third of the cost. None if the message is cut off, has another number of columns,
    or lacks a value.
    """
    values: list[bytes | None] = []
    add = values.append
    unpack = _UINT32.unpack_from
    at = 8
    try:
        if _COLUMNS.unpack_from(data, 6)[0] != number:
            return None
        for _ in range(number):
            kind = data[at]
            if kind == _TEXT:
                begin = at + 5
                at = begin + unpack(data, at + 1)[0]
                add(data[begin:at])
            elif kind == _NULL:
                at += 1
                add(None)
            else:
                return None
    except (error, IndexError):
        return None
    return values if at == len(data) else None


def _values(data: bytes, at: int) -> tuple[Values, int]:
    (number,) = _COLUMNS.unpack_from(data, at)
    at += 2
    values: list[Value] = []
    add = values.append
    unpack = _UINT32.unpack_from
    for _ in range(number):
        kind = data[at]
        if kind == _TEXT:
            (length,) = unpack(data, at + 1)
            at += 5
            add(data[at : at + length])
            at += length
        else:
            at += 1
            if kind == _NULL:
                add(None)
            elif kind == _UNCHANGED:
                add(UNCHANGED)
            else:
                raise PgoutputError(f"a value of the unknown kind {data[at - 1 : at]!r}")
    return tuple(values), at


def _insert(data: bytes) -> tuple[Message, int]:
    if data[5] != _NEW:
        raise PgoutputError(f"an insert with a row of the unknown kind {data[5:6]!r}")
    new, end = _values(data, 6)
    return Insert(_UINT32.unpack_from(data, 1)[0], new), end


def _update(data: bytes) -> tuple[Message, int]:
    (relation_id,) = _UINT32.unpack_from(data, 1)
    kind, at = data[5], 6
    old_kind = old = None
    if kind in (_KEY, _OLD):
        old_kind = chr(kind)
        old, at = _values(data, at)
        kind = data[at]
        at += 1
    if kind != _NEW:
        raise PgoutputError(f"an update with a row of the unknown kind {bytes([kind])!r}")
    new, end = _values(data, at)
    return Update(relation_id, old_kind, old, new), end


def _delete(data: bytes) -> tuple[Message, int]:
    if data[5] not in (_KEY, _OLD):
        raise PgoutputError(f"a delete with a row of the unknown kind {data[5:6]!r}")
    old, end = _values(data, 6)
    return Delete(_UINT32.unpack_from(data, 1)[0], chr(data[5]), old), end


def _begin(data: bytes) -> tuple[Message, int]:
    lsn, time, xid = _BEGIN.unpack_from(data, 1)
    return Begin(Lsn(lsn), _moment(time), xid), 21


def _commit(data: bytes) -> tuple[Message, int]:
    flags, lsn, end_lsn, time = _COMMIT.unpack_from(data, 1)
    if flags:
        raise PgoutputError(f"a commit with the unknown flags {flags}")
    return Commit(Lsn(lsn), Lsn(end_lsn), _moment(time)), 26


def _origin(data: bytes) -> tuple[Message, int]:
    name, end = _text(data, 9)
    return Origin(Lsn(_UINT64.unpack_from(data, 1)[0]), name), end


def _relation(data: bytes) -> tuple[Message, int]:
    (relation_id,) = _UINT32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    table, at = _text(data, at)
    identity = chr(data[at])
    if identity not in "dnfi":
        raise PgoutputError(f"a relation with the unknown replica identity {identity!r}")
    (number,) = _COLUMNS.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(number):
        flags = data[at]
        if flags > 1:
            raise PgoutputError(f"a column with the unknown flags {flags}")
        name, at = _text(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, modifier, flags == 1))
    return Relation(relation_id, schema or "pg_catalog", table, identity, tuple(columns)), at


def _type(data: bytes) -> tuple[Message, int]:
    (type_oid,) = _UINT32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, end = _text(data, at)
    return Type(type_oid, schema or "pg_catalog", name), end


def _truncate(data: bytes) -> tuple[Message, int]:
    number, options = _TRUNCATE.unpack_from(data, 1)
    if options > 3:
        raise PgoutputError(f"a truncate with the unknown options {options}")
    end = 6 + 4 * number
    # before allocating anything in a size that only the message claims
    if end != len(data):
        raise PgoutputError(f"a truncate of {number} tables has {len(data)} bytes")
    ids = tuple(_UINT32.unpack_from(data, at)[0] for at in range(6, end, 4))
    return Truncate(ids, bool(options & 1), bool(options & 2)), end


def _logical_message(data: bytes) -> tuple[Message, int]:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    if flags > 1:
        raise PgoutputError(f"a logical message with the unknown flags {flags}")
    prefix, at = _text(data, 10)
    (length,) = _UINT32.unpack_from(data, at)
    at += 4
    return LogicalMessage(flags == 1, Lsn(lsn), prefix, data[at : at + length]), at + length


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise IndexError(at)
    return data[at:end].decode(), end + 1


def _moment(microseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError as bad:
        raise PgoutputError(f"a time of {microseconds} µs after 2000, which is no date") from bad


_DECODERS: dict[int, Callable[[bytes], tuple[Message, int]]] = {
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("B"): _begin,
    ord("C"): _commit,
    ord("O"): _origin,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("T"): _truncate,
    ord("M"): _logical_message,
}
