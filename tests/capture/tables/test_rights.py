"""The rights that docs/change_capture.md names are enough for a role to capture."""

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.prepare import remove
from millrace.capture.source.connection import connect_source
from millrace.capture.source.readiness import require_ready
from tests.support.capturing.captured import Captured, assert_left
from tests.support.capturing.odd_types import CASELESS

# as on the page
RIGHTS = (
    "create role {role} login replication", "grant create on database {database} to {role}", "grant {owner} to {role}",
    "grant usage on schema app, extensions to {role}",
)  # fmt: skip


@pytest.fixture
def restricted(captured: Captured) -> Iterator[Captured]:
    """Capture another role's tables as a role with the documented rights."""
    admin = captured.source.connection
    names = {"role": f"r_{captured.source.slot}", "owner": f"o_{captured.source.slot}", "database": admin.info.dbname}

    def run(*statements: str) -> None:
        for statement in statements:
            admin.execute(statement.format(**names).encode())

    captured.run(*CASELESS)
    run(
        "create role {owner}", "create schema app",
        "create table app.people (tenant int, name extensions.caseless, n int, primary key (tenant, name))",
        "alter table app.people replica identity full",
        "insert into app.people select 1, c, 1 from unnest(string_to_array('a,B,c,D', ',')) c",
        "create table app.parts (id int primary key, n int) partition by range (id)",
        "create table app.part partition of app.parts for values from (0) to (100)",
        "insert into app.parts values (1, 1), (2, 2)", "alter table app.people owner to {owner}",
        "alter table app.parts owner to {owner}", "alter table app.part owner to {owner}", *RIGHTS,
    )  # fmt: skip
    dsn = psycopg.conninfo.make_conninfo(captured.source.dsn, user=names["role"])
    tables = CapturedTable("people", "app"), CapturedTable("parts", "app")
    yield replace(captured, capture=Capture("shop", lambda: dsn, tables))
    run("drop owned by {role}, {owner} cascade", "drop role {role}, {owner}")


def test_a_role_with_the_documented_rights_captures(restricted: Captured) -> None:
    with connect_source(restricted.capture.source()) as source:
        require_ready(source, restricted.capture, has_slot=False)
    restricted.drain()
    restricted.run(
        "update app.people set n = 2 where n = 1", "delete from app.parts where id = 1", "insert into app.parts values (3, 3)",
        "create table app.more partition of app.parts for values from (100) to (200)", "insert into app.parts values (101, 1)",
    )  # fmt: skip
    owner = f"o_{restricted.source.slot}"
    restricted.run(f"alter table app.more owner to {owner}")
    restricted.drain()
    for table in restricted.capture.tables:
        found = restricted.verify(table, repairs="a test")
        assert (found.differing, found.held) == (0, 0)
    assert restricted.problems() == []
    assert not restricted.has_work()
    restricted.restart("a test")
    restricted.drain()
    assert_left(restricted, "app.people", "app.parts")
    remove(restricted.dsn, restricted.capture, "a test")


def test_without_the_right_to_operators_their_table_alone_is_not_read(restricted: Captured) -> None:
    restricted.run(f"revoke usage on schema extensions from r_{restricted.source.slot}")
    restricted.drain()
    (said,) = restricted.problems()
    assert said.startswith("the backfill of app.people does not go on")
    assert "permission denied for schema extensions" in said
    assert_left(restricted, "app.parts")
    remove(restricted.dsn, restricted.capture, "a test")
