"""Makes messages of pgoutput by hand: the reverse of `millrace.capture.decoding.pgoutput.decode`."""

from datetime import UTC, datetime, timedelta
from struct import pack

from millrace.capture.decoding import pgoutput as p

TABLE = 16400
INT4, TEXT, BOOL, NUMERIC, FLOAT8, JSON, JSONB = 23, 25, 16, 1700, 701, 114, 3802
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
COMMITTED_AT = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)


def encode(message: p.Message) -> bytes:  # noqa: PLR0911 - one for each kind
    match message:
        case p.Begin(lsn, time, xid):
            return b"B" + pack(">QqI", lsn, _microseconds(time), xid)
        case p.Commit(lsn, end, time):
            return b"C" + pack(">BQQq", 0, lsn, end, _microseconds(time))
        case p.Origin(lsn, name):
            return b"O" + pack(">Q", lsn) + _text(name)
        case p.Relation(relation_id, schema, table, identity, columns):
            head = b"R" + pack(">I", relation_id) + _text("" if schema == "pg_catalog" else schema) + _text(table)
            return head + identity.encode() + pack(">H", len(columns)) + b"".join(map(_column, columns))
        case p.Type(oid, schema, name):
            return b"Y" + pack(">I", oid) + _text("" if schema == "pg_catalog" else schema) + _text(name)
        case p.Insert(relation_id, new):
            return b"I" + pack(">I", relation_id) + b"N" + row(new)
        case p.Update(relation_id, kind, old, new):
            before = b"" if kind is None or old is None else kind.encode() + row(old)
            return b"U" + pack(">I", relation_id) + before + b"N" + row(new)
        case p.Delete(relation_id, kind, old):
            return b"D" + pack(">I", relation_id) + kind.encode() + row(old)
        case p.Truncate(ids, cascade, restart):
            return b"T" + pack(">IB", len(ids), cascade + 2 * restart) + b"".join(pack(">I", one) for one in ids)
        case p.LogicalMessage(transactional, lsn, prefix, content):
            return b"M" + pack(">BQ", transactional, lsn) + _text(prefix) + pack(">I", len(content)) + content


def row(values: p.Values) -> bytes:
    return pack(">H", len(values)) + b"".join(map(_value, values))


def relation(
    *columns: tuple[str, int], key: tuple[str, ...] = ("id",), identity: str = "d", table: str = "t", oid: int = TABLE
) -> p.Relation:
    """Describe a table of the schema public; with FULL all its columns are marked as key, as the server marks them."""
    return p.Relation(
        oid, "public", table, identity,
        tuple(p.RelationColumn(name, type_, -1, identity == "f" or name in key) for name, type_ in columns),
    )  # fmt: skip


def begin(lsn: int = 100, xid: int = 900) -> bytes:
    return encode(p.Begin(p.Lsn(lsn), COMMITTED_AT, xid))


def commit(lsn: int = 100) -> bytes:
    return encode(p.Commit(p.Lsn(lsn), p.Lsn(lsn + 8), COMMITTED_AT))


def insert(*values: bytes | p.Unchanged | None, oid: int = TABLE) -> bytes:
    return encode(p.Insert(oid, values))


def _column(column: p.RelationColumn) -> bytes:
    return bytes([column.is_key]) + _text(column.name) + pack(">Ii", column.type_oid, column.type_modifier)


def _value(value: bytes | p.Unchanged | None) -> bytes:
    if value is None:
        return b"n"
    return b"u" if isinstance(value, p.Unchanged) else b"t" + pack(">I", len(value)) + value


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _microseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)
