"""The tables and views of read models, made from their declarations: their names, their owner, their readers.

A model `orders` has
    read_models.orders          a SQL view of the state's public values, for people to read
    read_models.orders_state    one row per key: its stored values. If the key is of one stream, the log partition of
        that stream is a column
    read_models.orders_state_parts  if a row may be of several streams: the part of each log partition in it
    read_models.orders_staging  unlogged: rows that Spark's tasks wrote and no commit has merged yet
and a later version 2 has tables of its own, `orders_state_v2`, `orders_state_v2_parts` and `orders_staging_v2`.
One log partition's rows, or parts, can be replaced alone.

They belong to the role event_store_owner where the login that makes them is a member, so that every member can
rebuild and reset them: changing rows and dropping take ownership.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.column_types import postgres_type
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.lookups import with_lookups

SCHEMA = "read_models"
OWNERS = "event_store_owner"
# the rows of a table up to this size are counted
_COUNTED_BYTES = 8 * 1024 * 1024


class HistoryMissing(MillraceError):
    """The log no longer holds its first events, so a model cannot be built from them."""


class NotOwned(MillraceError):
    """The model's tables belong to a role that the login is not a member of."""


class LookupFailed(MillraceError):
    """A model looks up another one that has no view yet, lacks that column, or looks up this model."""


class DependentObjects(MillraceError):
    """Something in the database depends on a model's view or tables, which are to change or to be removed."""


def relation(name: str) -> sql.Identifier:
    """Return a table or view of the schema `read_models`."""
    return sql.Identifier(SCHEMA, name)


def listed(names: Iterable[str], of: str | None = None) -> sql.Composed:
    """Return column names with commas between them, each of the table alias `of` if there is one."""
    return sql.SQL(", ").join(sql.Identifier(of, name) if of else sql.Identifier(name) for name in names)


def state_key(model: ReadModel) -> list[str]:
    """Return the log partition and the key, which identify staged rows."""
    return ["partition", *model.keys]


def stored_columns(model: ReadModel) -> list[str]:
    """Return the other columns of the model's state and of its staged rows."""
    return [column.name for column in model.state_columns]


def state_schema(model: ReadModel) -> dict[str, str]:
    """Return the columns of a row of the model's state with their Spark types, in order."""
    keys = {"partition": "int"} | {name: key.type for name, key in model.keys.items()}
    return keys | {column.name: column.spark_type for column in model.state_columns}


def state_types(model: ReadModel) -> dict[str, str]:
    """Return the columns of a row of the model's state with their Postgres types, in order."""
    keys = {"partition": "int"} | {name: postgres_type(key.type) for name, key in model.keys.items()}
    return keys | {column.name: column.postgres_type for column in model.state_columns}


def merged_columns(model: ReadModel) -> sql.Composed:
    """Return the aggregates that merge partial values, each named as its column, for a SELECT that groups by key."""
    return sql.SQL(", ").join(
        sql.SQL("{} as {}").format(column.merge, sql.Identifier(column.name)) for column in model.state_columns
    )


def wait_for_locks_at_most(connection: psycopg.Connection, longest_s: float, *, always: bool = False) -> None:
    """Let statements that wait longer for a lock fail: until the transaction ends, or always.

    They raise psycopg's LockNotAvailable.
    """
    connection.execute("select set_config('lock_timeout', %s, %s)", (f"{longest_s}s", not always))


def require_whole_log(connection: psycopg.Connection, partition: int | None = None) -> None:
    """Refuse to build from a log partition (None: from any) that was shortened: the model's numbers would be wrong.

    Raises:
        HistoryMissing: A log partition was shortened.
    """
    shortened = [held for held in PlatformStore(connection).available_offset_range(partition) if held.earliest_position]
    if shortened:
        raise HistoryMissing(
            "The log does not hold its first events any more, and a read model counts them all.",
            detail=", ".join(
                f"log partition {held.partition} begins at {held.earliest_position}" for held in shortened
            ),
            hint="Put the deleted events back from where they are archived; read models that are built already go on.",
        )


def require_ownership(connection: psycopg.Connection, model: ReadModel) -> None:
    """Refuse to change or drop tables of a role that the login is not a member of, before anything is built for them.

    Raises:
        NotOwned: A table or the view belongs to such a role.
    """
    owners = [
        owner
        for (owner,) in connection.execute(
            """
            select distinct pg_get_userbyid(c.relowner)
            from pg_class c
            where c.relnamespace = %(schema)s::regnamespace and c.relname = any (%(names)s)
              and not pg_has_role(c.relowner, 'USAGE')
            order by 1
            """,
            {"schema": SCHEMA, "names": [model.name, model.state_table, model.staging_table, model.parts_table]},
        )
    ]
    if owners:
        raise NotOwned(
            f"The tables of read model {model.name} belong to {', '.join(owners)}.",
            detail=f"{connection.info.user} is no member of that role; a rebuild, a reset and a new version take ownership.",
            hint=f"Do it as {owners[0]}. Or as {owners[0]} run `millrace view reset {model.name}`, and let a member of {OWNERS} "
            "build the model anew: then it belongs to all members.",
        )


def create_tables(connection: psycopg.Connection, model: ReadModel) -> None:
    """Make the tables of a version of the model; within a transaction."""
    keys, key, types = [*model.keys], state_key(model), state_types(model)
    of_key = {name: type_ for name, type_ in types.items() if name != "partition"}
    with as_owners(connection):
        if model.crosses_streams:
            # the key leads: a merge looks up all parts of one key
            comment = "What each log partition gave to a row of {}; read the view instead."
            _create_rows(connection, model.parts_table, types, [*keys, "partition"], comment.format(model.name))
        _create_rows(
            connection,
            model.state_table,
            of_key if model.crosses_streams else types,
            keys,
            rows_comment(model),
        )
        staging = relation(model.staging_table)
        for statement in (
            sql.SQL(
                "create unlogged table {} ({}, batch bigint not null, attempt bigint not null,"
                " staged_at timestamptz not null default clock_timestamp())"
            ).format(staging, _column_definitions(types | {c.name: c.staged_type for c in model.state_columns}, key)),
            sql.SQL("create index on {} (batch, partition)").format(staging),
            sql.SQL("comment on table {} is 'Rows that Spark''s tasks wrote and no commit has merged yet.'").format(
                staging
            ),
        ):
            connection.execute(statement)


def rows_comment(model: ReadModel) -> str:
    """Return the comment on the table of a model's rows."""
    return f"The stored rows of {model.name}; read the view instead."


def _create_rows(
    connection: psycopg.Connection, name: str, types: Mapping[str, str], key: Sequence[str], comment: str
) -> None:
    """Make a table of rows with a key. A fifth of each page is free: a changed row finds room beside the one before."""
    table = relation(name)
    for statement in (
        sql.SQL("create table {} ({}, constraint {} primary key ({})) with (fillfactor = 80)").format(
            table, _column_definitions(types, ["partition", *key]), sql.Identifier(f"{name}_pkey"), listed(key)
        ),
        # also if the login that makes them is not the one that migrates
        sql.SQL("grant select on {} to event_store_reader").format(table),
        sql.SQL("comment on table {} is {}").format(table, sql.Literal(comment)),
    ):
        connection.execute(statement)


def _column_definitions(types: Mapping[str, str], keys: Collection[str] = ()) -> sql.Composed:
    """Return columns with their types; those of the key are not null."""
    return sql.SQL(", ").join(
        sql.SQL("{} {}{}").format(sql.Identifier(name), sql.SQL(type_), sql.SQL(" not null" if name in keys else ""))
        for name, type_ in types.items()
    )


def drop_tables(connection: psycopg.Connection, model: ReadModel) -> None:
    """Remove the tables of a version of the model that the model's view does not show; within a transaction.

    Raises:
        DependentObjects: Something in the database depends on them.
    """
    # the last two are of the first layout: a killed rebuild left tables with a constraint of this name
    leftovers = connection.execute(
        "select c.relname from pg_constraint b join pg_class c on c.oid = b.conrelid"
        " where b.conname = %s and c.relnamespace = %s::regnamespace",
        (f"{model.state_table}_bounds", SCHEMA),
    )
    former_tables = [f"{model.state_table}_large", *(name for (name,) in leftovers.fetchall())]
    for table in (model.state_table, model.parts_table, model.staging_table, *former_tables):
        drop(connection, model, sql.SQL("drop table if exists {}").format(relation(table)))


def create_view(connection: psycopg.Connection, model: ReadModel) -> None:
    """Make the SQL view that people read, or let it show this version of the model from now on; within a transaction.

    All roles that may read the view may still read it, even if the view has other columns now.

    Raises:
        DependentObjects: The view has other columns, and something in the database depends on the present ones.
        LookupFailed: A model that it looks up has no view yet, lacks that column, or shows columns of this one.
        psycopg.errors.LockNotAvailable: Readers held the view for longer than the lock timeout.
    """
    view = relation(model.name)
    query = with_lookups(view_query(model), model.lookups)
    statement = sql.SQL("create or replace view {} as {}").format(view, query)
    try:
        with connection.transaction():
            connection.execute(statement)
        # no other view that reads this one can have been made meanwhile: of two concurrent ones Postgres refuses one
        _require_no_circle(connection, model)
    except psycopg.errors.InvalidTableDefinition:
        grants = _grants(connection, model.name, model.public_columns())
        # their locks first: their switches have ended, or wait; reading their queries keeps them unchanged
        for name in sorted(_looking_up(connection, model)):
            connection.execute("select event_store_platform.lock_model(%s)", (name,))
        _require_no_circle(connection, model)
        with _others_dropped(connection, model):
            drop_view(connection, model)
            connection.execute(statement)
            for grant in grants:
                connection.execute(grant)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        others = ", ".join(dict.fromkeys(one.model for one in model.lookups.values()))
        raise LookupFailed(
            f"Read model {model.name} looks up {others}, which does not show all that it looks up yet.",
            detail=error.diag.message_primary,
            hint=f"The next drain tries again: drain {others} first. In a test, build {others} first: given(…).when(…).",
        ) from error
    owner = sql.Identifier(owner_of(connection, model.state_table))
    # it reads the tables with its owner's rights
    connection.execute(sql.SQL("alter view {} owner to {}").format(view, owner))
    connection.execute(sql.SQL("grant select on {} to event_store_reader").format(view))
    connection.execute(sql.SQL("comment on view {} is {}").format(view, sql.Literal(model.description)))


def _require_no_circle(connection: psycopg.Connection, model: ReadModel) -> None:
    """Refuse to look up a model with a present view that looks this one up: reading either would raise an error."""
    others = {one.model for one in model.lookups.values()}
    for other in others & {*_looking_up(connection, model)}:
        raise LookupFailed(
            f"Read model {model.name} looks up {other}, whose view still shows what {model.name} has.",
            hint=f"The next drain tries again: let a version of {other} serve that does not.",
        )


def _looking_up(connection: psycopg.Connection, model: ReadModel) -> list[str]:
    """Return the read models that look up a model, directly or through others; each after those that it looks up."""
    found = connection.execute(
        """
        with recursive above(oid, depth) as (
          select to_regclass(%s)::oid, 0
          union
          select r.ev_class, a.depth + 1
          from above a
          join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = a.oid and d.classid = 'pg_rewrite'::regclass
          join pg_rewrite r on r.oid = d.objid and r.ev_class <> a.oid
        ) cycle oid set is_again using way
        select c.relname
        from above
        join pg_class c using (oid)
        where depth > 0 and c.relnamespace = 'read_models'::regnamespace
          and c.relname in (select model from read_models.declarations)
        group by c.relname
        order by max(depth)
        """,
        (f"{SCHEMA}.{model.name}",),
    )
    return [name for (name,) in found]


@contextmanager
def _others_dropped(connection: psycopg.Connection, model: ReadModel) -> Iterator[None]:
    """Drop the views that look up a model, and make them again, unchanged, over its new one."""
    above: list[tuple[str, tuple[sql.Composed, ...]]] = []
    for name in _looking_up(connection, model):
        found = connection.execute(
            """
            select
              pg_get_viewdef(oid), pg_get_userbyid(relowner), obj_description(oid),
              array(select attname::text from pg_attribute where attrelid = c.oid and attnum > 0)
            from pg_class c
            where oid = %s::regclass
            """,
            (f"{SCHEMA}.{name}",),
        ).fetchone()
        assert found is not None
        query, owner, comment, columns = found
        statements = (
            sql.SQL("create view {} as {}").format(relation(name), sql.SQL(query)),
            sql.SQL("alter view {} owner to {}").format(relation(name), sql.Identifier(owner)),
            sql.SQL("comment on view {} is {}").format(relation(name), sql.Literal(comment)),
            *_grants(connection, name, columns),
        )
        above.append((name, statements))
    for name, _ in reversed(above):
        drop(connection, model, sql.SQL("drop view {}").format(relation(name)))
    yield
    for name, (create, *others) in above:
        try:
            connection.execute(create)
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction) as error:
            raise DependentObjects(
                f"Read model {name} looks up a column that the new version of read model {model.name} does not have, or has with another type.",
                detail=error.diag.message_primary,
                hint=f"Take that lookup out of {name}, and let its new version serve; the next drain tries again.",
            ) from error
        for statement in others:
            connection.execute(statement)


def view_query(model: ReadModel) -> sql.Composed:
    """Return the query of the public view: over the state; for a rollup, the sums of its log partitions' groups."""
    keys = listed(model.keys)
    public = sql.SQL(", ").join(
        [
            *map(sql.Identifier, model.keys),
            *(sql.SQL("{} as {}").format(value, sql.Identifier(name)) for name, value in model.public_values.items()),
        ]
    )
    state = relation(model.state_table)
    if not model.adds_up:
        return sql.SQL("select {} from {}{} where {}").format(public, state, model.expanded, model.visible)
    return sql.SQL(
        "select {public} from (select {keys}, {merged} from {state} group by {keys}) merged where {visible}"
    ).format(public=public, keys=keys, merged=merged_columns(model), state=state, visible=model.visible)


def owner_of(connection: psycopg.Connection, table: str) -> str:
    """Return the role that a table of the schema `read_models` belongs to."""
    row = connection.execute(
        "select pg_get_userbyid(relowner) from pg_class where oid = to_regclass(%s)", (f"{SCHEMA}.{table}",)
    ).fetchone()
    assert row is not None
    return str(row[0])


def rows_and_bytes(connection: psycopg.Connection, model: ReadModel) -> tuple[int, int]:
    """Return the rows of a version of a model (an estimate by Postgres if large), and their bytes with indexes."""
    found = connection.execute(
        "select pg_relation_size(t) > %s, pg_stat_get_live_tuples(t), pg_total_relation_size(t)"
        " + coalesce(pg_total_relation_size(to_regclass(%s)), 0) from to_regclass(%s) t",
        (_COUNTED_BYTES, f"{SCHEMA}.{model.parts_table}", f"{SCHEMA}.{model.state_table}"),
    )
    ((is_large, rows, size),) = found.fetchall()
    if not is_large:
        # statistics come a moment after the first rows
        ((rows,),) = connection.execute(
            sql.SQL("select count(*) from {}").format(relation(model.state_table))
        ).fetchall()
    return rows, size


def drop_view(connection: psycopg.Connection, model: ReadModel) -> None:
    """Remove the SQL view that people read; within a transaction.

    Raises:
        DependentObjects: Something in the database depends on it.
    """
    drop(connection, model, sql.SQL("drop view if exists {}").format(relation(model.name)))


def drop(connection: psycopg.Connection, model: ReadModel, statement: sql.Composed) -> None:
    """Execute a statement that drops a view or a table of the model; within a transaction.

    Raises:
        DependentObjects: Something in the database depends on it, or another role owns it.
    """
    try:
        with connection.transaction():
            connection.execute(statement)
    except psycopg.errors.DependentObjectsStillExist as error:
        others = _looking_up(connection, model)
        if others:
            raise DependentObjects(
                f"Read model {model.name} cannot be removed: {', '.join(others)} looks it up.",
                detail=error.diag.message_detail,
                hint=f"Take the lookup out of the declaration of {others[0]}, or remove that one first:"
                f" millrace view reset {shlex.quote(others[-1])}",
            ) from error
        raise DependentObjects(
            f"The view or a table of read model {model.name} cannot be replaced: other objects depend on it.",
            detail=error.diag.message_detail,
            hint="Drop them, try again (the next drain does), and create them anew.",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise DependentObjects(
            f"The view or a table of read model {model.name} cannot be replaced: another role owns it, or what looks it up.",
            detail=error.diag.message_primary,
            hint=f"Drain as a member of {OWNERS}; the next drain tries again.",
        ) from error


def _grants(connection: psycopg.Connection, view: str, columns: Iterable[str]) -> list[sql.Composed]:
    """Return statements that repeat the grants on a view, for the columns that the new view has."""
    granted = connection.execute(
        """
        select
          a.privilege_type, c.attname, case a.grantee when 0 then null else pg_get_userbyid(a.grantee) end,
          a.is_grantable
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
        {"view": f"{SCHEMA}.{view}", "columns": [*columns]},
    ).fetchall()
    return [
        sql.SQL("grant {}{} on {} to {}{}").format(
            sql.SQL(privilege),
            sql.SQL(" ({})").format(sql.Identifier(column)) if column else sql.SQL(""),
            relation(view),
            sql.Identifier(grantee) if grantee else sql.SQL("public"),
            sql.SQL(" with grant option" if grantable else ""),
        )
        for privilege, column, grantee, grantable in granted
    ]


@contextmanager
def as_owners(connection: psycopg.Connection) -> Iterator[None]:
    """Let new tables and views belong to the role of all owners, if the login is a member; within a transaction."""
    (former_role, member), *_ = connection.execute(
        """
        select
          current_setting('role'),
          pg_has_role(%(role)s, 'USAGE')
            -- a membership by itself does not allow it any more
            and pg_has_role(
              %(role)s, case when current_setting('server_version_num')::int >= 160000 then 'SET' else 'MEMBER' end
            )
        """,
        {"role": OWNERS},
    ).fetchall()
    if member:
        connection.execute("select set_config('role', %s, true)", (OWNERS,))
    yield
    connection.execute("select set_config('role', %s, true)", (former_role,))
