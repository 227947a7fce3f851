"""The rows of read models: staged, merged, replaced.

Not here: the tables themselves (`tables`), the transaction that also moves the position (`consumption.commit`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql

from millrace.errors import MillraceError
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.feed import told
from millrace.read_models.stored.row_arrays import travelling, unnested
from millrace.read_models.stored.tables import (
    listed,
    merged_columns,
    relation,
    state_key,
    state_schema,
    state_types,
    stored_columns,
)

# the attempt of rows that only name the keys that a rebuild has to look at
_MARK = -1
# a batch's rows, from the task attempts that Spark accepted; other attempts died or came too late
_STAGED = sql.SQL("batch = %(batch)s and attempt = any (%(attempts)s)")


class StagedRowsLost(MillraceError):
    """The staged rows are not those that Spark's tasks reported."""


@dataclass(frozen=True)
class StagedRows:
    """The rows that one Spark task attempt staged for a batch."""

    attempt: int
    rows: int


def next_batch(connection: psycopg.Connection) -> int:
    """Draw a number for a batch of staged rows."""
    row = connection.execute("select nextval('read_models.batch_seq')").fetchone()
    assert row is not None
    return int(row[0])


@dataclass(frozen=True)
class Replaced:
    """The changes that a rebuild of a log partition made to the rows of a read model.

    Attributes:
        rows: How many rows, or parts of rows, the log partition has now.
        gone: How many rows were removed.
        new: How many were added.
        changed: How many have another value.
    """

    rows: int
    gone: int
    new: int
    changed: int

    @property
    def written(self) -> int:
        """How many rows of the state changed."""
        return self.gone + self.new + self.changed


def merge_batch(connection: psycopg.Connection, model: ReadModel, batch: int, staged: Sequence[StagedRows]) -> int:
    """Merge a batch's staged rows into the state and return how many rows of the state changed.

    Runs in the caller's transaction, after `commit_batch` has locked and checked the leases.

    Raises:
        StagedRowsLost: A server crash emptied the staging table, or a task reported rows that it did not write.
    """
    require_staged(connection, model, batch, staged)
    if not staged:
        return 0
    lock_rows(connection, model)
    parameters, rows = _parameters(batch, staged), sum(one.rows for one in staged)
    with told(connection, model, rows, _staged(model), parameters), _key_named(model):
        merged = connection.execute(_merge(model, _staged(model)), parameters).rowcount
    forget_batch(connection, model, batch)
    return merged


def merge_rows(connection: psycopg.Connection, model: ReadModel, rows: pa.Table) -> int:
    """Merge a few rows into the state, without staging them, and return how many rows of the state changed.

    Runs in the caller's transaction, after `commit_batch` has locked and checked the leases.

    Args:
        connection: The connection of that transaction.
        model: The read model.
        rows: Log partition, key and stored columns, in the types of `state_schema`.
    """
    if not len(rows):
        return 0
    lock_rows(connection, model)
    schema = state_schema(model)
    arrays = {name: travelling(rows.column(name), type_) for name, type_ in schema.items()}
    keys = unnested({name: schema[name] for name in model.keys}, state_types(model))
    key_arrays = [arrays[name] for name in model.keys]
    with told(connection, model, len(rows), sql.SQL("({})").format(keys), key_arrays), _key_named(model):
        return connection.execute(merge_of_arrays(model), [*arrays.values()]).rowcount


def lock_rows(connection: psycopg.Connection, model: ReadModel) -> None:
    """Lock the rows of a model with keys that cross streams until the transaction ends; do nothing for other models.

    Without the lock, each of two commits of one key would merge into the row that it sees. So a process calls this
    before it changes such rows; its later statements see the commit before. The lock writes nothing.
    """
    if model.crosses_streams:
        connection.execute(
            "select from read_models.declarations where model = %s and version = %s for no key update",
            (model.name, model.version),
        )


def merge_of_arrays(model: ReadModel) -> sql.Composed:
    """Return the statement of `merge_rows`; its text is the same in each call, so that Postgres plans it once."""
    fresh = sql.SQL("fresh as materialized ({})").format(unnested(state_schema(model), state_types(model)))
    return _merge(model, sql.SQL("fresh"), fresh)


def _merge(model: ReadModel, fresh: sql.Composable, first: sql.Composable | None = None) -> sql.Composed:
    """Return the statement that merges fresh rows, an item of a FROM, into the state, and into its parts if it has any.

    `first` is a WITH query before it.
    """
    merges, state = [first] if first else [], _merge_into(model, model.state_table, fresh)
    if model.crosses_streams:
        merges.append(sql.SQL("parts as ({})").format(_merge_into(model, model.parts_table, fresh)))
    before = sql.SQL("with {} ").format(sql.SQL(", ").join(merges)) if merges else sql.SQL("")
    return sql.SQL("{}{}").format(before, state)


def _merge_into(model: ReadModel, table: str, fresh: sql.Composable) -> sql.Composed:
    key, unique, columns = _key_of(model, table), _unique(model, table), stored_columns(model)
    return sql.SQL(
        """
        insert into {table} ({key}, {columns})
        select {key}, {merged}
        from (
          select {key}, {columns} from {fresh} fresh
          union all
          select {known_key}, {known_columns}
          from (select distinct {unique} from {fresh} fresh) touched
          -- limit 1 keeps this an index probe per touched key, however many rows the model has
          cross join lateral (select * from {table} s where {same_key} limit 1) known
        ) both_sides
        group by {key}
        on conflict ({unique}) do update set {assignments}
        """
    ).format(
        table=relation(table),
        fresh=fresh,
        key=listed(key),
        unique=listed(unique),
        columns=listed(columns),
        merged=merged_columns(model),
        known_key=listed(key, of="known"),
        known_columns=listed(columns, of="known"),
        same_key=_same(unique, "s", "touched"),
        assignments=_assignments(columns),
    )


def _key_of(model: ReadModel, table: str) -> list[str]:
    """Return the columns of a table of rows that are not the stored ones."""
    return [*model.keys] if model.crosses_streams and table == model.state_table else state_key(model)


def _unique(model: ReadModel, table: str) -> list[str]:
    """Return the primary key of a table of rows."""
    return [*model.keys, "partition"] if table == model.parts_table else [*model.keys]


def _same(columns: Sequence[str], one: str, other: str) -> sql.Composed:
    return sql.SQL(" and ").join(
        sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name)) for name in columns
    )


def _assignments(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in columns)


def _staged(model: ReadModel, *, of_partition: bool = False) -> sql.Composed:
    """Return a batch's staged rows, maybe of one log partition, as an item of a FROM."""
    return sql.SQL("(select {}, {} from {} where {}{})").format(
        listed(state_key(model)),
        listed(stored_columns(model)),
        relation(model.staging_table),
        _STAGED,
        sql.SQL(" and partition = %(partition)s" if of_partition else ""),
    )


@contextmanager
def _key_named(model: ReadModel) -> Iterator[None]:
    """Name the columns of a key that is too long for its index: Postgres names the index."""
    try:
        yield
    except psycopg.errors.ProgramLimitExceeded as error:
        index, message = error.diag.constraint_name, error.diag.message_primary or ""
        # The name of a rollup's index says enough. For 8 kB and more Postgres names no index; the context then names a
        # rollup's trigger.
        if not (index.endswith("_pkey") if index else message.endswith("8191") and not error.diag.context):
            raise
        # a row to be merged may as well be too long for a declared index
        what = "a key" if index or not model.indexes else "a key, or a value of an index,"
        texts = " and ".join(name for name, key in model.keys.items() if key.type == "string")
        raise psycopg.errors.ProgramLimitExceeded(
            f"{what} is too long: {texts} of read model {model.name} may have about 2,600 bytes; {error.diag.message_primary}"
        ) from error


def replace_partition(
    connection: psycopg.Connection, model: ReadModel, partition: int, batch: int, staged: Sequence[StagedRows]
) -> Replaced:
    """Replace the rows of a log partition by a batch's staged rows: write the differences, and nothing else.

    Runs in the caller's transaction, after `commit_batch`. Readers are not locked out. If the model's keys cross
    streams, these are parts of rows, and then each row with a changed part is merged from all its parts.

    Raises:
        StagedRowsLost: As `merge_batch`.
    """
    parameters = _parameters(batch, staged) | {"partition": partition}
    # behind a pooler this may be another session than the one before, after a crash that emptied the table
    query = sql.SQL("select exists (select from {} where batch = %(batch)s)").format(relation(model.staging_table))
    if connection.execute(query, parameters).fetchone() == (False,):
        require_staged(connection, model, batch, staged)
    fresh = _staged(model, of_partition=True)
    # Spark has grouped them: to check that no key occurs twice costs little, to merge each row with nothing costs most
    ((rows, merges),) = connection.execute(
        sql.SQL(
            "select count(*), coalesce(max(n) > 1, false) from (select count(*) from {} f group by {}) g(n)"
        ).format(fresh, listed(model.keys)),
        parameters,
    ).fetchall()
    grouped = _grouped(model, state_key(model), fresh, merges=merges)
    target = model.parts_table if model.crosses_streams else model.state_table
    deletion = sql.SQL(
        "delete from {table} t where partition = %(partition)s and not exists (select from {fresh} f where {same_key})"
    ).format(table=relation(target), fresh=fresh, same_key=_same([*model.keys], "f", "t"))
    written = _put(model, target, grouped)
    with _key_named(model):
        if not model.crosses_streams:
            deleted = connection.execute(deletion, parameters).rowcount
            return Replaced(rows, deleted, *_counted(connection, written, parameters))
        for change in (deletion, written):
            connection.execute(_marked(model, change), parameters)
        lock_rows(connection, model)
        touched = sql.SQL(
            "(select distinct {} from {} where batch = %(batch)s and attempt = {} and partition = %(partition)s)"
        ).format(listed(model.keys), relation(model.staging_table), sql.Literal(_MARK))
        parts = sql.SQL("(select p.* from {} touched join {} p on {})").format(
            touched, relation(target), _same([*model.keys], "p", "touched")
        )
        deleted = connection.execute(
            sql.SQL(
                "delete from {state} t using {touched} touched where {same} and not exists (select from {parts} p where {parted})"
            ).format(
                state=relation(model.state_table),
                touched=touched,
                same=_same([*model.keys], "t", "touched"),
                parts=relation(target),
                parted=_same([*model.keys], "p", "t"),
            ),
            parameters,
        ).rowcount
        put = _put(model, model.state_table, _grouped(model, [*model.keys], parts, merges=True))
        return Replaced(rows, deleted, *_counted(connection, put, parameters))


def unmerged_rows(connection: psycopg.Connection, model: ReadModel) -> int:
    """Return how many rows of a model with keys that cross streams differ from the sum of their parts."""
    columns = sql.SQL(", ").join(
        sql.SQL("{0}::text as {0}").format(sql.Identifier(name)) for name in [*model.keys, *stored_columns(model)]
    )
    merged = _grouped(model, [*model.keys], relation(model.parts_table), merges=True)
    query = sql.SQL(
        "with merged as (select {columns} from ({merged}) m), present as (select {columns} from {state})"
        " select count(*) from (select distinct {keys} from ((table merged except all table present) union all"
        " (table present except all table merged)) differing) keys"
    ).format(columns=columns, merged=merged, state=relation(model.state_table), keys=listed(model.keys))
    ((rows,),) = connection.execute(query).fetchall()
    return int(rows)


def try_replacing(connection: psycopg.Connection, model: ReadModel, batch: int, staged: Sequence[StagedRows]) -> None:
    """Write a batch's staged rows over present ones, but remove none, to learn whether Postgres takes them.

    Runs in a transaction that the caller rolls back.
    """
    lock_rows(connection, model)
    for table in [model.state_table, *([model.parts_table] if model.crosses_streams else [])]:
        grouped = _grouped(model, _key_of(model, table), _staged(model), merges=True)
        with _key_named(model):
            connection.execute(_put(model, table, grouped), _parameters(batch, staged))


def _grouped(model: ReadModel, key: Sequence[str], rows: sql.Composable, *, merges: bool) -> sql.Composed:
    """Return the query for one row per key from an item of a FROM."""
    return sql.SQL("select {}, {} from {} r{}").format(
        listed(key),
        merged_columns(model) if merges else listed(stored_columns(model)),
        rows,
        sql.SQL(" group by {}").format(listed(key)) if merges else sql.SQL(""),
    )


def _put(model: ReadModel, table: str, rows: sql.Composable) -> sql.Composed:
    """Return the statement that writes rows with a new key, or with some value that differs."""
    columns, types = stored_columns(model), state_types(model)

    def compared(of: str, name: str) -> sql.Composed:
        # values without an equality, or with one that ignores visible differences, are compared as text
        as_text = re.match("json|double", types[name])
        return sql.SQL("{}::text" if as_text else "{}").format(sql.Identifier(of, name))

    return sql.SQL(
        "insert into {table} as t ({key}, {columns}) {rows} on conflict ({unique}) do update set {assignments}"
        " where ({present}) is distinct from ({wanted})"
    ).format(
        table=relation(table),
        key=listed(_key_of(model, table)),
        columns=listed(columns),
        rows=rows,
        unique=listed(_unique(model, table)),
        assignments=_assignments(columns),
        present=sql.SQL(", ").join(compared("t", name) for name in columns),
        wanted=sql.SQL(", ").join(compared("excluded", name) for name in columns),
    )


def _counted(connection: psycopg.Connection, put: sql.Composed, parameters: Mapping[str, object]) -> tuple[int, int]:
    """Put rows, and return how many were new and how many changed."""
    statement = sql.SQL(
        # a row that was there has the transaction that put another one in its place
        "with put as ({} returning t.xmax = 0 as is_new) select count(*) filter (where is_new), count(*) from put"
    ).format(put)
    ((new, all_),) = connection.execute(statement, parameters).fetchall()
    return new, all_ - new


def _marked(model: ReadModel, change: sql.Composed) -> sql.Composed:
    """Return a change of parts that leaves their keys in the staging table."""
    key = state_key(model)
    return sql.SQL(
        "with changed as ({} returning {}) insert into {} ({}, batch, attempt) select {}, %(batch)s, {} from changed"
    ).format(change, listed(key, of="t"), relation(model.staging_table), listed(key), listed(key), sql.Literal(_MARK))


def stored_states(model: ReadModel) -> str:
    """Return the query for the states of a fold's streams, as a text that Spark's tasks run.

    Its parameters are arrays of log partitions, deciders and ids; its rows add the position and the state to these.
    A task runs it once for the streams of each batch of its events.
    """
    identity = {"decider": sql.SQL("k.decider"), "decider_id": sql.SQL("k.decider_id")}
    return (
        sql.SQL(
            """
            select k.partition, k.decider, k.decider_id, s._position, s._state::text
            from unnest(%(partitions)s::int[], %(deciders)s::text[], %(ids)s::text[]) k(partition, decider, decider_id)
            -- limit 1 keeps this an index probe per stream, however many rows the model has
            cross join lateral (
              select * from {state} s where s.partition = k.partition and {same_stream} limit 1
            ) s
            """
        )
        .format(
            state=relation(model.state_table),
            same_stream=sql.SQL(" and ").join(
                sql.SQL("s.{} = {}").format(sql.Identifier(name), identity[key.source])
                for name, key in model.keys.items()
            ),
        )
        .as_string()
    )


def analyze_staged(connection: psycopg.Connection, model: ReadModel) -> None:
    """Let Postgres know how many rows are staged."""
    connection.execute(sql.SQL("analyze {}").format(relation(model.staging_table)))


def forget_batch(connection: psycopg.Connection, model: ReadModel, batch: int) -> None:
    """Remove the staged rows of a batch."""
    connection.execute(sql.SQL("delete from {} where batch = %s").format(relation(model.staging_table)), (batch,))


def forget_dead_batches(connection: psycopg.Connection, model: ReadModel) -> None:
    """Remove staged rows that are a day old: no batch runs that long, so their attempts died."""
    connection.execute(
        sql.SQL("delete from {} where staged_at < clock_timestamp() - interval '1 day'").format(
            relation(model.staging_table)
        )
    )


def require_staged(connection: psycopg.Connection, model: ReadModel, batch: int, staged: Sequence[StagedRows]) -> None:
    """Refuse staged rows if some vanished: a crash of the server empties the table.

    Raises:
        StagedRowsLost: Some are missing.
    """
    found: dict[int, int] = dict(
        connection.execute(
            sql.SQL("select attempt, count(*) from {} where batch = %s group by attempt").format(
                relation(model.staging_table)
            ),
            (batch,),
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


def _parameters(batch: int, staged: Sequence[StagedRows]) -> dict[str, object]:
    return {"batch": batch, "attempts": [s.attempt for s in staged]}
