"""The declared indexes of a version of a read model: the present ones, the missing ones, and making them.

A new version's indexes are made with its tables. Later changes are made while people read and drains commit, by one
process in the store at a time. An index in the making looks like one of a process that died: a process that drops it
waits for its maker, and all readers wait behind.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from millrace.errors import MillraceError
from millrace.patience import ASK_S
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.indexes import DIGITS, Index
from millrace.read_models.stored.tables import SCHEMA, relation, rows_comment

# Postgres does not name the index of an entry with more bytes than this; the part already stored has up to 2,704 bytes
_NAMELESS, _LEAST_BYTES = "8191", 8_191 - 2_704


# another process is at work, this one is told to stop, or the version is gone
_PASSING = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.QueryCanceled,
    psycopg.errors.UndefinedTable,
)


class IndexFailed(MillraceError):
    """An index of a read model cannot be made or dropped."""


@dataclass(frozen=True)
class StoredIndex:
    """An index of the rows of a read model, except that of its key.

    Attributes:
        name: Its name in the schema `read_models`.
        definition: The part of its definition after USING: the kind, and the columns.
        valid: Whether it is complete; an index in the making, or of a process that died, is not.
        is_declared: Whether a declaration made it, and not a person.
    """

    name: str
    definition: str
    valid: bool
    is_declared: bool


def index_name(model: ReadModel, index: Index) -> str:
    """Return the name of a declared index of a version of a model."""
    return f"{model.state_table}_{index.digits}"


def create_index(model: ReadModel, index: Index, *, concurrently: bool = False) -> sql.Composed:
    """Return the statement that makes a declared index."""
    values = model.public_values
    columns = sql.SQL(", ").join(
        sql.SQL("({})").format(values.get(name, sql.Identifier(name))) for name in index.columns
    )
    return sql.SQL("create index {}{} on {} using {} ({})").format(
        sql.SQL("concurrently " if concurrently else ""),
        sql.Identifier(index_name(model, index)),
        relation(model.state_table),
        sql.SQL(index.using),
        columns,
    )


def stored_indexes(connection: psycopg.Connection, model: ReadModel) -> list[StoredIndex]:
    """Return the indexes of a version of a model, except that of its key, by their names."""
    found = connection.execute(
        """
        select c.relname, substring(pg_get_indexdef(c.oid) from ' USING (.*)'), i.indisvalid
        from pg_index i
        join pg_class c on c.oid = i.indexrelid
        where i.indrelid = to_regclass(%s) and not i.indisprimary
        order by 1
        """,
        (f"{SCHEMA}.{model.state_table}",),
    )
    name_pattern = _name_pattern(model)
    return [
        StoredIndex(name, definition, valid, bool(name_pattern.fullmatch(name))) for name, definition, valid in found
    ]


def given_up(connection: psycopg.Connection, model: ReadModel) -> set[str]:
    """Return the names of the indexes that were given up because a value was too long for them."""
    found = connection.execute(
        "select coalesce(obj_description(to_regclass(%s), 'pg_class'), '')", (f"{SCHEMA}.{model.state_table}",)
    )
    return {name for (comment,) in found for name in _name_pattern(model).findall(comment)}


def are_made(connection: psycopg.Connection, model: ReadModel) -> bool:
    """Return whether `update_indexes` has nothing to do."""
    stored = [one for one in stored_indexes(connection, model) if one.is_declared]
    declared, too_long = {*_declared(model)}, given_up(connection, model)
    return (
        all(one.valid for one in stored)
        and too_long <= declared
        and {one.name for one in stored} == declared - too_long
    )


def are_due(connection: psycopg.Connection, model: ReadModel) -> bool:
    """Return whether `update_indexes` has something to do, and no process makes indexes in this store."""
    if are_made(connection, model):
        return False
    at_work = connection.execute(
        "select exists (select from pg_locks where relation = 'read_models.declarations'::regclass and granted"
        " and mode = 'ShareUpdateExclusiveLock' and database = (select oid from pg_database where datname = current_database()))"
    )
    return at_work.fetchone() == (False,)


@contextmanager
def only_one(connection: psycopg.Connection) -> Iterator[None]:
    """Be the only process that makes indexes in this store.

    The transaction of this connection stays open meanwhile. It has no snapshot and has written nothing: neither vacuum
    nor the making of an index waits for it.

    Raises:
        psycopg.errors.LockNotAvailable: Another process is at work.
    """
    connection.execute("set idle_in_transaction_session_timeout = 0")
    with connection.transaction():
        connection.execute("lock table read_models.declarations in share update exclusive mode nowait")
        yield


def update_indexes(connection: psycopg.Connection, model: ReadModel) -> None:
    """Make the declared indexes of a version of a model, and drop those no longer declared; under `only_one`.

    If it is killed, another call continues.

    Raises:
        IndexFailed: Postgres refuses an index.
        psycopg.errors.LockNotAvailable: The server still makes an index of a process that died.
    """
    declared, table = _declared(model), relation(model.state_table)
    try:
        before = given_up(connection, model)
        if not before <= {*declared}:
            _record_given_up(connection, model, before & {*declared})
        wanted = {name: one for name, one in declared.items() if name not in given_up(connection, model)}
        found = [one for one in stored_indexes(connection, model) if one.is_declared]
        if not all(one.valid for one in found):
            with connection.transaction():
                # a process that makes an index has this lock
                connection.execute(sql.SQL("lock table {} in share update exclusive mode nowait").format(table))
        for one in found:
            if one.name not in wanted or not one.valid:
                connection.execute(_drop(one.name))
        made = {one.name for one in found if one.valid}
        for name, index in wanted.items():
            if name not in made:
                try:
                    connection.execute(create_index(model, index, concurrently=True))
                except psycopg.errors.ProgramLimitExceeded:
                    _give_up(connection, model, [name])
        if made != {*wanted}:
            connection.execute(sql.SQL("analyze {}").format(table))
    except psycopg.Error as error:
        if connection.closed or isinstance(error, _PASSING):
            raise
        raise IndexFailed(
            f"The indexes of read model {model.name} cannot be made: {', '.join(map(str, declared.values())) or 'none'}.",
            detail=str(error).strip(),
            hint="The next drain tries again; `indexes_are_made` says which are missing.",
        ) from error


def give_up_for(connection: psycopg.Connection, model: ReadModel, error: BaseException) -> bool:
    """Drop the indexes that a row is too long for, by the error of its transaction; return whether there is one.

    For a very long row Postgres does not name the index: then all indexes of long values in staged rows are dropped.
    """
    cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
    if not isinstance(cause, psycopg.errors.ProgramLimitExceeded):
        return False
    message = str(cause)
    index_names = [one.name for one in stored_indexes(connection, model) if one.is_declared]
    found = [name for name in index_names if name in message]
    if not found and _NAMELESS in message:
        declared = _declared(model).items()
        found = [name for name, index in declared if name in index_names and _has_long_values(connection, model, index)]
    if not found:
        return False
    (before,) = connection.execute("show lock_timeout").fetchall()
    # a reader may hold the table for long: the batch is claimed again, and then this is tried again
    connection.execute("select set_config('lock_timeout', %s, false)", (f"{ASK_S}s",))
    try:
        # a process that makes an index may wait for a reader meanwhile, and the drops need the lock that it holds
        connection.execute(
            "select pg_cancel_backend(pid) from pg_locks join pg_stat_activity using (pid) where relation = %s::regclass"
            " and mode = 'ShareUpdateExclusiveLock' and granted and query like 'create index concurrently%%'",
            (f"{SCHEMA}.{model.state_table}",),
        )
        _give_up(connection, model, found)
    except psycopg.errors.InsufficientPrivilege:
        return False  # its stream fails
    finally:
        connection.execute("select set_config('lock_timeout', %s, false)", before)
    return True


def _declared(model: ReadModel) -> dict[str, Index]:
    return {index_name(model, one): one for one in model.indexes}


def _name_pattern(model: ReadModel) -> re.Pattern[str]:
    return re.compile(rf"\b{model.state_table}_[0-9a-f]{{{DIGITS}}}\b")


def _give_up(connection: psycopg.Connection, model: ReadModel, names: list[str]) -> None:
    # record it first: a process that dies in between leaves an index that is no longer wanted
    _record_given_up(connection, model, {*names, *given_up(connection, model)})
    for name in names:
        connection.execute(_drop(name))


def _record_given_up(connection: psycopg.Connection, model: ReadModel, names: set[str]) -> None:
    comment = rows_comment(model) + (f" A value is too long for: {', '.join(sorted(names))}." if names else "")
    connection.execute(sql.SQL("comment on table {} is {}").format(relation(model.state_table), sql.Literal(comment)))


def _has_long_values(connection: psycopg.Connection, model: ReadModel, index: Index) -> bool:
    stored, columns = {one.name for one in model.state_columns}, [*index.columns]
    for name in columns:
        # for a computed column, the columns that it is computed from
        columns += [of for of in (model.computed[name].names if name in model.computed else ()) if of not in columns]
    lengths = [sql.SQL("coalesce(octet_length({}::text), 0)").format(sql.Identifier(n)) for n in columns if n in stored]
    found = connection.execute(
        sql.SQL("select exists (select from {} where {} > %s)").format(
            relation(model.staging_table), sql.SQL(" + ").join([sql.SQL("0"), *lengths])
        ),
        (_LEAST_BYTES,),
    )
    return found.fetchone() == (True,)


def _drop(name: str) -> sql.Composed:
    return sql.SQL("drop index concurrently if exists {}").format(relation(name))
