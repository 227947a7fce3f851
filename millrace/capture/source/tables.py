"""A table of the source as its catalog describes it now; the messages of a change describe it as of that change."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import LiteralString

import psycopg
from psycopg import sql

from millrace.capture.declaration import CapturedTable, table_name
from millrace.capture.decoding.pgoutput import Relation, RelationColumn


@dataclass(frozen=True)
class SourceColumn:
    """A column.

    Attributes:
        name: Its name.
        type_oid: The id of its type.
        type_modifier: The restriction of its type, -1 for none.
        type_name: Its type in SQL.
        not_null: Whether it always has a value.
        unpublished: Whether it is generated, and a publication of all columns leaves it out.
    """

    name: str
    type_oid: int
    type_modifier: int
    type_name: str
    not_null: bool
    unpublished: bool


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
        partition: Whether it is a partition of another table.
        columns: Its columns.
        primary_key: The columns of its primary key, in the index' order; empty if it has none, or a deferrable one,
            which cannot identify rows in the log.
        identity_index: The columns of the index that is its replica identity, in that index' order.
        unique_keys: The columns of each unique index that holds for all rows at every time: neither partial nor
            deferrable.
        above: The names of the tables that it is a partition of, the nearest first; set by `find_tables`.
        leaves: Its partitions that hold rows; set by `find_tables`.
    """

    oid: int
    schema: str
    table: str
    kind: str
    persistence: str
    identity: str
    owner: str
    policies_forced: bool
    partition: bool
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...]
    identity_index: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...]
    above: tuple[str, ...] = ()
    leaves: tuple["SourceTable", ...] = ()

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """The columns of a row before its change that the log holds; all with FULL, none with NOTHING."""
        if self.identity == "f":
            return tuple(column.name for column in self.columns)
        return {"d": self.primary_key, "i": self.identity_index}.get(self.identity, ())

    @property
    def oids(self) -> tuple[int, ...]:
        """Its id, then those of its partitions that hold rows."""
        return (self.oid, *(leaf.oid for leaf in self.leaves))

    @property
    def name(self) -> sql.Identifier:
        """Its name in a statement."""
        return sql.Identifier(self.schema, self.table)

    def key(self, table: CapturedTable) -> tuple[str, ...]:
        """Return the columns that identify a row's stream; empty if there are none."""
        if table.keyless:
            return ()
        named = self.identity_columns if self.identity in "di" else ()
        return named or table.key or self.primary_key

    def captured_columns(self, table: CapturedTable) -> tuple[SourceColumn, ...]:
        """Return the captured columns, in the table's order."""
        if table.columns is None:
            return tuple(column for column in self.columns if not column.unpublished)
        return tuple(column for column in self.columns if column.name in table.columns)

    def relation(self, table: CapturedTable) -> Relation:
        """Return the table as a message of the slot would describe it now."""
        identity = self.identity_columns
        return Relation(
            self.oid,
            self.schema,
            self.table,
            self.identity,
            tuple(
                RelationColumn(column.name, column.type_oid, column.type_modifier, column.name in identity)
                for column in self.captured_columns(table)
            ),
        )


# One statement for all requested tables, each with the number of its request.
_DESCRIBED = """
select
  asked.number,
  c.oid::bigint,
  n.nspname,
  c.relname,
  c.relkind::text,
  c.relpersistence::text,
  c.relreplident::text,
  pg_get_userbyid(c.relowner),
  c.relforcerowsecurity,
  c.relispartition,
  (
    select json_agg(
      json_build_array(
        a.attname, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod), a.attnotnull,
        -- from version 18 on a publication may have those that are stored, and ours do
        a.attgenerated <> '' and (a.attgenerated <> 's' or current_setting('server_version_num')::int < 180000)
      )
      order by a.attnum
    )
    from pg_attribute a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  ),
  (
    select json_agg(
      json_build_array(
        i.indisprimary,
        i.indisreplident,
        array(
          select a.attname
          from unnest(i.indkey::int2[]) with ordinality as k (attnum, at)
          join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
          where k.at <= i.indnkeyatts
          order by k.at
        )
      )
      order by i.indexrelid
    )
    from pg_index i
    where i.indrelid = c.oid and i.indisvalid and i.indimmediate and i.indisunique and i.indpred is null and i.indexprs is null
  )
from asked
join pg_class c on c.oid = asked.oid
join pg_namespace n on n.oid = c.relnamespace
order by asked.number, c.oid
"""

_NAMED = """
with asked (number, oid) as (
  select named.number, c.oid
  from unnest(%s::text[], %s::text[]) with ordinality as named (schema, name, number)
  join pg_namespace n on n.nspname = named.schema
  join pg_class c on c.relnamespace = n.oid and c.relname = named.name
)
"""

_NUMBERED = """
with asked (number, oid) as (
  select one.number, one.oid from unnest(%s::oid[]) with ordinality as one (oid, number)
)
"""

# `pg_partition_tree` would wait for locks on the partitions.
_LEAVES = """
with recursive part (number, oid) as (
  select root.number, root.oid from unnest(%s::oid[]) with ordinality as root (oid, number)
  union all
  select part.number, i.inhrelid from part join pg_inherits i on i.inhparent = part.oid where not i.inhdetachpending
),
asked (number, oid) as (
  select part.number, part.oid from part join pg_class c on c.oid = part.oid where c.relkind not in ('p', 'I')
)
"""

_ABOVE = """
select part.oid::bigint, n.nspname, c.relname
from unnest(%s::oid[]) as part (oid)
cross join pg_partition_ancestors(part.oid) with ordinality as above (oid, number)
join pg_class c on c.oid = above.oid and c.oid <> part.oid
join pg_namespace n on n.oid = c.relnamespace
order by part.oid, above.number
"""


_HEIRS = """
select p.nspname, t.relname, n.nspname, c.relname
from unnest(%s::text[], %s::text[]) as asked (schema, name)
join pg_namespace p on p.nspname = asked.schema
join pg_class t on t.relnamespace = p.oid and t.relname = asked.name and t.relkind = 'r'
join pg_inherits i on i.inhparent = t.oid
join pg_class c on c.oid = i.inhrelid
join pg_namespace n on n.oid = c.relnamespace
order by 1, 2, 3, 4
"""

# The enums in the columns of the tables of `asked`: also below domains, arrays, ranges, and the columns of other types.
# Built-in types contain no enums.
ENUMS: LiteralString = """
typed (relation, type_oid) as (
  select a.attrelid, a.atttypid
  from asked
  join pg_attribute a on a.attrelid = asked.oid and a.attnum > 0 and not a.attisdropped
  where a.atttypid >= 16384
  union
  select relation, below
  from typed
  join pg_type t on t.oid = type_oid
  cross join lateral (
    select unnest(array[t.typbasetype, t.typelem])
    union all
    select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
    union all
    select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
  ) made_of (below)
  where below >= 16384
),
labelled (relation, oid, label) as (
  select typed.relation, e.oid, e.enumlabel from typed join pg_enum e on e.enumtypid = typed.type_oid
)
"""
_SELECTED_TABLES = "with recursive asked (oid) as (select unnest(%s::oid[])),"
_LABELS = """
select relation::bigint, jsonb_object_agg(oid, label) from labelled group by relation
"""


# An extension's tables are not the application's.
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
    """Return schema and name of each table with changes in the log, in order; partitions count as their root."""
    return [(schema, table) for schema, table in source.execute(_LOGGED)]


def find_tables(source: psycopg.Connection, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], SourceTable]:
    """Return the relations with these names, schema and table each, with their partitions; leave unknown names out.

    This takes one query for any number of names, another one if any has partitions, and another if any is a partition.
    No query waits for a lock.
    """
    pairs = list(names)
    found = [table for _, table in _described(source, _NAMED, *([name[n] for name in pairs] for n in (0, 1)))]
    above: dict[int, list[str]] = {}
    if parts := [table.oid for table in found if table.partition]:
        for oid, schema, name in source.execute(_ABOVE, (parts,)):
            above.setdefault(oid, []).append(table_name(schema, name))
    leaves: dict[int, list[SourceTable]] = {}
    if roots := [table.oid for table in found if table.kind == "p"]:
        for number, leaf in _described(source, _LEAVES, roots):
            leaves.setdefault(roots[number - 1], []).append(leaf)
    return {
        (table.schema, table.table): (
            replace(table, above=tuple(above.get(table.oid, ())), leaves=tuple(leaves.get(table.oid, ())))
            if table.partition or table.kind == "p"
            else table
        )
        for table in found
    }


def find_table(source: psycopg.Connection, schema: str, table: str) -> SourceTable | None:
    """Return the table, or another relation with its name, without its partitions; None if there is none."""
    return next((found for _, found in _described(source, _NAMED, [schema], [table])), None)


def with_key(source: psycopg.Connection, table: CapturedTable) -> CapturedTable:
    """Return the declared table with the columns that identify its rows now as its key, as `ChangeDecoder` needs it."""
    return keyed(find_table(source, table.schema, table.table), table)


def keyed(found: SourceTable | None, table: CapturedTable) -> CapturedTable:
    """Return the declared table with the columns that identify its rows as its key; unchanged if it was not found."""
    return table if found is None or table.keyless else replace(table, key=found.key(table) or None)


def heirs(source: psycopg.Connection, tables: Iterable[CapturedTable]) -> dict[str, list[str]]:
    """Return, by the names of these tables, the tables that inherit from them without being partitions."""
    declared = list(tables)
    found: dict[str, list[str]] = {}
    for schema, table, *heir in source.execute(_HEIRS, ([t.schema for t in declared], [t.table for t in declared])):
        found.setdefault(table_name(schema, table), []).append(table_name(*heir))
    return found


def enum_labels(source: psycopg.Connection, tables: Sequence[int]) -> dict[int, dict[str, str]]:
    """Return the labels of the enums in the columns of these tables, by the table's id, then by the enum's."""
    return dict(source.execute(_SELECTED_TABLES + ENUMS + _LABELS, (list(tables),)).fetchall())


def filled_leaves(source: psycopg.Connection, leaves: Sequence[int]) -> frozenset[int]:
    """Return which of these partitions, by their ids, have rows or may have; a partition that is gone has none."""
    filled = set()
    for _, found in _described(source, _NUMBERED, leaves) if leaves else ():
        try:
            with source.transaction():
                source.execute("set local lock_timeout = '20ms'")
                query = sql.SQL("select exists (select from {})").format(found.name)
                has_rows = source.execute(query).fetchone() == (True,)
        except psycopg.DatabaseError:
            # locked or unreadable: the other tables must not wait for this one
            if source.closed:
                raise
            has_rows = True
        if has_rows:
            filled.add(found.oid)
    return frozenset(filled)


def _described(
    source: psycopg.Connection, selection: LiteralString, *arguments: Sequence[object]
) -> Iterator[tuple[int, SourceTable]]:
    for number, *row, columns, indexes in source.execute(selection + _DESCRIBED, arguments):
        keys = [(primary, identity, tuple(names)) for primary, identity, names in indexes or ()]
        described = (
            *row,
            tuple(SourceColumn(*column) for column in columns or ()),
            next((names for primary, _, names in keys if primary), ()),
            next((names for _, identity, names in keys if identity), ()),
            tuple(names for _, _, names in keys),
        )
        yield number, SourceTable(*described)
