"""A table of the source database as its catalog describes it now.

Belongs here: columns, keys and the replica identity. Not here: what they were when a row changed, which the messages of
that time say (`decoding.pgoutput`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding.pgoutput import Relation, RelationColumn


@dataclass(frozen=True)
class SourceColumn:
    """A column.

    Attributes:
        name: Its name.
        type_oid: The id of its type.
        type_modifier: What its type is restricted to, -1 for nothing.
        type_name: Its type as SQL has it.
        not_null: Whether it always has a value.
        generated: s(tored) or v(irtual); empty if it is written.
    """

    name: str
    type_oid: int
    type_modifier: int
    type_name: str
    not_null: bool
    generated: str


@dataclass(frozen=True)
class SourceTable:
    """A table.

    Attributes:
        oid: Its id.
        schema: Its schema.
        table: Its name.
        kind: r for an ordinary table, p for a partitioned one; any other letter is no table.
        persistence: p(ermanent), u(nlogged) or t(emporary).
        identity: Its replica identity: d(efault), n(othing), f(ull) or i(ndex).
        owner: The role that owns it.
        policies_forced: Whether row level security also holds for its owner.
        columns: Its columns.
        primary_key: The columns of its primary key, in the index' order; empty if it has none, or a deferrable one,
            which cannot name rows in the log.
        identity_index: The columns of the index that is its replica identity, in that index' order.
        unique_keys: The columns of each unique index that holds for all rows at every time: neither partial nor
            deferrable.
    """

    oid: int
    schema: str
    table: str
    kind: str
    persistence: str
    identity: str
    owner: str
    policies_forced: bool
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...]
    identity_index: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...]

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """The columns that the log holds of a row before its change; all with FULL, none with NOTHING."""
        if self.identity == "f":
            return tuple(column.name for column in self.columns)
        return {"d": self.primary_key, "i": self.identity_index}.get(self.identity, ())

    @property
    def name(self) -> sql.Identifier:
        """Its name in a statement."""
        return sql.Identifier(self.schema, self.table)

    def key(self, table: CapturedTable) -> tuple[str, ...]:
        """Return the columns that name a row's stream; empty if there are none."""
        if table.keyless:
            return ()
        named = self.identity_columns if self.identity in "di" else ()
        return named or table.key or self.primary_key

    def captured_columns(self, table: CapturedTable) -> tuple[SourceColumn, ...]:
        """Return the columns that are captured, in the table's order."""
        if table.columns is None:
            return tuple(column for column in self.columns if not column.generated)
        return tuple(column for column in self.columns if column.name in table.columns)

    def relation(self, table: CapturedTable) -> Relation:
        """Return the table as a message of the slot would describe it now."""
        return Relation(
            self.oid,
            self.schema,
            self.table,
            self.identity,
            tuple(
                RelationColumn(column.name, column.type_oid, column.type_modifier, column.name in self.identity_columns)
                for column in self.captured_columns(table)
            ),
        )


_TABLE = """
select
  c.oid::bigint,
  n.nspname,
  c.relname,
  c.relkind::text,
  c.relpersistence::text,
  c.relreplident::text,
  pg_get_userbyid(c.relowner),
  c.relforcerowsecurity
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.oid = %s::oid
"""

_COLUMNS = """
select attname, atttypid::bigint, atttypmod, format_type(atttypid, atttypmod), attnotnull, attgenerated::text
from pg_attribute
where attrelid = %s::oid and attnum > 0 and not attisdropped
order by attnum
"""

_INDEXES = """
select
  i.indisprimary,
  i.indisreplident,
  array(
    select a.attname::text
    from unnest(i.indkey::int2[]) with ordinality as k (attnum, at)
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
    where k.at <= i.indnkeyatts
    order by k.at
  )
from pg_index i
where i.indrelid = %s::oid and i.indisvalid and i.indimmediate and i.indisunique and i.indpred is null and i.indexprs is null
"""

_LEAVES = "select relid::oid::bigint from pg_partition_tree(%s::oid) where isleaf and level > 0 order by relid"


# Those of an extension are not the application's.
_LOGGED = """
select n.nspname, c.relname
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p')
  and c.relpersistence = 'p'
  and not c.relispartition
  and n.nspname !~ '^pg_'
  and n.nspname <> 'information_schema'
  and not exists (
    select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'
  )
order by 1, 2
"""


def logged_tables(source: psycopg.Connection) -> list[tuple[str, str]]:
    """Return schema and name of each table whose changes the log has, in their order; partitions belong to theirs."""
    return [(schema, table) for schema, table in source.execute(_LOGGED)]


def find_table(source: psycopg.Connection, schema: str, table: str) -> SourceTable | None:
    """Return the table, or whatever else has its name; None if nothing has."""
    row = source.execute(
        """
        select c.oid::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %s and c.relname = %s
        """,
        (schema, table),
    ).fetchone()
    return None if row is None else _described(source, row[0])


def find_leaves(source: psycopg.Connection, table: SourceTable) -> list[SourceTable]:
    """Return the partitions of a table that hold rows; none if it is not partitioned."""
    if table.kind != "p":
        return []
    found = source.execute(_LEAVES, (table.oid,)).fetchall()
    return [leaf for (oid,) in found if (leaf := _described(source, oid))]


def table_oids(source: psycopg.Connection, schema: str, table: str) -> tuple[int, ...]:
    """Return the id of a table, then those of its partitions that hold rows; none if there is no such table."""
    row = source.execute(
        """
        select c.oid::bigint, array(select relid::oid::bigint from pg_partition_tree(c.oid) where isleaf and level > 0 order by 1)
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %s and c.relname = %s
        """,
        (schema, table),
    ).fetchone()
    return () if row is None else (row[0], *row[1])


def with_key(source: psycopg.Connection, table: CapturedTable) -> CapturedTable:
    """Return the declared table with the columns that name its rows now as its key, as `ChangeDecoder` needs it."""
    return keyed(find_table(source, table.schema, table.table), table)


def keyed(found: SourceTable | None, table: CapturedTable) -> CapturedTable:
    """Return the declared table with the columns that name its rows as its key; as it is if it was not found."""
    return table if found is None or table.keyless else replace(table, key=found.key(table) or None)


def filled_leaves(source: psycopg.Connection, leaves: Sequence[int]) -> list[int]:
    """Return which of these partitions, by their ids, have rows now; one that is gone has none."""
    filled = []
    for oid in leaves:
        if (found := _described(source, oid)) is not None:
            query = sql.SQL("select exists (select from {})").format(found.name)
            if source.execute(query).fetchone() == (True,):
                filled.append(oid)
    return filled


def _described(source: psycopg.Connection, oid: int) -> SourceTable | None:
    row = source.execute(_TABLE, (oid,)).fetchone()
    if row is None:
        return None
    columns = source.execute(_COLUMNS, (oid,)).fetchall()
    indexes = source.execute(_INDEXES, (oid,)).fetchall()
    described = (
        *row,
        tuple(SourceColumn(*column) for column in columns),
        next((tuple(names) for primary, _, names in indexes if primary), ()),
        next((tuple(names) for _, identity, names in indexes if identity), ()),
        tuple(tuple(names) for _, _, names in indexes),
    )
    return SourceTable(*described)
