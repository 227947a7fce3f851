"""A publication never keeps the application from changing a table: one that the server would refuse is stopped.

Belongs here: what is done to a table while it is captured, and whether its application goes on. Not here: tables that
are not published yet (test_readiness), what stopped tables get when they are mended (test_stopped_tables).
"""

from dataclasses import replace

import psycopg
import pytest

from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.health import capture_health, has_work
from millrace.resources.capture.source import connection as source_connection
from millrace.resources.capture.verify import verify
from tests.support.capturing.captured import Captured, left
from tests.support.capturing.following import followed
from tests.support.capturing.two_tables import GOOD, both, info, problems
from tests.support.patience import wait_until

# how a table is declared, what it is made with, and what is done to it so that the server refuses its updates
KEYED = "create table {t} (id int primary key, name text)"
FULL = "alter table {t} replica identity full"
REFUSED: dict[str, tuple[CapturedTable, str, str]] = {
    "unkeyed": (CapturedTable("unkeyed"), KEYED, "alter table {t} drop constraint {t}_pkey"),
    "nothing": (CapturedTable("nothing"), KEYED, "alter table {t} replica identity nothing"),
    "unindexed": (
        CapturedTable("unindexed"),
        "create table {t} (id int not null, name text); create unique index {t}_id on {t} (id);"
        " alter table {t} replica identity using index {t}_id",
        "drop index {t}_id",
    ),
    "narrow": (CapturedTable("narrow", columns=("id",)), KEYED, FULL),
    "outside": (
        CapturedTable("outside", columns=("id", "name")),
        KEYED + "; alter table {t} add at int not null default 1",
        "alter table {t} drop constraint {t}_pkey; alter table {t} add primary key (id, at)",
    ),
    "filtered": (
        CapturedTable("filtered", where="name <> 'nobody'"),
        KEYED + ";" + FULL,
        "alter table {t} replica identity default",
    ),
    "parted": (
        CapturedTable("parted"),
        "create table {t} (id int, name text) partition by range (id); create table part partition of {t} default;"
        " alter table {t} add primary key (id)",
        "alter table part replica identity nothing",
    ),
}  # fmt: skip
# only these servers refuse
NEWER = {
    "virtual": (
        CapturedTable("virtual"),
        KEYED + ";" + FULL,
        "alter table {t} add twice int generated always as (id * 2) virtual",
    ),
    "two words": (
        CapturedTable("two words"),
        KEYED,
        "alter table {t} add twice int generated always as (id * 2) virtual; " + FULL,
    ),
}


def refused_by(captured: Captured) -> dict[str, tuple[CapturedTable, str, str]]:
    return REFUSED | (NEWER if captured.source.connection.info.server_version >= 180000 else {})


def many(captured: Captured) -> Captured:
    """Return the source with each of these tables, and one that nothing happens to, captured."""
    captured = both(captured)
    tables = refused_by(captured)
    for name, (_, made, _) in tables.items():
        do(captured, name, made)
        do(captured, name, "insert into {t} values (1, 'a')")
    declared = Capture("shop", lambda: captured.source.dsn, (GOOD, *(table for table, _, _ in tables.values())))
    return replace(captured, capture=declared)


def do(captured: Captured, name: str, statement: str) -> None:
    quoted = f'"{name}"' if " " in name else name
    captured.source.connection.execute(statement.replace("{t}", quoted).encode())


def is_changed(captured: Captured, name: str) -> bool:
    """Do what the application does; return whether the server lets it."""
    try:
        do(captured, name, "update {t} set name = 'changed' where id = 1; delete from {t} where id = 1")
    except psycopg.Error:
        return False
    return True


def test_a_follower_stops_a_table_before_long_and_its_application_goes_on(captured: Captured) -> None:
    captured = many(captured)
    with followed(captured):
        for name, (_, _, breaks) in refused_by(captured).items():
            do(captured, name, breaks)
        for name in refused_by(captured):
            wait_until(lambda name=name: is_changed(captured, name), f"updates of {name} are taken")  # type: ignore[misc]
        captured.source.run("update good set name = 'goes on'")
        wait_until(lambda: left(captured, "good") == captured.table("good"), "the others are captured")
    said = problems(captured)
    for name in refused_by(captured):
        assert [each for each in said if each.startswith(f"table public.{name} is stopped")] != [], (name, said)
    assert (info(captured).gaps, info(captured).tables_stopped) == (0, len(refused_by(captured)))


def test_where_nobody_follows_a_run_is_started_for_it(captured: Captured) -> None:
    captured = many(captured)
    for name, (_, _, breaks) in refused_by(captured).items():
        captured.drain()
        assert not has_work(captured.dsn, captured.capture), name
        do(captured, name, breaks)
        assert not is_changed(captured, name), name
        assert f"refuses updates and deletes of public.{name}" in str(problems(captured))
        assert has_work(captured.dsn, captured.capture), name
        captured.drain()
        assert is_changed(captured, name), name
        assert capture_health(captured.dsn, captured.capture).refused == ()
    assert info(captured).gaps == 0


def test_a_locked_table_keeps_no_other_one_published_whose_changes_are_refused(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(source_connection._SETTINGS, "lock_timeout", "200ms")
    captured = both(captured)
    captured.drain()
    captured.source.run("alter table items replica identity nothing")
    with psycopg.connect(captured.source.dsn) as other:
        other.execute("lock table good in share update exclusive mode")
        captured.drain()
        assert is_changed(captured, "items")
    captured.source.run("update good set name = 'goes on'")
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    assert info(captured).gaps == 0


def test_a_generated_column_that_is_stored_is_captured_where_the_server_publishes_it(captured: Captured) -> None:
    captured = both(captured)
    captured.source.run("alter table items replica identity full")
    captured.drain()
    captured.source.run(
        "alter table items add twice int generated always as (id * 2) stored", "update items set name = 'a'"
    )
    captured.drain()
    told = captured.source.connection.info.server_version >= 180000
    assert [row.get("twice") for row in left(captured, "items")] == [2 * n if told else None for n in (1, 2, 3)]
    assert problems(captured) == []
    assert verify(captured.dsn, captured.capture, CapturedTable("items")).differing == 0


def test_rows_that_another_key_names_have_streams_of_their_own_before_long(captured: Captured) -> None:
    captured.source.run(
        "alter table items replica identity full",
        "insert into items values (1, 'a')",
        "alter table items alter name set not null",
    )
    with followed(captured):
        captured.source.run("insert into items values (2, 'it follows')")
        wait_until(lambda: left(captured, "items") == captured.table(), "it follows")
        captured.source.run(
            "alter table items drop constraint items_pkey, add primary key (id, name)",
            "insert into items values (1, 'b')",
        )
        wait_until(lambda: left(captured, "items") == captured.table(), "both rows have streams")
    assert verify(captured.dsn, captured.capture, CapturedTable("items")).differing == 0
