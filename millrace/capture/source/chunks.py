"""The existing rows of a captured table, in chunks by the order of its key, and what a chunk's snapshot saw.

Not here: which of them have newer changes (`emit_backfill.sql`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.errors import CharacterNotInRepertoire, UntranslatableCharacter

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.changed_rows import TableUnfit, why_unfit
from millrace.capture.decoding.encodings import NO_TEXT, codec_of, recoded_value
from millrace.capture.decoding.pgoutput import Lsn, Relation, WholeRow
from millrace.capture.source.ordering import KeyPart, KeyUnordered, behind, key_parts, ordered_by
from millrace.capture.source.publication import condition
from millrace.capture.source.tables import SourceTable, find_table
from millrace.errors import MillraceError
from millrace.patience import BUSY_S
from millrace.postgres.connecting import unhurried

_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_UNESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


# remedies for a server that does not give a table's rows
_REMEDIES: tuple[tuple[type[psycopg.Error], str], ...] = (
    (
        psycopg.errors.ConfigurationLimitExceeded,
        "Create an index on its key, so that nothing is sorted, or raise temp_file_limit for the role.",
    ),
    (
        psycopg.InternalError,
        "A page of it or of its index is damaged: repair the source, by reindex, or by another copy of the rows.",
    ),
    (psycopg.errors.InsufficientPrivilege, "Grant the role what is lacking."),
)


class TableUnreadable(MillraceError):
    """The rows of a captured table cannot be read; those of other tables can."""


class TableMissing(TableUnreadable):
    """The captured table does not exist, or has no columns that identify a row."""


@dataclass(frozen=True)
class Chunk:
    """Rows of a table as one snapshot saw them.

    Attributes:
        snapshot: The snapshot, as `pg_snapshot` writes it.
        high_lsn: A position after every commit that the snapshot saw. The source's flush position passes it, also when
            idle.
        read_at: When it was read, by the source's clock.
        relation: The table at that time, as a message of the slot would describe it.
        rows: The values of each row, in the order of the relation's columns, in the text form of the slot's messages.
        last_key: The key of its last row, where the next chunk resumes; without a row, that of the previous chunk. A
            value that is not text in the source's encoding is NUL and the digits of its bytes.
        is_last: Whether this is the last chunk.
    """

    snapshot: str
    high_lsn: Lsn
    read_at: datetime
    relation: Relation
    rows: list[WholeRow]
    last_key: tuple[str, ...] | None
    is_last: bool

    @property
    def size(self) -> int:
        """The number of bytes of the values."""
        return sum(len(value) for row in self.rows for value in row if value is not None)


def read_chunk(
    source: psycopg.Connection,
    table: CapturedTable,
    after_key: Sequence[str] | None,
    limit: int,
    lock_s: float = BUSY_S,
) -> Chunk:
    """Read the next rows after a key in one snapshot; the filter and the columns are those of the declaration.

    Rows that share a key, if it is not unique, come together: there may be more of them than `limit`. A value that is
    not text in the source's encoding is marked as `recoded_value` does.

    Args:
        source: An autocommit connection of `connect_source`.
        table: The declaration.
        after_key: `last_key` of the chunk before; None for the first one.
        limit: How many rows, at least 1.
        lock_s: How long to wait for a session that has locked the table exclusively, in seconds.

    Raises:
        psycopg.errors.LockNotAvailable: Such a session takes longer.
        TableMissing: The table does not exist, or has no key.
        TableUnfit: It does not fit its declaration.
        TableUnreadable: The server does not give the rows; the text says why.
    """
    try:
        try:
            return _read_chunk(source, table, after_key, limit, lock_s, None)
        except (CharacterNotInRepertoire, UntranslatableCharacter):
            codec = codec_of(str(source.info.parameter_status("server_encoding")))
            return _read_chunk(source, table, after_key, limit, lock_s, codec)
    except psycopg.errors.LockNotAvailable:
        raise
    except psycopg.DatabaseError as error:
        if source.closed or error.sqlstate is None:
            # an error of the server, not of a table
            raise
        raise TableUnreadable(
            f"Table {table.name} cannot be read.",
            detail=f"{error.diag.message_primary or error}",
            hint=next(
                (hint for kinds, hint in _REMEDIES if isinstance(error, kinds)),
                "Mend that on the source, or leave the table out of the capture.",
            ),
        ) from error
    except KeyUnordered as error:
        raise TableUnreadable(
            f"Table {table.name} cannot be read.", detail=f"{error.message} {error.detail}", hint=error.hint
        ) from error


def _read_chunk(
    source: psycopg.Connection,
    table: CapturedTable,
    after_key: Sequence[str] | None,
    limit: int,
    lock_s: float,
    codec: str | None,
) -> Chunk:
    with unhurried(source), source.transaction():
        source.execute("set transaction isolation level repeatable read, read only")
        # without an index on the key, each chunk sorts the table
        source.execute("set local statement_timeout = 0")
        name = sql.Identifier(table.schema, table.table)
        try:
            # Before the snapshot, which the first query takes: a truncate or a rewrite that commits after it leaves a
            # table that the snapshot sees empty.
            source.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(f"{int(lock_s * 1000)}ms")))
            source.execute(sql.SQL("lock table {} in access share mode").format(name))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise _missing(table, "it does not exist") from error
        snapshot = source.execute("select pg_current_snapshot()::text, clock_timestamp()").fetchone()
        assert snapshot is not None
        found = find_table(source, table.schema, table.table)
        key = found.key(table) if found else ()
        if found is None or not key:
            raise _missing(table, "nothing names its rows")
        relation = found.relation(table)
        why = why_unfit(replace(table, key=table.key or key), relation)
        if why or key != (table.key or key):
            # `after_key` is a key of the columns that identified a row when the table was looked at
            raise TableUnfit(table.name, why or f"its key is ordered as {', '.join(key)} now")
        query = _query(found, table, key_parts(source, found.oid, key), after_key, limit, codec)
        rows = _copied(source, query, codec)
        last_key = None if after_key is None else tuple(after_key)
        if rows:
            last = dict(zip((column.name for column in relation.columns), rows[-1], strict=True))
            values = [value for part in key if (value := last[part]) is not None]
            last_key = tuple(f"\0{v[len(NO_TEXT) :].hex()}" if v.startswith(NO_TEXT) else v.decode() for v in values)
        position = source.execute("select pg_current_wal_insert_lsn()::text").fetchone()
        assert position is not None
    high_lsn = Lsn.parse(position[0])
    # without commits, the source may take long to flush its log up to there, or never do so
    flushed = source.execute("select pg_current_wal_flush_lsn() >= %s::pg_lsn", (str(high_lsn),)).fetchone()
    if flushed != (True,):
        commit_something(source)
    return Chunk(snapshot[0], high_lsn, snapshot[1], relation, rows, last_key, len(rows) < limit)


def _query(
    found: SourceTable,
    table: CapturedTable,
    key: Sequence[KeyPart],
    after_key: Sequence[str] | None,
    limit: int,
    codec: str | None,
) -> sql.Composed:
    where = [sql.SQL("({})").format(condition(table.where))] if table.where is not None else []
    filters = [where]
    if after_key is not None:
        values = [
            sql.SQL("convert_from({}, getdatabaseencoding())").format(sql.Literal(bytes.fromhex(value[1:])))
            if value.startswith("\0")
            else sql.Literal(value)
            for value in after_key
        ]
        filters = [[*where, each] for each in behind(key, values)]
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in found.captured_columns(table))
    name = sql.SQL("only {}").format(found.name) if found.kind == "r" else found.name
    ordered = sql.SQL(" order by {} fetch first {} rows with ties").format(ordered_by(key), sql.Literal(limit))
    selects = [
        sql.SQL("select {} from {}{}{}").format(
            columns, name, sql.SQL(" where ") + sql.SQL(" and ").join(filter_) if filter_ else sql.SQL(""), ordered
        )
        for filter_ in filters
    ]
    query = selects[0]
    if len(selects) > 1:
        together = sql.SQL(" union all ").join(sql.SQL("({})").format(each) for each in selects)
        query = sql.SQL("select {} from ({}) found").format(columns, together) + ordered
    unconverted = sql.SQL("") if codec is None else sql.SQL(" (encoding 'SQL_ASCII')")
    return sql.SQL("copy ({}) to stdout{}").format(query, unconverted)


def _copied(source: psycopg.Connection, query: sql.Composed, codec: str | None) -> list[WholeRow]:
    rows: list[WholeRow] = []
    with source.cursor() as cursor, cursor.copy(query) as copy:
        for line in map(bytes, copy):
            fields = line.removesuffix(b"\n").split(b"\t")
            values: WholeRow = fields
            if b"\\" in line:
                values = [
                    None if field == b"\\N" else _ESCAPED.sub(lambda found: _UNESCAPED.get(found[1], found[1]), field)
                    for field in fields
                ]
            if codec is not None:
                values = [None if value is None else recoded_value(value, codec) for value in values]
            rows.append(tuple(values))
    return rows


def commit_something(source: psycopg.Connection) -> None:
    """Commit a transaction without changes: the slot's reader advances at once, and not only now and then."""
    source.execute("select pg_logical_emit_message(true, 'millrace.chunk', '')")


def _missing(table: CapturedTable, detail: str) -> TableMissing:
    return TableMissing(
        f"Table {table.name} cannot be read.",
        detail=detail,
        hint="Create it with a key, or leave it out of the capture.",
    )
