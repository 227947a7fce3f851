"""The rows of read models: staged, merged, replaced; with `columns` the third of Millrace's three ideas.

Belongs here: statements on the rows of the state and of the staging table. Not here: the tables themselves
(`tables`), how a column merges (`columns`), the transaction that also moves the position (`consumption.commit`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql

from millrace.resources.errors import MillraceError
from millrace.resources.read_models.declared.columns import within
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.stored.rollup_tables import fill_others, fill_rollups
from millrace.resources.read_models.stored.row_arrays import travelling, unnested
from millrace.resources.read_models.stored.tables import (
    bounds_of,
    child_table,
    listed,
    merged_columns,
    new_child_table,
    owner_of,
    relation,
    state_key,
    state_schema,
    state_types,
    stored_columns,
)

# no store has so many log partitions: parts below this share of a sum's bounds fit together
MOST_PARTS = 10_000
# a batch's rows, of the task attempts that Spark took; others died or came too late
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


def merge_batch(connection: psycopg.Connection, model: ReadModel, batch: int, staged: Sequence[StagedRows]) -> int:
    """Merge a batch's staged rows into the state and return how many rows of the state changed.

    Runs in the caller's transaction, after `commit_batch` has locked and checked the leases.

    Raises:
        StagedRowsLost: A server crash emptied the staging table, or a task reported rows that it did not write.
        psycopg.DataError: A sum does not fit its type, in its log partition or in all of them together.
    """
    _require_staged(connection, model, batch, staged)
    if not staged:
        return 0
    columns = sql.SQL("{}, {}").format(listed(state_key(model)), listed(stored_columns(model)))
    fresh = sql.SQL("(select {columns} from {staging} where {staged})").format(
        columns=columns, staging=relation(model.staging_table), staged=_STAGED
    )
    merged = _merged(connection, model, _merge(model, fresh), fresh, _parameters(batch, staged))
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
    schema = state_schema(model)
    arrays = [travelling(rows.column(name), type_) for name, type_ in schema.items()]
    fresh = sql.SQL("({})").format(unnested(schema, state_types(model)))
    return _merged(connection, model, merge_of_arrays(model), fresh, arrays)


def merge_of_arrays(model: ReadModel) -> sql.Composed:
    """Return the statement of `merge_rows`; its text is the same in each call, so that Postgres plans it once."""
    fresh = sql.SQL("with fresh as materialized ({}) ").format(unnested(state_schema(model), state_types(model)))
    return fresh + _merge(model, sql.SQL("fresh"))


def _merge(model: ReadModel, fresh: sql.Composable) -> sql.Composed:
    """Return the statement that merges fresh rows, an item of a FROM, into the state."""
    key, columns = state_key(model), stored_columns(model)
    return sql.SQL(
        """
        insert into {state} ({key}, {columns})
        select {key}, {merged}
        from (
          select {key}, {columns} from {fresh} fresh
          union all
          select {known_key}, {known_columns}
          from (select distinct {key} from {fresh} fresh) touched
          -- limit 1 keeps this an index probe per touched key, however many rows the model has
          cross join lateral (select * from {state} s where {same_key} limit 1) known
        ) both_sides
        group by {key}
        on conflict ({key}) do update set {assignments}
        {large}
        """
    ).format(
        state=relation(model.state_table),
        fresh=fresh,
        key=listed(key),
        columns=listed(columns),
        merged=merged_columns(model),
        known_key=listed(key, of="known"),
        known_columns=listed(columns, of="known"),
        same_key=sql.SQL(" and ").join(sql.SQL("s.{0} = touched.{0}").format(sql.Identifier(n)) for n in key),
        assignments=sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in columns),
        large=sql.SQL("returning {}").format(_is_large(model)) if model.adds_up_across else sql.SQL(""),
    )


def _merged(
    connection: psycopg.Connection,
    model: ReadModel,
    merge: sql.Composed,
    fresh: sql.Composed,
    parameters: Sequence[object] | Mapping[str, object],
) -> int:
    """Merge fresh rows, an item of a FROM, and return how many rows of the state changed.

    Raises:
        psycopg.DataError: A sum does not fit its type, in its log partition or in all of them together.
    """
    with _key_named(model):
        cursor = connection.execute(merge, parameters)
    if model.adds_up_across:
        if any(is_large for (is_large,) in cursor):
            _note_large(connection, model, relation(model.state_table), fresh, parameters)
        _require_room(connection, model, relation(model.state_table), fresh, parameters)
    return cursor.rowcount


@contextmanager
def _key_named(model: ReadModel) -> Iterator[None]:
    """Name the columns of a key that is too long for its index: Postgres names the index."""
    try:
        yield
    except psycopg.errors.ProgramLimitExceeded as error:
        index, said = error.diag.constraint_name, error.diag.message_primary or ""
        # A rollup's index has a name that says enough. Of 8 kB and more Postgres names no index; a rollup's trigger is
        # the context.
        if not (index.endswith("_pkey") if index else said.endswith("8191") and not error.diag.context):
            raise
        texts = " and ".join(name for name, key in model.keys.items() if key.type == "string")
        raise psycopg.errors.ProgramLimitExceeded(
            f"a key is too long: {texts} of read model {model.name} may have about 2,600 bytes; {error.diag.message_primary}"
        ) from error


def _is_large(model: ReadModel) -> sql.Composed:
    """Return the condition that a part of a sum is so large that the parts of all log partitions may not fit."""
    return sql.SQL(" or ").join(
        sql.SQL("{} not between {} and {}").format(
            sql.Identifier(state.name),
            sql.Literal(state.bounds.least / MOST_PARTS),
            sql.Literal(state.bounds.most / MOST_PARTS),
        )
        for state in model.state_columns
        if state.bounds is not None
    )


def _note_large(
    connection: psycopg.Connection,
    model: ReadModel,
    rows: sql.Composable,
    touched: sql.Composable | None = None,
    parameters: Sequence[object] | Mapping[str, object] = (),
) -> None:
    """Note the keys of large parts, of all rows or those in `touched`: each later merge of these keys looks there."""
    connection.execute(
        sql.SQL(
            # in this order also by another merge, which waits for this one and sees its rows
            "insert into {large} select distinct {keys} from {rows} r where ({is_large}){and_touched}"
            " order by {keys} on conflict do nothing"
        ).format(
            large=relation(model.large_table),
            keys=listed(model.keys),
            rows=rows,
            is_large=_is_large(model),
            and_touched=sql.SQL(" and ({0}) in (select {0} from {1} t)").format(listed(model.keys), touched)
            if touched is not None
            else sql.SQL(""),
        ),
        parameters,
    )


def _require_room(
    connection: psycopg.Connection,
    model: ReadModel,
    parts: sql.Composable,
    touched: sql.Composable,
    parameters: Sequence[object] | Mapping[str, object] = (),
) -> None:
    """Refuse sums that do not fit their types with the parts of all log partitions, of the keys in `touched`."""
    large = relation(model.large_table)
    ((some,),) = connection.execute(sql.SQL("select exists (select from {})").format(large)).fetchall()
    if not some:
        return
    key = sql.SQL("concat_ws(', ', {})").format(listed(model.keys, of="noted"))
    sums = [
        sql.SQL("case when {} then 0 else ({} || {})::int end").format(
            within(state.name, state.bounds),
            sql.Literal(f"{state.bounds.overflow} over all log partitions; declare a wider type or a finer key than "),
            key,
        )
        for state in model.state_columns
        if state.bounds is not None
    ]
    connection.execute(
        sql.SQL(
            """
            select {sums}
            from (
              select {keys} from {large} l where ({keys}) in (select {keys} from {touched} t) order by {keys} for update of l
            ) noted
            -- offset 0 keeps this an index probe per key, however many rows the model has
            cross join lateral (select * from {parts} p where {same_key} offset 0) parts
            group by {noted_keys}
            """
        ).format(
            sums=sql.SQL(", ").join(sums),
            keys=listed(model.keys),
            noted_keys=listed(model.keys, of="noted"),
            large=large,
            touched=touched,
            parts=parts,
            same_key=sql.SQL(" and ").join(sql.SQL("p.{0} = noted.{0}").format(sql.Identifier(n)) for n in model.keys),
        ),
        parameters,
    )


def require_room(connection: psycopg.Connection, model: ReadModel, partitions: Sequence[int], batch: int) -> None:
    """Refuse the tables that `fill_child` filled for a batch if their sums do not fit beside other log partitions'.

    Raises:
        psycopg.DataError: Some sum does not fit its type; the error names the column and the key.
    """
    if not model.adds_up_across:
        return
    columns = sql.SQL("{}, {}").format(listed(state_key(model)), listed(stored_columns(model)))
    kept = sql.SQL("select {} from {} where partition <> all ({}::int[])").format(
        columns, relation(model.state_table), sql.Literal([*partitions])
    )
    filled = [
        sql.SQL("select {} from {}").format(columns, relation(new_child_table(batch, partition)))
        for partition in partitions
    ]
    parts = sql.SQL("({})").format(sql.SQL(" union all ").join([kept, *filled]))
    _require_room(connection, model, parts, relation(model.large_table))


def fill_child(
    connection: psycopg.Connection, model: ReadModel, partition: int, batch: int, staged: Sequence[StagedRows]
) -> int:
    """Make the table that is to be the state of a log partition, fill it from staged rows, return its number of rows.

    Nobody reads the table before `swap_children` puts it in the place of the present one. Its name has the number of
    the batch: a rebuild that lost its lease and goes on fills other tables than the one that has the lease now.
    """
    child, new = child_table(model, partition), relation(new_child_table(batch, partition))
    with connection.transaction():
        # like the child, not the parent: two swaps that both hold the parent would wait for each other
        connection.execute(sql.SQL("create table {} (like {} including all)").format(new, relation(child)))
        # the next login that rebuilds may be another one
        owner = sql.Identifier(owner_of(connection, child))
        connection.execute(sql.SQL("alter table {} owner to {}").format(new, owner))
        key, columns = listed(state_key(model)), listed(stored_columns(model))
        fresh = sql.SQL("from {} where {} and partition = {}").format(
            relation(model.staging_table), _STAGED, sql.Literal(partition)
        )
        # Spark has grouped them: to find no key twice costs little, to merge each row with nothing costs most of a fill
        ((merges,),) = connection.execute(
            sql.SQL("select exists (select {} group by {} having count(*) > 1)").format(fresh, key),
            _parameters(batch, staged),
        ).fetchall()
        with _key_named(model):
            rows = connection.execute(
                sql.SQL("insert into {} ({}, {}) select {}, {} {} {}").format(
                    new,
                    key,
                    columns,
                    key,
                    merged_columns(model) if merges else columns,
                    fresh,
                    sql.SQL("group by {}").format(key) if merges else sql.SQL(""),
                ),
                _parameters(batch, staged),
            ).rowcount
        if model.adds_up_across:
            _note_large(connection, model, new)
        # proves the bounds, so that attaching does not read the table under lock; and names the model that it is for
        connection.execute(
            sql.SQL("alter table {} add constraint {} check (partition = {})").format(
                new, sql.Identifier(bounds_of(model)), sql.Literal(partition)
            )
        )
    return rows


def swap_children(
    connection: psycopg.Connection,
    model: ReadModel,
    partitions: Sequence[int],
    batch: int,
    staged: Sequence[StagedRows],
) -> None:
    """Put the tables that `fill_child` filled for a batch in the place of the present ones, all at once.

    Runs in the caller's transaction, after `commit_batch`. Readers see the old rows until it commits, then the new
    ones. The swaps at the end lock them out, and behind these the groups of rollups that this process does not
    declare. Exception: a REPEATABLE READ transaction that started
    before the tables were filled and first reads the model after the swap sees these log partitions empty, as after
    TRUNCATE.

    Raises:
        StagedRowsLost: As `merge_batch`; what was filled may lack some rows.
        psycopg.DataError: As `require_room`.
        psycopg.errors.LockNotAvailable: Readers held the table for longer than the lock timeout.
    """
    # Staged rows may vanish and never come back: those that are here now were here while the tables were filled.
    _require_staged(connection, model, batch, staged)
    require_room(connection, model, partitions, batch)
    forget_batch(connection, model, batch)
    filled = fill_rollups(connection, model, {one: new_child_table(batch, one) for one in partitions})
    connection.execute("set local lock_timeout = '10s'")
    state, bounds = relation(model.state_table), sql.Identifier(bounds_of(model))
    for partition in partitions:
        child, new = relation(child_table(model, partition)), relation(new_child_table(batch, partition))
        name = sql.Identifier(child_table(model, partition))
        for statement in (
            sql.SQL("alter table {} detach partition {}").format(state, child),
            sql.SQL("drop table {}").format(child),
            sql.SQL("alter table {} rename to {}").format(new, name),
            sql.SQL("alter table {} attach partition {} for values in ({})").format(
                state, child, sql.Literal(partition)
            ),
            sql.SQL("alter table {} drop constraint {}").format(child, bounds),
        ):
            connection.execute(statement)
    fill_others(connection, model, partitions, filled)


def stored_states(model: ReadModel) -> str:
    """Return the query for the states of a fold's streams, as a text that Spark's tasks run.

    Its parameters are arrays of log partitions, deciders and ids; its rows are these with the position and the state.
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


def forget_batch(connection: psycopg.Connection, model: ReadModel, batch: int) -> None:
    """Remove the staged rows of a batch."""
    connection.execute(sql.SQL("delete from {} where batch = %s").format(relation(model.staging_table)), (batch,))


def forget_dead_batches(connection: psycopg.Connection, model: ReadModel) -> None:
    """Remove staged rows that are a day old: no batch runs so long, so their attempts died."""
    connection.execute(
        sql.SQL("delete from {} where staged_at < clock_timestamp() - interval '1 day'").format(
            relation(model.staging_table)
        )
    )


def _require_staged(connection: psycopg.Connection, model: ReadModel, batch: int, staged: Sequence[StagedRows]) -> None:
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
