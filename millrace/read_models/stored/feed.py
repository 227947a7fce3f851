"""A read model's changes as events: what became of each public row, in the transaction that changes it.

The events are of decider `model:<name>`, in a stream per key: `inserted`, `updated`, `deleted`, with the row before and
after. A change of many rows is one event `replaced` in each log partition, which begins the next epoch: the rows are to
be read anew, and events of lower epochs no longer count.

Two commits never meet at a key: a key of one stream is of one log partition, whose lease one consumer has, and commits
of other models wait for each other (`merge.lock_rows`). So the rows before and after a merge are its changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
from psycopg import sql

from millrace.event_store.ids import uuid7
from millrace.event_store.json_text import written
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.store import ReadModelStore
from millrace.read_models.stored.tables import listed, view_query

# more keys than this change at once: after an outage, or in a rebuild
MOST_TOLD = 10_000

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]


@contextmanager
def told(
    connection: psycopg.Connection, model: ReadModel, rows: int, fresh: sql.Composable, parameters: Parameters
) -> Iterator[None]:
    """Tell the changes of public rows that the block makes; do nothing for a model without a feed, or that builds.

    Args:
        connection: The connection of the transaction, which holds the rows.
        model: The read model.
        rows: How many fresh rows there are.
        fresh: The fresh rows, an item of a FROM, by which the changed keys are known.
        parameters: Those of `fresh`.
    """
    epoch = ReadModelStore(connection).feed_epoch(model.name, model.version) if model.feed else None
    if epoch is None:
        yield
    elif epoch == 0 or rows > MOST_TOLD:
        yield
        _replace(connection, model)
    else:
        # a time has one text, in streams' names and in rows
        connection.execute("set local timezone to 'UTC'")
        query = _public_rows(model, fresh)
        before = dict[str, str](connection.execute(query, parameters).fetchall())
        yield
        after = dict[str, str](connection.execute(query, parameters).fetchall())
        _tell(connection, model, epoch, before, after)


def tell_replaced(connection: psycopg.Connection, model: ReadModel) -> None:
    """Tell that the rows of a model are to be read anew, if it has a feed and serves."""
    if model.feed and ReadModelStore(connection).feed_epoch(model.name, model.version) is not None:
        _replace(connection, model)


def _replace(connection: psycopg.Connection, model: ReadModel) -> None:
    columns = (*model.keys, *model.public_values)
    ReadModelStore(connection).replace_feed(model.name, model.version, model.public_key, columns)


def _public_rows(model: ReadModel, fresh: sql.Composable) -> sql.Composed:
    return sql.SQL(
        """
        select {key}, to_jsonb(r)::text
        from (select distinct {keys} from {fresh} fresh) touched
        cross join lateral (select * from ({rows}) v where {same_key}) r
        """
    ).format(
        key=key_text(model.public_key),
        keys=listed([*model.keys]),
        fresh=fresh,
        rows=view_query(model),
        same_key=sql.SQL(" and ").join(
            sql.SQL("{} = {}").format(sql.Identifier("v", name), sql.Identifier("touched", name)) for name in model.keys
        ),
    )


def key_text(key: Sequence[str]) -> sql.Composed:
    """Return the text of a row's key in SQL, of the row `r`."""
    return sql.SQL("jsonb_build_array({})::text" if len(key) > 1 else "{}::text").format(listed(key, of="r"))


def _tell(
    connection: psycopg.Connection, model: ReadModel, epoch: int, before: dict[str, str], after: dict[str, str]
) -> None:
    shared = (
        f'"decider": {written(f"model:{model.name}")}, "command_id": "{uuid4()}", "metadata": {{"feed_epoch": {epoch},'
        f' "model_version": {model.version}}}'
    )
    changes = list[str]()
    for key in sorted({*before, *after}):
        one, other = before.get(key), after.get(key)
        if one == other:
            continue
        event = "inserted" if one is None else "deleted" if other is None else "updated"
        changes.append(
            f'{{{shared}, "decider_id": {written(stream_of(key))}, "event": "{event}", "event_id": "{uuid7()}",'
            f' "data": {{"before": {one or "null"}, "after": {other or "null"}}}}}'
        )
    if changes:
        connection.execute("select from event_store.append_events(%s::jsonb)", (f"[{', '.join(changes)}]",))


def stream_of(key: str) -> str:
    """Return the stream of a key's text: that, quoted where that is none of a row, or empty."""
    return written(key) if not key or key[0] in '@"' else key
