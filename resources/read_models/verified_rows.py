"""The rows that one log partition gave to a read model, as they are at its checkpoint, beside those of a rebuild.

Belongs here: keeping a copy of these rows with their position, and comparing it. Not here: the rebuild
(`consumption.as_of`), which model and which log partition (`verification.models`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.tables import child_table, relation, rows_query

LOCK_TIMEOUT = "10s"
EXAMPLES = 5
# goes with the session, however that ends
_COPY = sql.Identifier("pg_temp", "millrace_rows_to_verify")
# Rows of these log partitions are not those of all events below the checkpoint: a stream waits for a retry or was given
# up, or an event of it was discarded, which a rebuild tries again.
_APART = """
    select k.partition from event_store.stream_locks k where k.view = %(view)s
    union
    select event_store.stream_partition(a.detail ->> 'decider_id', (select count(*) from event_store.log_partitions))
    from event_store.audit_log a
    where a.operation = 'discard_dead_letter' and a.view = %(view)s
"""


@dataclass(frozen=True)
class KeptRows:
    """A copy of the rows of one log partition: `rows` of them, of all events below `position`."""

    position: int
    rows: int


@dataclass(frozen=True)
class Compared:
    """How a copy of rows and those of a rebuild differ; a row that changed is in both counts.

    Attributes:
        only_kept: How many rows the rebuild does not have.
        only_rebuilt: How many rows only the rebuild has.
        keys: The keys of some of them.
    """

    only_kept: int
    only_rebuilt: int
    keys: tuple[dict[str, Any], ...]


def comparable_partitions(connection: psycopg.Connection, model: ReadModel) -> list[int]:
    """Return the log partitions whose rows are those of all events below their checkpoints, if there are such events.

    A stream that waits for a retry, that was given up, or of which an event was discarded, makes its log partition
    another case.
    """
    return [
        partition
        for (partition,) in connection.execute(
            sql.SQL(
                """
                select c.partition
                from event_store.checkpoints c
                where c.view = %(view)s and c.position > 0
                except
                select unnest(d.unbuilt) from read_models.declarations d where d.view = %(view)s
                except
                ({})
                order by 1
                """
            ).format(sql.SQL(_APART)),
            {"view": model.view},
        )
    ]


@contextmanager
def kept_rows(connection: psycopg.Connection, model: ReadModel, partition: int) -> Iterator[KeptRows | None]:
    """Copy the rows of a log partition with the position that they are of, for the time of the block.

    None where a stream came to wait for a retry since `comparable_partitions`. The model is read for the time of the
    copy, in one snapshot; the copy is a temporary table of the session.

    Raises:
        psycopg.errors.LockNotAvailable: The table is being replaced, for longer than ten seconds.
        psycopg.errors.UndefinedTable: The version of the model is gone.
    """
    try:
        with connection.transaction():
            connection.execute("set transaction isolation level repeatable read")
            child = child_table(model, partition)
            # Before the snapshot, which a SELECT would take: a rebuild that put another table in its place since then
            # would leave this one without rows.
            connection.execute(sql.SQL("set local lock_timeout = {}").format(LOCK_TIMEOUT))
            connection.execute(sql.SQL("lock table {} in access share mode").format(relation(child)))
            kept = None
            if partition in comparable_partitions(connection, model):
                rows = connection.execute(
                    sql.SQL("create temporary table {} as select to_jsonb(r) as r from ({}) r").format(
                        _COPY, rows_query(model, child)
                    )
                ).rowcount
                (position,) = connection.execute(
                    "select position from event_store.checkpoints where view = %s and partition = %s order by revision desc limit 1",
                    (model.view, partition),
                ).fetchall()[0]
                kept = KeptRows(position, rows)
        yield kept
    finally:
        if not connection.closed:
            connection.execute(sql.SQL("drop table if exists {}").format(_COPY))


def compared(connection: psycopg.Connection, rebuilt: ReadModel, partition: int) -> Compared:
    """Compare the copy of `kept_rows` with the rows of a rebuild of that log partition."""
    only_kept, only_rebuilt, examples = connection.execute(
        sql.SQL(
            """
            with differing as materialized (
              select r, sum(kept) as difference
              from (
                select r, 1 as kept from {copy}
                union all
                select to_jsonb(r), -1 from ({rebuilt}) r
              ) both_sides
              group by r
              having sum(kept) <> 0
            )
            select
              coalesce(sum(difference) filter (where difference > 0), 0)::bigint,
              coalesce(-sum(difference) filter (where difference < 0), 0)::bigint,
              array(
                select distinct jsonb_build_object({keys}) from (select r from differing limit 100) d limit {examples}
              )
            from differing
            """
        ).format(
            copy=_COPY,
            rebuilt=rows_query(rebuilt, child_table(rebuilt, partition)),
            keys=sql.SQL(", ").join(sql.SQL("{0}, r -> {0}").format(sql.Literal(name)) for name in rebuilt.keys),
            examples=sql.Literal(EXAMPLES),
        )
    ).fetchall()[0]
    return Compared(only_kept, only_rebuilt, tuple(examples))
