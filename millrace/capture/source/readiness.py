"""What a source lacks to be captured as declared: all of it at once, as sentences with remedies.

Not here: what is wrong with a declaration itself (`capture.declaration`), what only the server can tell (`probe`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from millrace.capture.declaration import Capture, CapturedTable, table_name
from millrace.capture.source.probe import Probes
from millrace.capture.source.tables import SourceTable, find_tables
from millrace.errors import MillraceError

OLDEST_MAJOR = 15
# Millrace's own tables are never captured: each captured change would make the next one
OWN_SCHEMAS = ("event_store", "read_models", "dagster")

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a type",
}

_SERVER = """
select
  pg_is_in_recovery(),
  current_setting('wal_level'),
  current_setting('max_replication_slots')::int,
  (select count(*) from pg_replication_slots)::int,
  current_setting('max_wal_senders')::int,
  (select count(*) from pg_stat_get_wal_senders())::int,
  current_database(),
  r.rolname,
  r.rolsuper or r.rolreplication,
  r.rolsuper or has_database_privilege(current_database(), 'create'),
  r.rolsuper or r.rolbypassrls,
  case when not pg_is_in_recovery() then pg_current_wal_flush_lsn()::text end
from pg_roles r
where r.rolname = current_user
"""

_RIGHTS = """
select
  c.oid::bigint,
  pg_has_role(c.relowner, 'usage'),
  has_schema_privilege(c.relnamespace, 'usage'),
  has_table_privilege(c.oid, 'select')
from unnest(%s::oid[]) as asked (oid)
join pg_class c on c.oid = asked.oid
"""

_COLUMN_RIGHTS = """
select a.attrelid::bigint
from unnest(%s::oid[], %s::text[]) as asked (oid, name)
join pg_attribute a on a.attrelid = asked.oid and a.attname = asked.name
group by a.attrelid
having bool_and(has_column_privilege(a.attrelid, a.attnum, 'select'))
"""


@dataclass(frozen=True)
class _Server:
    """What the server and our role on it can do."""

    standby: bool
    wal_level: str
    slots: int
    used_slots: int
    senders: int
    used_senders: int
    database: str
    role: str
    may_replicate: bool
    may_create: bool
    passes_policies: bool
    flushed: str | None


@dataclass(frozen=True)
class _Rights:
    """Whether our role may publish a table, and read its captured columns and rows."""

    owns: bool
    reads: bool


class NotReady(MillraceError):
    """The source cannot be captured as declared.

    Attributes:
        problems: What it lacks, a sentence each.
    """

    def __init__(self, capture: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(
            f"The source of capture {capture} is not ready.",
            detail="\n".join(f"- {problem}" for problem in problems),
            hint="Nothing was published; try again when that is done.",
        )


@dataclass(frozen=True)
class Readiness:
    """The tables of a capture, and the problems that keep them from being captured.

    Attributes:
        server: Problems of the server, or of our role there; they concern every table.
        tables: Problems of a table, by its name; a table without problems is left out.
        found: The tables that exist, by schema and name.
        probed: Digests of the tables that need no probe the next time.
        flushed: The position of the source's log before the look; None on a standby.
    """

    server: Sequence[str]
    tables: Mapping[str, Sequence[str]]
    found: Mapping[tuple[str, str], SourceTable]
    probed: frozenset[str]
    flushed: str | None

    @property
    def problems(self) -> list[str]:
        """All problems, a sentence each."""
        tables = [f"table {name}: {problem}" for name, problems in self.tables.items() for problem in problems]
        return [*self.server, *tables]


def check_readiness(
    source: psycopg.Connection,
    capture: Capture,
    *,
    has_slot: bool,
    probed: frozenset[str] = frozenset(),
    published: Collection[str] = (),
    tables: Sequence[CapturedTable] | None = None,
) -> Readiness:
    """Find what keeps a source's tables from being captured as declared; change nothing on it.

    Args:
        source: An autocommit connection to the source.
        capture: The declaration.
        has_slot: Whether the capture already has its slot, so that the server needs no free one.
        probed: `Readiness.probed` of the last check.
        published: The names of the tables that are already published: they can be captured even while locked.
        tables: Some of its tables; None for all.
    """
    major = source.info.server_version // 10000
    if major < OLDEST_MAJOR:
        too_old = f"the server is PostgreSQL {major}; {OLDEST_MAJOR} or newer is needed, for filters of rows and columns: upgrade it"
        return Readiness([too_old], {}, {}, frozenset(), None)
    row = source.execute(_SERVER).fetchone()
    assert row is not None
    server = _Server(*row)
    chosen = capture.tables if tables is None else tables
    found = find_tables(source, [(table.schema, table.table) for table in chosen])
    rights = _rights(source, chosen, found)
    problems = {table.name: [*_table_problems(server, capture, table, found, rights)] for table in chosen}
    admissible = [(table, found[table.schema, table.table]) for table in chosen if not problems[table.name]]
    probes = Probes(source, capture, probed, published)
    for name, problem in probes.problems(admissible).items():
        problems[name].append(problem)
    return Readiness(
        [*_server_problems(server, has_slot=has_slot)],
        {name: texts for name, texts in problems.items() if texts},
        found,
        frozenset(probes.passed),
        server.flushed,
    )


def require_ready(source: psycopg.Connection, capture: Capture, *, has_slot: bool) -> None:
    """Refuse a source if any of its tables cannot be captured as declared.

    Raises:
        NotReady: The error has all that the source lacks.
    """
    if problems := find_problems(source, capture, has_slot=has_slot):
        raise NotReady(capture.name, problems)


def find_problems(source: psycopg.Connection, capture: Capture, *, has_slot: bool) -> list[str]:
    """Find all that keeps the source from being captured as declared; change nothing on it.

    Args:
        source: An autocommit connection to the source.
        capture: The declaration.
        has_slot: Whether the capture already has its slot, so that the server needs no free one.
    """
    return check_readiness(
        source, capture, has_slot=has_slot, published={table.name for table in capture.tables}
    ).problems


def is_one_ready(source: psycopg.Connection, capture: Capture, names: Collection[str]) -> bool:
    """Return whether one of these tables can be captured, or is no longer declared.

    Args:
        source: An autocommit connection to the source.
        capture: A capture that has its slot.
        names: The names of one or more tables.
    """
    declared = [table for table in capture.tables if table.name in names]
    if len(declared) < len(names):
        return True
    published = {table.name for table in capture.tables}
    readiness = check_readiness(source, capture, has_slot=True, published=published, tables=declared)
    return not readiness.server and len(readiness.tables) < len(declared)


def _server_problems(server: _Server, *, has_slot: bool) -> Iterator[str]:
    role = server.role
    if server.standby:
        yield "the server is a standby, which cannot have publications: capture from its primary"
    if server.wal_level != "logical":
        yield (
            f"wal_level is {server.wal_level}; it has to be logical: alter system set wal_level = 'logical', and restart the"
            " server"
        )
    if not has_slot and server.used_slots >= server.slots:
        yield (
            f"all {server.slots} replication slots are in use: drop one that is not needed, or raise max_replication_slots and"
            " restart the server"
        )
    # a capture that has a slot may itself be the counted reader
    if not has_slot and server.used_senders >= server.senders:
        yield (
            f"all {server.senders} connections of max_wal_senders are in use: end one that is not needed, or raise it and restart"
            " the server"
        )
    if not server.may_replicate:
        yield f"role {role} may not use replication slots: alter role {role} replication"
    if not server.may_create:
        yield f"role {role} may not create publications: grant create on database {server.database} to {role}"


def _rights(
    source: psycopg.Connection, tables: Sequence[CapturedTable], found: Mapping[tuple[str, str], SourceTable]
) -> Mapping[int, _Rights]:
    """Return our role's rights on each table, by its id; a table that is gone by now is left out."""
    rows = source.execute(_RIGHTS, ([table.oid for table in found.values()],)).fetchall()
    readable = {oid for oid, _, _, reads in rows if reads}
    # without a right to the whole table, there may be one to each column
    columns = [
        (source_table.oid, column.name)
        for table in tables
        if (source_table := found.get((table.schema, table.table))) and source_table.oid not in readable
        for column in source_table.captured_columns(table)
    ]
    if columns:
        oids, names = zip(*columns, strict=True)
        readable |= {oid for (oid,) in source.execute(_COLUMN_RIGHTS, ([*oids], [*names]))}
    return {oid: _Rights(owns, uses_schema and oid in readable) for oid, owns, uses_schema, _ in rows}


def _table_problems(
    server: _Server,
    capture: Capture,
    table: CapturedTable,
    found: Mapping[tuple[str, str], SourceTable],
    rights: Mapping[int, _Rights],
) -> Iterator[str]:
    if table.schema in OWN_SCHEMAS:
        yield f"schema {table.schema} is Millrace's own, and its tables are never captured: leave it out"
        return
    if table.schema.startswith("pg_") or table.schema == "information_schema":
        yield f"schema {table.schema} is the server's own, and its tables cannot be published: leave it out"
        return
    source_table = found.get((table.schema, table.table))
    if source_table is None or source_table.oid not in rights:
        yield f"it does not exist in database {server.database}: create it, or leave it out"
        return
    yield from _kind_problems(capture, source_table)
    yield from _column_problems(capture, table, source_table)
    role = server.role
    if not rights[source_table.oid].owns:
        yield f"role {role} does not own it, so it may not publish it: grant {source_table.owner} to {role}"
    if not rights[source_table.oid].reads:
        yield f"role {role} may not read it: grant select on {table.name} to {role}, and usage on its schema"
    if source_table.policies_forced and not server.passes_policies:
        yield f"row level security hides rows from role {role}: alter role {role} bypassrls"


def _kind_problems(capture: Capture, found: SourceTable) -> Iterator[str]:
    if found.kind not in "rp":
        yield f"it is {_KINDS.get(found.kind, 'no table')}; only ordinary and partitioned tables can be captured: leave it out"
        return
    if found.persistence != "p":
        kind = "unlogged" if found.persistence == "u" else "temporary"
        yield f"it is {kind}, so the log does not hold its changes: alter table … set logged, or leave it out"
    captured = {table.name for table in capture.tables} if found.above else ()
    if above := [name for name in found.above if name in captured]:
        yield f"it is a partition of {above[0]}, which is captured as a whole: leave it out"
    for leaf in found.leaves:
        if leaf.kind != "r" or leaf.persistence != "p":
            yield f"its partition {table_name(leaf.schema, leaf.table)} is no permanent ordinary table: detach it, or leave the table out"
        # the server sends a partition's old rows by the identity of its root, whatever the partition's log holds
        elif (leaf.identity, leaf.identity_columns) != (found.identity, found.identity_columns):
            yield (
                f"its partition {table_name(leaf.schema, leaf.table)} has another replica identity than the table:"
                " give both the same with alter table … replica identity"
            )


def _column_problems(capture: Capture, table: CapturedTable, found: SourceTable) -> Iterator[str]:
    columns = {column.name: column for column in found.columns}
    declared = {"columns": table.columns or (), "key": table.key or (), "mask, hash and personal": table.needed}
    for option, names in declared.items():
        if missing := [name for name in names if name not in columns]:
            yield f"it has no column {', '.join(missing)}; there are {', '.join(columns)}: correct {option}"
            return
    key = found.key(table)
    if hidden := [name for name in key if name in table.hidden]:
        yield f"column {', '.join(hidden)} belongs to its key, which is neither masked nor hashed nor sealed: correct mask, hash and personal"
    captured = {column.name for column in found.captured_columns(table)}
    sees_rows = {"update", "delete"} & set(capture.actions)
    if sees_rows and not found.identity_columns:
        identity = "nothing" if found.identity == "n" else "default, and it has no primary key"
        yield (
            f"its replica identity is {identity}, so the log does not say which row was updated or deleted: give it a primary"
            " key, alter table … replica identity using index … or full, or capture inserts and truncates only"
        )
    if not key and not table.keyless:
        yield (
            "nothing names its rows: give it a primary key, or declare key; with key=() and without updates and deletes each row"
            " that is inserted has a stream of its own"
        )
    if table.key and found.identity in "di" and set(key) != set(table.key):
        yield (
            f"its key is declared as {', '.join(table.key)}, and its replica identity says {', '.join(key)}: leave key out,"
            " or alter table … replica identity full"
        )
    elif table.key and key and not any(set(unique) <= set(key) for unique in found.unique_keys):
        yield (
            f"no unique index covers its declared key {', '.join(table.key)}, so rows could share a stream: create a unique index"
            " on it, neither partial nor deferrable, or declare another key"
        )
    if nullable := [name for name in key if not columns[name].not_null]:
        yield f"column {', '.join(nullable)} of its key may be null: alter table … alter {nullable[0]} set not null"
    unpublished = [n for n in (*key, *table.needed) if columns[n].unpublished and n not in (table.columns or ())]
    if unpublished:
        # from PostgreSQL 18 on, the log holds stored generated columns
        yield (
            f"column {', '.join(dict.fromkeys(unpublished))} is generated, and the log does not hold it: choose a key"
            " or a replica identity without it, and leave it out of mask, hash and personal"
        )
    elif left_out := [name for name in key if name not in captured]:
        yield f"columns leave out {', '.join(left_out)} of its key: add them"
    # else an update of the application would fail
    elif (
        sees_rows and table.columns and (left_out := [name for name in found.identity_columns if name not in captured])
    ):
        yield (
            f"columns leave out {', '.join(left_out)}, which its replica identity has: add them, or choose another replica"
            " identity than full"
        )
