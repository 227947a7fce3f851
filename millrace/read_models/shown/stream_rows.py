"""The rows that a read model made of one stream, or the reason why it shows none."""

from dataclasses import dataclass

import psycopg
from psycopg import sql

from millrace.patience import BUSY_S
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.tables import relation


@dataclass(frozen=True)
class StreamRows:
    """A read model's rows of a stream.

    Attributes:
        model: The read model.
        rows: Its rows, each a JSON object, in the order of its key.
        note: A remark for readers of the rows, or why they cannot be shown; None for no remark.
    """

    model: str
    rows: tuple[str, ...] = ()
    note: str | None = None


def wants_decider(model: ReadModel, decider: str) -> bool:
    """Return whether a model takes events of a decider."""
    return model.deciders is None or decider in model.deciders


def rows_of_stream(
    connection: psycopg.Connection, model: ReadModel, decider: str, decider_id: str, limit: int
) -> StreamRows:
    """Return up to `limit` rows of a stream, as the model's SQL view has them.

    It runs in the caller's transaction, or in one of its own. A model that cannot be read gives a note, not an error.
    """
    if model.crosses_streams:
        key = ", ".join(f"{name} from {each.in_words}" for name, each in model.keys.items())
        return StreamRows(model.name, note=f"Not shown: its key is {key}, so a row may be of several streams.")
    stream = {"decider_id": decider_id, "decider": decider}
    keys = {name: stream[key.source] for name, key in model.keys.items() if key.source in stream}
    query = sql.SQL("select row_to_json(m)::text from {} m where {} order by {} limit {}").format(
        relation(model.name),
        sql.SQL(" and ").join(sql.SQL("m.{} = {}").format(sql.Identifier(name), sql.Placeholder()) for name in keys),
        sql.SQL(", ").join(sql.SQL("m.{}").format(sql.Identifier(name)) for name in model.keys),
        sql.Literal(limit + 1),
    )
    try:
        with connection.transaction():
            connection.execute("select set_config('statement_timeout', %s, true)", (f"{BUSY_S}s",))
            found = tuple(row for (row,) in connection.execute(query, tuple(keys.values())))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return StreamRows(model.name, note="Not shown: it has no table yet. Its first drain makes it.")
    except psycopg.errors.InsufficientPrivilege:
        return StreamRows(model.name, note="Not shown: this login may not read it.")
    except psycopg.errors.UndefinedColumn:
        return StreamRows(model.name, note="Not shown: its declaration changed, and the new version is not built yet.")
    except psycopg.errors.QueryCanceled:
        return StreamRows(model.name, note=f"Not shown: reading it took longer than {BUSY_S}s.")
    notes = []
    if len(found) > limit:
        notes.append(f"The first {limit} rows.")
    if (model.deciders is None or len(model.deciders) > 1) and "decider" not in {k.source for k in model.keys.values()}:
        notes.append("Streams of other deciders with this id are in the same rows.")
    return StreamRows(model.name, found[:limit], " ".join(notes) or None)
