"""Readers of a model when another version begins to serve: their privileges, and objects that depend on the view."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from millrace.resources.read_models import versions as read_model_versions
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.tables import DependentObjects
from millrace.resources.read_models.versions import (
    attach_version,
    current_version,
    drop_unused_versions,
    ensure_version,
    is_ready_to_serve,
    reset_model,
    serve_if_caught_up,
)
from tests.support.building.drains import (
    drain,
    fill,
    held,
    observer,
    rows_of,
    things,
)
from tests.support.building.model_versions import EventsOf, Latest, Wider, built, columns, consume, relations
from tests.support.factories import Connect, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["built", "observer", "things"]


@contextmanager
def roles(connection: psycopg.Connection, *names: str) -> Iterator[None]:
    for name in names:
        connection.execute(f"create role {name}".encode())
    try:
        yield
    finally:
        connection.execute("reset role")
        drop_roles(connection, names)


def drop_roles(connection: psycopg.Connection, names: Sequence[str]) -> None:
    for name in names:
        connection.execute(f"drop owned by {name}".encode())
        connection.execute(f"drop role {name}".encode())


def privileges(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    """Return the privileges on the view and its columns, except its owner's."""
    return rows(
        connection,
        """
        select grantee::text, column_name::text, privilege_type::text, is_grantable::text
        from information_schema.column_privileges p
        where table_schema = 'read_models' and table_name = 'everything' and column_name in ('thing_id', 'status')
          and grantee not in (select rolname from pg_roles r join pg_class c on c.relowner = r.oid where c.relname = table_name)
        order by 1, 2, 3
        """,
    )


@pytest.mark.parametrize("after", [Latest, Wider])
@pytest.mark.usefixtures("built")
def test_who_may_read_the_old_version_may_read_the_new_one(things: EventStore, after: ReadModel) -> None:
    connection = things.connection
    with roles(connection, "analyst", "lead", "clerk"):
        connection.execute("grant select on read_models.everything to analyst, public")
        connection.execute("grant select on read_models.everything to lead with grant option")
        connection.execute("grant select (status) on read_models.everything to clerk")
        before = privileges(connection)
        assert len(before) == 2 * 4 + 1
        new = ensure_version(connection, after)
        consume(things, new)
        assert serve_if_caught_up(connection, new)
        assert privileges(connection) == before
        connection.execute("grant usage on schema read_models to clerk")
        connection.execute("set role clerk")
        assert rows(connection, "select status from read_models.everything") == []


@pytest.mark.usefixtures("built")
def test_what_depends_on_the_view_stays_where_columns_are_added_at_the_end(things: EventStore) -> None:
    things.connection.execute("create view statuses as select status from read_models.everything")
    new = ensure_version(things.connection, Wider)
    consume(things, new)
    assert serve_if_caught_up(things.connection, new)
    assert rows(things.connection, "select * from statuses") == []
    assert relations(things.connection) == {"everything", "everything_state_v2", "everything_staging_v2"}


def test_what_depends_on_other_columns_is_named_and_keeps_the_old_version_serving(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 30)
    drain(dsn, spark, EventsOf)
    before = rows_of(things.connection, EventsOf)
    things.connection.execute("create view statuses as select status from read_models.everything")
    with pytest.raises(DependentObjects, match=r"view statuses depends on view read_models\.everything"):
        drain(dsn, spark, Latest)
    assert rows_of(things.connection, EventsOf) == before
    model = current_version(things.connection, Latest)
    assert model is not None
    assert is_ready_to_serve(things.connection, model)
    assert sum(lag.behind for lag in things.view_lag(model.view)) == 0
    with pytest.raises(DependentObjects):
        reset_model(things.connection, Latest)

    things.connection.execute("drop view statuses")
    assert drain(dsn, spark, Latest).events == 0
    assert columns(things.connection) == ["thing_id", "status", "seen"]


def test_who_reads_the_old_tables_or_depends_on_them_keeps_them_and_nobody_waits(
    things: EventStore, built: ReadModel, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    monkeypatch.setattr(read_model_versions, "LOCK_TIMEOUT", "50ms")
    both = {"everything", "everything_state", "everything_staging", "everything_state_v2", "everything_staging_v2"}
    with held(connect(), "lock table read_models.everything_state in access share mode"):
        assert serve_if_caught_up(things.connection, new)
        assert relations(things.connection) == both
    things.connection.execute("create view states as select * from read_models.everything_state")
    assert attach_version(connect(), Latest) == new
    assert relations(things.connection) == both
    things.connection.execute("drop view states")
    drop_unused_versions(things.connection, new)
    assert built.state_table not in relations(things.connection)
