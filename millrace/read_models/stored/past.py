"""Read models as they were at recorded moments of the log: their list, their names, and their removal."""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from millrace.errors import MillraceError, ViewInUse
from millrace.event_store import LogMark
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.store import ReadModelStore
from millrace.read_models.stored.tables import drop, drop_tables, drop_view, relation
from millrace.read_models.stored.versions import reset_model


@dataclass(frozen=True)
class AsOf:
    """A read model as it was at a moment of the log.

    Attributes:
        name: Its SQL view, in the schema `read_models`.
        model: The read model.
        mark_id: The moment.
        marked_at: The time of that moment.
        fingerprint: The fingerprint of the declaration that it is built by.
        expires_at: The time from which on it may be removed.
        built_at: When it was built; None before.
        rows: How many rows it has; None before it is built.
        failed_streams: How many streams fail at an event, and have nothing from there on; None before it is built.
    """

    name: str
    model: str
    mark_id: int
    marked_at: datetime
    fingerprint: str
    expires_at: datetime
    built_at: datetime | None
    rows: int | None
    failed_streams: int | None


def at_mark(model: ReadModel, mark: LogMark) -> ReadModel:
    """Return a model with its tables and its view as of a moment."""
    return renamed(model, f"{model.name}_at_{mark.mark_id}")


def all_as_of(connection: psycopg.Connection, model: str) -> list[AsOf]:
    """Return the models as of moments of one model, the oldest moment first."""
    with connection.cursor(row_factory=class_row(AsOf)) as cursor:
        return cursor.execute("select * from read_models.as_of where model = %s order by mark_id", (model,)).fetchall()


def log_mark(connection: psycopg.Connection, mark_id: int) -> LogMark | None:
    """Return a recorded moment of the log by its number; None where there is none."""
    with connection.cursor(row_factory=class_row(LogMark)) as cursor:
        return cursor.execute("select * from event_store.log_marks where mark_id = %s", (mark_id,)).fetchone()


def first_marked_at(connection: psycopg.Connection) -> datetime | None:
    """Return the time of the first recorded moment of the log; None where there is none."""
    row = connection.execute("select min(marked_at) from event_store.log_marks").fetchone()
    return row[0] if row else None


def record_wanted(connection: psycopg.Connection, model: ReadModel, mark: LogMark, keep: timedelta) -> AsOf:
    """Record that a model is wanted as of a moment, for `keep` from now; an earlier record is kept as long, or longer.

    Tables that another declaration built are removed.
    """
    past_model = at_mark(model, mark)
    with connection.transaction():
        ReadModelStore(connection).lock_model(past_model.name)
        earlier = next((each for each in all_as_of(connection, model.name) if each.name == past_model.name), None)
        if earlier is not None and earlier.fingerprint != model.fingerprint:
            _remove(connection, earlier.name)
        with connection.cursor(row_factory=class_row(AsOf)) as cursor:
            record = cursor.execute(
                """
                insert into read_models.as_of as a (name, model, mark_id, marked_at, fingerprint, expires_at)
                values (%s, %s, %s, %s, %s, clock_timestamp() + %s)
                on conflict (name) do update set expires_at = greatest(a.expires_at, excluded.expires_at)
                returning *
                """,
                (past_model.name, model.name, mark.mark_id, mark.marked_at, model.fingerprint, keep),
            ).fetchone()
    assert record is not None
    return record


def count_rows(connection: psycopg.Connection, past_model: ReadModel) -> int:
    """Return how many rows a reader can select; the state may have a key once for each log partition."""
    ((rows,),) = connection.execute(sql.SQL("select count(*) from {}").format(relation(past_model.name))).fetchall()
    return int(rows)


def record_built(
    connection: psycopg.Connection, record: AsOf, past_model: ReadModel, rows: int, failed_streams: int
) -> None:
    """Record that a model is built as of a moment: it is no longer consumed as a view of the event store."""
    # if this process was stopped meanwhile, another declaration may have taken its place
    built = (
        "update read_models.as_of set built_at = coalesce(built_at, clock_timestamp()), rows = %s, failed_streams = %s"
        " where name = %s and fingerprint = %s"
    )
    if connection.execute(built, (rows, failed_streams, record.name, record.fingerprint)).rowcount:
        remove_view(connection, past_model.name)


def remove_view(connection: psycopg.Connection, name: str) -> None:
    """Remove the view of a built model, after a try to build it; among concurrent processes the last one does."""
    with suppress(ViewInUse), connection.transaction():
        models = ReadModelStore(connection)
        models.lock_model(name)
        for version in models.model_versions(name):
            models.drop_version(name, version.version)
            PlatformStore(connection).unregister_view(version.view, f"read model {name} is built")


def remove_expired(connection: psycopg.Connection) -> list[str]:
    """Remove expired models and diffs, except those that are built or read at this moment; return the names."""
    query = "select name from {} where expires_at <= clock_timestamp()"
    expired_ones = " union all ".join(query.format(table) for table in ("read_models.as_of", "read_models.diffs"))
    removed = []
    for (name,) in connection.execute(expired_ones.encode()).fetchall():
        try:
            with connection.transaction():
                connection.execute("set local lock_timeout = '1s'")
                ReadModelStore(connection).lock_model(name)
                # by now it may be kept longer, or be gone
                if (name,) in connection.execute(expired_ones.encode()).fetchall():
                    _remove(connection, name)
                    removed.append(name)
        except (MillraceError, psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
            continue  # the next call removes it, or a call by its owner
    return removed


def remove_now(connection: psycopg.Connection, name: str) -> None:
    """Remove one that is no longer wanted, even before it expires.

    Raises:
        MillraceError: It is being built.
    """
    with connection.transaction():
        ReadModelStore(connection).lock_model(name)
        _remove(connection, name)


def is_beside(connection: psycopg.Connection, name: str) -> bool:
    """Return whether a model as of a moment, or a comparison, has this name."""
    return bool(_found(connection, name))


def remove_begun(connection: psycopg.Connection, name: str) -> None:
    """Remove one after its build failed, unless another process builds or has ended it, or the store is gone."""
    with suppress(MillraceError, psycopg.Error), connection.transaction():
        ReadModelStore(connection).lock_model(name)
        if _found(connection, name) == [(None,)]:
            _remove(connection, name)


def _found(connection: psycopg.Connection, name: str) -> list[tuple[datetime | None]]:
    """Return when the model as of a moment, or the comparison, of a name was done, if there is one."""
    query = "select built_at from read_models.as_of where name = %(name)s"
    query += " union all select compared_at from read_models.diffs where name = %(name)s"
    return connection.execute(query.encode(), {"name": name}).fetchall()


def _remove(connection: psycopg.Connection, name: str) -> None:
    # the tables' names follow from the model's name
    past_model = renamed(ReadModel(name, name, "", {}, {}), name)
    diff = connection.execute(
        "delete from read_models.diffs where name = %s returning compared_at is not null", (name,)
    ).fetchone()
    if diff is not None:
        drop(
            connection,
            past_model,
            sql.SQL("drop table if exists {}").format(relation(name if diff[0] else f"{name}_before")),
        )
    reset_model(connection, past_model)
    # those of a built model, which is no longer a version
    drop_view(connection, past_model)
    drop_tables(connection, past_model)
    connection.execute("delete from read_models.as_of where name = %s", (name,))


def renamed(model: ReadModel, name: str) -> ReadModel:
    """Return a model with tables and a view of another name, without lookups: other models' rows are not of then."""
    return replace(model, name=name, view=name, lookups={}, indexes=(), feed=False)
