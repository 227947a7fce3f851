"""The tables of rollups, and the triggers that keep them.

A rollup `by_status` of a model's version has
    read_models.by_status               a SQL view that adds up all log partitions, for people to read
    read_models.by_status_state_<hash>  its groups, of each log partition by itself where the rows have one
    read_models.by_status_state_<hash>_all  a SQL view: the groups, computed from all rows
and a function of the table's name, which three triggers on the model's state call: any change of rows changes the
groups, whatever declarations the process has. The hash covers all that decides the groups.
Two commits never meet at a group: for rows of one stream each log partition has its own groups, and one consumer
commits it at a time. Rows that may be of several streams are locked (`merge.lock_rows`), and their groups are whole.
"""

from collections.abc import Iterable
from dataclasses import replace

import psycopg
from psycopg import sql

from millrace.errors import MillraceError
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.rollups import Rollup, name_of
from millrace.read_models.stored.store import ReadModelStore
from millrace.read_models.stored.tables import (
    OWNERS,
    SCHEMA,
    DependentObjects,
    as_owners,
    create_view,
    drop,
    drop_view,
    listed,
    relation,
    stored_columns,
)

_ALL = sql.SQL("")
# the suffix of each trigger's name after the rollup's table, the change, and the rows that the trigger sees
_TRIGGERS = (
    ("", "update", "old table as old_rows new table as new_rows"),
    ("_new", "insert", "new table as new_rows"),
    ("_old", "delete", "old table as old_rows"),
)


class RollupFailed(MillraceError):
    """A rollup cannot be made."""


def declared_rollups(model: ReadModel) -> list[Rollup]:
    """Return the declared rollups of a version of a model."""
    return [replace(one, of=model) for one in model.rollups]


def stored_tables(connection: psycopg.Connection, model: ReadModel) -> list[str]:
    """Return the tables of the present rollups of a version of a model, declared or not."""
    found = connection.execute(
        """
        select t.tgname
        from pg_trigger t
        join pg_proc p on p.oid = t.tgfoid and p.proname = t.tgname and p.pronamespace = 'read_models'::regnamespace
        where t.tgrelid = to_regclass(%s) and t.tgoldtable is not null
        """,
        (f"{SCHEMA}.{model.state_table}",),
    )
    return [table for (table,) in found]


def are_current(connection: psycopg.Connection, model: ReadModel, *, shown: bool) -> bool:
    """Return whether `update_rollups` has nothing to do."""
    wanted, stored = [one.state_table for one in declared_rollups(model)], stored_tables(connection, model)
    if _undeclared(model, stored) or not {*wanted} <= {*stored}:
        return False
    return not shown or all(_is_shown(connection, table) for table in wanted)


def update_rollups(connection: psycopg.Connection, model: ReadModel, *, shown: bool) -> None:
    """Make the declared rollups of a version of a model, fill them, show them to people; drop those that are gone.

    Runs in a transaction that has the model's lock. Until it ends no other session changes a row of that version.

    Raises:
        DependentObjects: Something in the database depends on columns that go.
        RollupFailed: A text is too long for a key, Postgres does not know a zone, or the tables belong to a role that
            the login is not a member of.
        psycopg.errors.LockNotAvailable: Readers held a view, or a commit the rows, for longer than the lock timeout.
    """
    stored = stored_tables(connection, model)
    try:
        for one in declared_rollups(model):
            if one.state_table not in stored:
                _begin(connection, one)
        if shown:
            show_rollups(connection, model)
        _drop(connection, model, _undeclared(model, stored), with_views=True)
    # a text is too long for a key; Postgres does not know a zone; another role's tables
    except (psycopg.errors.ProgramLimitExceeded, psycopg.DataError, psycopg.errors.InsufficientPrivilege) as error:
        raise RollupFailed(
            f"The rollups of read model {model.name} cannot be made of the present rows, or removed.",
            detail=error.diag.message_primary,
            hint=f"Change their declaration, or drain as a member of {OWNERS}; the next drain tries again.",
        ) from error


def show_rollups(connection: psycopg.Connection, model: ReadModel) -> None:
    """Let people read the declared rollups of this version of a model; within a transaction.

    Raises:
        DependentObjects: A read model has that name, and so the view of that name.

    Raises the errors of `create_view`.
    """
    for one in declared_rollups(model):
        if ReadModelStore(connection).model_versions(one.name):
            raise DependentObjects(
                f"Rollup {one.name} of read model {model.name} has the name of another read model that is there.",
                hint="Rename the rollup, or reset that one with the code that declares it: millrace view reset",
            )
        create_view(connection, one)


def mend_rollups(connection: psycopg.Connection, model: ReadModel, partition: int) -> None:
    """Compute the groups of a log partition, or all if keys cross streams, anew if they are not those of its rows.

    Runs in the transaction that rebuilds the log partition. It also mends rollups that other processes declare.
    """
    condition = sql.SQL("" if model.crosses_streams else " where partition = {}").format(sql.Literal(partition))
    for table in stored_tables(connection, model):
        if _differing(connection, model, table, condition):
            connection.execute(sql.SQL("delete from {}{}").format(relation(table), condition))
            computed = sql.SQL("insert into {} select * from {}{}")
            connection.execute(computed.format(relation(table), relation(f"{table}_all"), condition))


def differing_rollups(connection: psycopg.Connection, model: ReadModel) -> dict[str, list[int]]:
    """Return the rollups with groups that differ from those of the present rows, declared or not.

    Each comes with the log partitions of these groups; with none if keys cross streams.
    """
    differing = {}
    for table in stored_tables(connection, model):
        with connection.transaction():
            # this lock first, as when a rollup is dropped; then one statement, as of one moment
            connection.execute(sql.SQL("lock table {} in access share mode").format(relation(model.state_table)))
            found = _differing(connection, model, table)
        if found:
            differing[name_of(table)] = [partition for (partition,) in found if partition is not None]
    return differing


def _differing(
    connection: psycopg.Connection, model: ReadModel, table: str, condition: sql.Composable = _ALL
) -> list[tuple[int | None]]:
    """Return the log partitions of groups that differ from those of the rows; null if keys cross streams."""
    # a group that lost its last row is not in the view
    query = sql.SQL(
        """
        with kept as (select * from {kept}{condition}), computed as (select * from {computed}{condition})
        select distinct {partition} from (
          (select * from kept where _rows <> 0 except all table computed)
          union all (table computed except all select * from kept where _rows <> 0)
        ) differing order by 1
        """
    ).format(
        kept=relation(table),
        computed=relation(f"{table}_all"),
        condition=condition,
        partition=sql.SQL("null::int" if model.crosses_streams else "partition"),
    )
    return connection.execute(query).fetchall()


def drop_rollups(connection: psycopg.Connection, model: ReadModel, *, with_views: bool = False) -> None:
    """Remove the rollups of a version of a model, and the views that show them to people; within a transaction.

    Raises:
        DependentObjects: Something in the database depends on them, such as a view that is to stay.
    """
    _drop(connection, model, stored_tables(connection, model), with_views=with_views)


def _begin(connection: psycopg.Connection, rollup: Rollup) -> None:
    """Begin to keep a rollup."""
    table, rows = relation(rollup.state_table), relation(rollup.of.state_table)
    columns = stored_columns(rollup)
    merge = sql.SQL("insert into {table} as s {groups} on conflict ({key}) do update set {added};")
    parts = {
        "table": table,
        "key": listed([*rollup.keys, *(["partition"] if rollup.adds_up else [])]),
        "added": sql.SQL(", ").join(sql.SQL("{0} = s.{0} + excluded.{0}").format(sql.Identifier(n)) for n in columns),
    }
    new, old = (sql.Identifier("new_rows"), 1), (sql.Identifier("old_rows"), -1)
    body = sql.SQL(
        "\n#variable_conflict use_column\nbegin\n  if tg_op = 'INSERT' then\n    {inserted}\n"
        "  elsif tg_op = 'DELETE' then\n    {deleted}\n  else\n    {updated}\n  end if;\n  return null;\nend\n"
    ).format(
        inserted=merge.format(groups=rollup.groups(new), **parts),
        deleted=merge.format(groups=rollup.groups(old), **parts),
        updated=merge.format(groups=rollup.groups(new, old), **parts),
    )
    trigger = "create trigger {} after {} on {} referencing {} for each statement execute function {}()"
    everything = relation(f"{rollup.state_table}_all")
    with as_owners(connection):
        for statement in (
            sql.SQL(
                "create function {}() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as {}"
            ).format(table, sql.Literal(body.as_string())),
            sql.SQL("comment on function {}() is {}").format(
                table, sql.Literal(f"Adds each change of a row of {rollup.of.name} to its group in {rollup.name}.")
            ),
            sql.SQL("revoke all on function {}() from public").format(table),
            # From here on no other session changes a row until the transaction ends.
            *(
                sql.SQL(trigger).format(
                    sql.Identifier(f"{rollup.state_table}{suffix}"), sql.SQL(change), rows, sql.SQL(referencing), table
                )
                for suffix, change, referencing in _TRIGGERS
            ),
            sql.SQL("create view {} as {}").format(everything, rollup.groups((rows, 1))),
            sql.SQL("create table {} as table {}").format(table, everything),
            sql.SQL("alter table {} add constraint {} unique nulls not distinct ({})").format(
                table, sql.Identifier(f"{rollup.state_table}_key"), parts["key"]
            ),
            # a process that commits rows changes groups, even if another login made the rollup
            sql.SQL("grant select, insert, update, delete on {} to event_store_owner").format(table),
            sql.SQL("comment on table {} is 'Groups; read the view {} instead.'").format(table, sql.SQL(rollup.name)),
        ):
            connection.execute(statement)


def _undeclared(model: ReadModel, stored: Iterable[str]) -> list[str]:
    """Return the tables of rollups that are no longer declared, or declared differently."""
    declared = {one.name: one.state_table for one in declared_rollups(model)}
    return [
        table
        for table in stored
        if table not in declared.values() and (model.all_rollups or name_of(table) in declared)
    ]


def _drop(connection: psycopg.Connection, model: ReadModel, tables: Iterable[str], *, with_views: bool) -> None:
    for table in tables:
        if with_views and _is_shown(connection, table):
            drop_view(connection, replace(model, name=name_of(table)))
        # and its triggers, on any table
        connection.execute(sql.SQL("drop function {}() cascade").format(relation(table)))
        drop(connection, model, sql.SQL("drop view {}").format(relation(f"{table}_all")))
        drop(connection, model, sql.SQL("drop table {}").format(relation(table)))


def _is_shown(connection: psycopg.Connection, table: str) -> bool:
    """Return whether people read a rollup from this table."""
    view = f"{SCHEMA}.{name_of(table)}"
    (shown,) = connection.execute("select strpos(pg_get_viewdef(to_regclass(%s)), %s) > 0", (view, table)).fetchall()
    return shown == (True,)
