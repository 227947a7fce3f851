"""The tables of read models, made from their declarations, and the SQL that merges, swaps and reads them.

Belongs here: every statement on the tables and views of models. Not here: which version of a model there is
(`read_model_versions`), Spark, leases, when to call.

A model `orders` has
    read_models.orders          what people read: a SQL view of the state's public values
    read_models.orders_state    partial values, partitioned by list of the log partition like the log itself
    read_models.orders_staging  unlogged: what Spark's tasks wrote and no commit has merged yet
and a later version 2 tables of its own, `orders_state_v2` and `orders_staging_v2`.
Commits of different log partitions never touch the same row of the state, and one log partition can be replaced alone.

They belong to the role event_store_owner where the login that makes them is a member, so that every member can rebuild and reset
them: swapping and dropping take ownership.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.column_types import postgres_type
from millrace.resources.read_models.declaration import ReadModel

SCHEMA = "read_models"
OWNERS = "event_store_owner"


class HistoryMissing(MillraceError):
    """The log does not hold its first events any more, so a model cannot be built from them."""


class NotOwned(MillraceError):
    """The model's tables belong to a role that the login is no member of."""


class DependentObjects(MillraceError):
    """Something in the database depends on a model's view or tables, which are to change or to go."""


class StagedRowsLost(MillraceError):
    """The staged rows are not those that Spark's tasks reported."""


@dataclass(frozen=True)
class StagedRows:
    """The rows that one Spark task attempt staged for a batch."""

    attempt: int
    rows: int


def require_whole_log(connection: psycopg.Connection, partition: int | None = None) -> None:
    """Refuse to build from a log partition (None: from any) that was shortened: the numbers would be wrong.

    Raises:
        HistoryMissing: It was.
    """
    shortened = [held for held in EventStore(connection).available_offset_range(partition) if held.earliest_position]
    if shortened:
        raise HistoryMissing(
            "The log does not hold its first events any more, and a read model counts them all.",
            detail=", ".join(
                f"log partition {held.partition} begins at {held.earliest_position}" for held in shortened
            ),
            hint="Put the deleted events back from where they are archived; read models that are built already go on.",
        )


def require_ownership(connection: psycopg.Connection, model: ReadModel) -> None:
    """Refuse to swap or drop what belongs to a role that the login is no member of, before anything is built for it.

    Raises:
        NotOwned: Some table or the view does.
    """
    owners = [
        owner
        for (owner,) in connection.execute(
            """
            select distinct pg_get_userbyid(c.relowner)
            from pg_class c
            where (
                (c.relnamespace = %(schema)s::regnamespace and c.relname = any (%(names)s))
                or c.oid in (select inhrelid from pg_inherits where inhparent = to_regclass(%(state)s))
              )
              and not pg_has_role(c.relowner, 'USAGE')
            order by 1
            """,
            {
                "schema": SCHEMA,
                "names": [model.name, model.state_table, model.staging_table],
                "state": f"{SCHEMA}.{model.state_table}",
            },
        )
    ]
    if owners:
        raise NotOwned(
            f"The tables of read model {model.name} belong to {', '.join(owners)}.",
            detail=f"{connection.info.user} is no member of that role; a rebuild, a reset and a new version take ownership.",
            hint=f"Do it as {owners[0]}. Or as {owners[0]} run `millrace reset {model.name}`, and let a member of {OWNERS} "
            "build the model anew: then it belongs to all members.",
        )


def create_tables(connection: psycopg.Connection, model: ReadModel) -> None:
    """Make the tables of a version of the model; within a transaction."""
    with _as_owners(connection):
        for statement in (
            "create table {}.{state} ({definitions}, constraint {pkey} primary key ({key})) partition by list (partition)",
            "create unlogged table {}.{staging} ({definitions}, batch bigint not null, attempt bigint not null,"
            " staged_at timestamptz not null default clock_timestamp())",
            "create index on {}.{staging} (batch, partition)",
            # also where another login than the migrating one makes them
            "grant select on {}.{state} to event_store_reader",
            "comment on table {}.{state} is 'Partial values per log partition; read the view instead.'",
            "comment on table {}.{staging} is 'Rows that Spark''s tasks wrote and no commit has merged yet.'",
        ):
            connection.execute(_format(model, statement))
        partitions = connection.execute("select partition from event_store.partitions order by partition").fetchall()
        for (partition,) in partitions:
            connection.execute(
                _format(
                    model,
                    "create table {}.{child} partition of {}.{state} for values in ({partition})",
                    child=sql.Identifier(_child(model, partition)),
                    partition=sql.Literal(partition),
                )
            )


def drop_tables(connection: psycopg.Connection, model: ReadModel) -> None:
    """Remove the tables of a version of the model, which the model's view does not show; within a transaction.

    Raises:
        DependentObjects: Something in the database depends on them.
    """
    for statement in ("drop table if exists {}.{state}", "drop table if exists {}.{staging}"):
        _drop(connection, model, statement)


def create_view(connection: psycopg.Connection, model: ReadModel) -> None:
    """Make the SQL view that people read, or let it show this version of the model from now on; within a transaction.

    Who may read it may go on, also where it has other columns now.

    Raises:
        DependentObjects: It has other columns, and something in the database depends on the present ones.
        psycopg.errors.LockNotAvailable: Readers held the view for longer than the lock timeout.
    """
    try:
        with connection.transaction():
            connection.execute(_format(model, _view_statement(model)))
    except psycopg.errors.InvalidTableDefinition:
        grants = _grants(connection, model)
        drop_view(connection, model)
        connection.execute(_format(model, _view_statement(model)))
        for grant in grants:
            connection.execute(grant)
    owner = sql.Identifier(_owner(connection, model.state_table))
    # reads the tables with its owner's rights
    connection.execute(_format(model, "alter view {}.{view} owner to {owner}", owner=owner))
    connection.execute(_format(model, "grant select on {}.{view} to event_store_reader"))
    connection.execute(_format(model, "comment on view {}.{view} is {description}"))


def _view_statement(model: ReadModel) -> str:
    if not model.crosses_streams:
        return "create or replace view {}.{view} as select {public} from {}.{state}{expanded} where {visible}"
    return (
        "create or replace view {}.{view} as select {public} from"
        " (select {public_key}, {merges} from {}.{state} group by {public_key}) merged where {visible}"
    )


def _owner(connection: psycopg.Connection, table: str) -> str:
    row = connection.execute(
        "select pg_get_userbyid(relowner) from pg_class where oid = to_regclass(%s)", (f"{SCHEMA}.{table}",)
    ).fetchone()
    assert row is not None
    return str(row[0])


def drop_view(connection: psycopg.Connection, model: ReadModel) -> None:
    """Remove the SQL view that people read; within a transaction.

    Raises:
        DependentObjects: Something in the database depends on it.
    """
    _drop(connection, model, "drop view if exists {}.{view}")


def _drop(connection: psycopg.Connection, model: ReadModel, statement: str) -> None:
    try:
        connection.execute(_format(model, statement))
    except psycopg.errors.DependentObjectsStillExist as error:
        raise DependentObjects(
            f"What people read of read model {model.name} cannot be replaced, for other objects depend on it.",
            detail=error.diag.message_detail,
            hint="Drop them, try again (the next drain does), and create them anew.",
        ) from error


def _grants(connection: psycopg.Connection, model: ReadModel) -> list[sql.Composed]:
    """The statements that grant again what is granted on the model's view, as far as it has the columns."""
    granted = connection.execute(
        """
        select
          a.privilege_type, c.attname, case a.grantee when 0 then null else pg_get_userbyid(a.grantee) end, a.is_grantable
        from (
          select relacl, null::name, relowner from pg_class where oid = to_regclass(%(view)s)
          union all
          select t.attacl, t.attname, v.relowner
          from pg_attribute t
          join pg_class v on v.oid = t.attrelid
          where t.attrelid = to_regclass(%(view)s) and t.attname = any (%(columns)s)
        ) c(acl, attname, owner)
        cross join lateral aclexplode(c.acl) a
        where a.grantee <> c.owner
        """,
        {"view": f"{SCHEMA}.{model.name}", "columns": list(model.public_columns())},
    ).fetchall()
    return [
        sql.SQL("grant {}{} on {} to {}{}").format(
            sql.SQL(privilege),
            sql.SQL(" ({})").format(sql.Identifier(column)) if column else sql.SQL(""),
            sql.Identifier(SCHEMA, model.name),
            sql.Identifier(grantee) if grantee else sql.SQL("public"),
            sql.SQL(" with grant option" if grantable else ""),
        )
        for privilege, column, grantee, grantable in granted
    ]


def next_batch(connection: psycopg.Connection) -> int:
    """Draw a number for a batch of staged rows."""
    row = connection.execute("select nextval('read_models.batch_seq')").fetchone()
    assert row is not None
    return int(row[0])


def merge_batch(connection: psycopg.Connection, model: ReadModel, batch: int, staged: Sequence[StagedRows]) -> int:
    """Merge a batch's staged rows into the state and return how many rows of the state changed.

    Runs in the caller's transaction, after `commit_batch` has locked and checked the leases.

    Raises:
        StagedRowsLost: The staging table was emptied by a server crash, or a task reported what it did not write.
    """
    _require_staged(connection, model, batch, staged)
    if not staged:
        return 0
    merged = connection.execute(
        _format(
            model,
            """
            insert into {}.{state} ({key}, {columns})
            select {key}, {merges}
            from (
              select {key}, {columns} from {}.{staging} where batch = %(batch)s and attempt = any (%(attempts)s)
              union all
              select {known_key}, {known_columns}
              from (
                select distinct {key} from {}.{staging} where batch = %(batch)s and attempt = any (%(attempts)s)
              ) touched
              -- limit 1 keeps this an index probe per touched key, however many rows the model has
              cross join lateral (select * from {}.{state} s where {same_key} limit 1) known
            ) both_sides
            group by {key}
            on conflict ({key}) do update set {assignments}
            """,
        ),
        {"batch": batch, "attempts": [s.attempt for s in staged]},
    ).rowcount
    forget_batch(connection, model, batch)
    return merged


def replace_partitions(
    connection: psycopg.Connection,
    model: ReadModel,
    partitions: Sequence[int],
    batch: int,
    staged: Sequence[StagedRows],
) -> dict[int, int]:
    """Build new child tables of the state from a batch's staged rows, swap them in, and return the rows of each log partition.

    Runs in the caller's transaction, after `commit_batch`. Readers see the old rows until it commits, then the new ones;
    only the swaps themselves, at the end, lock them out. But a transaction in REPEATABLE READ that began before the swap and
    looks at the model only after it finds these log partitions empty, as after a TRUNCATE.

    Raises:
        StagedRowsLost: As `merge_batch`.
        psycopg.errors.LockNotAvailable: Readers held the table for longer than the lock timeout.
    """
    _require_staged(connection, model, batch, staged)
    rows = {partition: _fill_child(connection, model, partition, batch, staged) for partition in partitions}
    forget_batch(connection, model, batch)
    connection.execute("set local lock_timeout = '10s'")
    for partition in partitions:
        for statement in (
            "alter table {}.{state} detach partition {}.{child}",
            "drop table {}.{child}",
            "alter table {}.{fresh} rename to {child}",
            "alter table {}.{state} attach partition {}.{child} for values in ({partition})",
            "alter table {}.{child} drop constraint {bounds}",
        ):
            connection.execute(_format(model, statement, **_child_names(model, partition)))
    return rows


def _fill_child(
    connection: psycopg.Connection, model: ReadModel, partition: int, batch: int, staged: Sequence[StagedRows]
) -> int:
    """Make the child table that is to be swapped in and return its rows."""
    names = _child_names(model, partition)
    # like the child, not the parent: two swaps that both hold the parent would wait for each other
    connection.execute(_format(model, "create table {}.{fresh} (like {}.{child} including all)", **names))
    owner = sql.Identifier(_owner(connection, _child(model, partition)))
    # whoever rebuilds, the next one can, too
    connection.execute(_format(model, "alter table {}.{fresh} owner to {owner}", owner=owner, **names))
    rows = connection.execute(
        _format(
            model,
            """
            insert into {}.{fresh} ({key}, {columns})
            select {key}, {merges}
            from {}.{staging}
            where batch = %(batch)s and attempt = any (%(attempts)s) and partition = {partition}
            group by {key}
            """,
            **names,
        ),
        {"batch": batch, "attempts": [s.attempt for s in staged]},
    ).rowcount
    # proves the bounds, so that attaching does not read the table under lock
    connection.execute(
        _format(model, "alter table {}.{fresh} add constraint {bounds} check (partition = {partition})", **names)
    )
    return rows


def _child_names(model: ReadModel, partition: int) -> dict[str, sql.Composable]:
    child = _child(model, partition)
    return {
        "child": sql.Identifier(child),
        "fresh": sql.Identifier(f"{child}_new"),
        "bounds": sql.Identifier(f"{model.state_table}_bounds"),
        "partition": sql.Literal(partition),
    }


def stored_states(model: ReadModel) -> str:
    """The query for the states of a fold's streams: from arrays of log partitions, deciders and ids to those with position and state.

    Spark's tasks run it, each for as many streams as a batch of its events has.
    """
    same = {"decider": "s.{} = k.decider", "decider_id": "s.{} = k.decider_id"}
    return _format(
        model,
        """
        select k.partition, k.decider, k.decider_id, s._position, s._state::text
        from unnest(%(partitions)s::int[], %(deciders)s::text[], %(ids)s::text[]) k(partition, decider, decider_id)
        -- limit 1 keeps this an index probe per stream, however many rows the model has
        cross join lateral (select * from {}.{state} s where s.partition = k.partition and {same_stream} limit 1) s
        """,
        same_stream=sql.SQL(" and ").join(
            sql.SQL(same[key.source]).format(sql.Identifier(name)) for name, key in model.keys.items()
        ),
    ).as_string()


def forget_batch(connection: psycopg.Connection, model: ReadModel, batch: int) -> None:
    """Remove the staged rows of a batch."""
    connection.execute(_format(model, "delete from {}.{staging} where batch = %s"), (batch,))


def forget_dead_batches(connection: psycopg.Connection, model: ReadModel, older_than_s: int = 86_400) -> int:
    """Remove staged rows of attempts that died: those older than any running batch can be. Return how many."""
    return connection.execute(
        _format(model, "delete from {}.{staging} where staged_at < clock_timestamp() - make_interval(secs => %s)"),
        (older_than_s,),
    ).rowcount


def _require_staged(connection: psycopg.Connection, model: ReadModel, batch: int, staged: Sequence[StagedRows]) -> None:
    found: dict[int, int] = dict(
        connection.execute(
            _format(model, "select attempt, count(*) from {}.{staging} where batch = %s group by attempt"), (batch,)
        ).fetchall()
    )
    lost = [s for s in staged if found.get(s.attempt, 0) != s.rows]
    if lost:
        raise StagedRowsLost(
            f"The staged rows of read model {model.name} are incomplete; the batch is built again.",
            detail=f"batch {batch}: "
            + ", ".join(f"attempt {s.attempt}: {found.get(s.attempt, 0)} of {s.rows}" for s in lost),
            hint="Postgres empties the unlogged staging tables after a crash.",
        )


@contextmanager
def _as_owners(connection: psycopg.Connection) -> Iterator[None]:
    """Let what is made belong to the role of all owners, where the login is a member; within a transaction."""
    (before, member), *_ = connection.execute(
        """
        select
          current_setting('role'),
          pg_has_role(%(role)s, 'USAGE')
            -- a membership by itself does not allow it any more
            and pg_has_role(%(role)s, case when current_setting('server_version_num')::int >= 160000 then 'SET' else 'MEMBER' end)
        """,
        {"role": OWNERS},
    ).fetchall()
    if member:
        connection.execute("select set_config('role', %s, true)", (OWNERS,))
    yield
    connection.execute("select set_config('role', %s, true)", (before,))


def _child(model: ReadModel, partition: int) -> str:
    return f"{model.state_table}_p{partition:04}"


def _format(model: ReadModel, statement: str, **names: sql.Composable) -> sql.Composed:
    """Fill in a statement: `{}` is the schema, `{state}`, `{key}`, … what their names say. Values stay parameters."""
    key = ["partition", *model.keys]
    states = model.state_columns
    stored = {s.name: sql.Identifier(s.name) for s in states}
    comma = sql.SQL(", ")
    key_types = {"partition": "int"} | {name: postgres_type(column.type) for name, column in model.keys.items()}
    template = sql.SQL(statement.replace("{}", "{schema}"))
    return template.format(
        schema=sql.Identifier(SCHEMA),
        view=sql.Identifier(model.name),
        state=sql.Identifier(model.state_table),
        staging=sql.Identifier(model.staging_table),
        pkey=sql.Identifier(f"{model.state_table}_pkey"),
        description=sql.Literal(model.description),
        key=comma.join(map(sql.Identifier, key)),
        known_key=comma.join(sql.Identifier("known", n) for n in key),
        same_key=sql.SQL(" and ").join(sql.SQL("s.{0} = touched.{0}").format(sql.Identifier(n)) for n in key),
        columns=comma.join(sql.Identifier(s.name) for s in states),
        known_columns=comma.join(sql.Identifier("known", s.name) for s in states),
        merges=comma.join(
            sql.SQL("{} as {}").format(
                sql.SQL(s.merge).format(column=sql.Identifier(s.name), order=sql.Identifier(f"{s.name}_offset")),
                sql.Identifier(s.name),
            )
            for s in states
        ),
        assignments=comma.join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(s.name)) for s in states),
        definitions=comma.join(
            [
                *(sql.SQL("{} {} not null").format(sql.Identifier(n), sql.SQL(t)) for n, t in key_types.items()),
                *(sql.SQL("{} {}").format(sql.Identifier(s.name), sql.SQL(s.postgres_type)) for s in states),
            ]
        ),
        public_key=comma.join(map(sql.Identifier, model.keys)),
        public=comma.join(
            [
                *map(sql.Identifier, model.keys),
                *(
                    sql.SQL("{} as {}").format(sql.SQL(value).format(**stored), sql.Identifier(name))
                    for name, value in model.public_values.items()
                ),
            ]
        ),
        visible=sql.SQL(model.visible).format(**stored),
        expanded=sql.SQL(model.expanded).format(**stored),
        **names,
    )
