"""A publication never blocks the application's changes: a table is stopped if publishing would break its changes."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import psycopg
import pytest

from millrace.capture import prepare
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.setup import GapOpen
from millrace.capture.source import connection as source_connection
from millrace.capture.source.readiness import NotReady
from millrace.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, killed_at, left
from tests.support.capturing.following import followed
from tests.support.capturing.two_tables import GOOD, both
from tests.support.patience import wait_until

# a declaration, the DDL of its table, and the change after which the server refuses the table's updates
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
# refused only from these server versions on
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
    """Return the source with each of these tables and an unchanged one captured."""
    captured = both(captured)
    tables = refused_by(captured)
    for name, (_, made, _) in tables.items():
        do(captured, name, made)
        do(captured, name, "insert into {t} values (1, 'a')")
    declared = Capture("shop", lambda: captured.source.dsn, (GOOD, *(table for table, _, _ in tables.values())))
    return replace(captured, capture=declared)


def do(captured: Captured, name: str, statement: str) -> None:
    quoted = f'"{name}"' if " " in name else name
    captured.run(statement.replace("{t}", quoted))


def is_changed(captured: Captured, name: str) -> bool:
    """Change the table as the application does; return whether the server allows it."""
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
        captured.run("update good set name = 'goes on'")
        wait_until(lambda: left(captured, "good") == captured.table("good"), "the others are captured")
    said = captured.problems()
    for name in refused_by(captured):
        assert [each for each in said if each.startswith(f"table public.{name} is stopped")] != [], (name, said)
    assert (captured.info().gaps, captured.info().tables_stopped) == (0, len(refused_by(captured)))


def test_where_nobody_follows_a_run_is_started_for_it(captured: Captured) -> None:
    captured = many(captured)
    for name, (_, _, breaks) in refused_by(captured).items():
        captured.drain()
        assert not captured.has_work(), name
        do(captured, name, breaks)
        assert not is_changed(captured, name), name
        assert f"refuses updates and deletes of public.{name}" in str(captured.problems())
        assert captured.has_work(), name
        captured.drain()
        assert is_changed(captured, name), name
        assert captured.health().refused == ()
    assert captured.info().gaps == 0


def test_a_locked_table_keeps_no_refused_one_published(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(source_connection._SETTINGS, "lock_timeout", "200ms")
    captured = both(captured)
    captured.drain()
    captured.run("alter table items replica identity nothing")
    with psycopg.connect(captured.source.dsn) as other:
        other.execute("lock table good in share update exclusive mode")
        captured.drain()
        assert is_changed(captured, "items")
    captured.run("update good set name = 'goes on'")
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    assert captured.info().gaps == 0


def test_a_generated_column_is_captured_where_the_server_publishes_it(captured: Captured) -> None:
    captured = both(captured)
    captured.run("alter table items replica identity full")
    captured.drain()
    captured.run("alter table items add twice int generated always as (id * 2) stored", "update items set name = 'a'")
    captured.drain()
    told = captured.source.connection.info.server_version >= 180000
    assert [row.get("twice") for row in left(captured, "items")] == [2 * n if told else None for n in (1, 2, 3)]
    assert captured.problems() == []
    assert captured.verify(CapturedTable("items")).differing == 0


def test_rows_that_another_key_names_have_streams_of_their_own_before_long(captured: Captured) -> None:
    captured.run(
        "alter table items replica identity full",
        "insert into items values (1, 'a')",
        "alter table items alter name set not null",
    )
    with followed(captured):
        captured.run("insert into items values (2, 'it follows')")
        wait_until(lambda: left(captured, "items") == captured.table(), "it follows")
        captured.run(
            "alter table items drop constraint items_pkey, add primary key (id, name)",
            "insert into items values (1, 'b')",
        )
        wait_until(lambda: left(captured, "items") == captured.table(), "both rows have streams")
    assert captured.verify(CapturedTable("items")).differing == 0


def slot_of(captured: Captured) -> str:
    return str(captured.value("select slot from event_store.captures"))


def without_slot(captured: Captured) -> None:
    captured.source.connection.execute("select pg_drop_replication_slot(%s)", (slot_of(captured),))


def with_gap(captured: Captured) -> None:
    without_slot(captured)
    with pytest.raises(GapOpen):
        captured.drain()


def without_replication(captured: Captured) -> None:
    captured.run(f"alter role r_{captured.source.slot} noreplication")


# a prior state of the capture, the change after which the server refuses updates, and the error of the run
SAID_FIRST: dict[str, tuple[Callable[[Captured], None], str, type[Exception] | None]] = {
    "nothing": (lambda _: None, "alter table items drop constraint items_pkey", None),
    "every table is refused": (lambda _: None, "alter table items drop constraint items_pkey; alter table good drop constraint good_pkey", NotReady),
    "the other one is dropped": (lambda _: None, "alter table items drop constraint items_pkey; drop table good", NotReady),
    "a gap is open": (with_gap, "alter table items drop constraint items_pkey", GapOpen),
    "there is no slot": (without_slot, "alter table items drop constraint items_pkey", GapOpen),
    "the role lost replication": (without_replication, "alter table items drop constraint items_pkey", NotReady),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID_FIRST)
def test_each_run_lets_the_application_go_on_whatever_keeps_it_back(as_role: Captured, case: str) -> None:
    comes_before, breaks, error = SAID_FIRST[case]
    captured = as_role
    captured.drain()
    comes_before(captured)
    captured.run(breaks)
    assert not is_changed(captured, "items")
    with pytest.raises(error) if error else nullcontext():
        captured.drain()
    assert is_changed(captured, "items")
    if "good_pkey" in breaks:
        assert is_changed(captured, "good")
    # once the cause is mended, no change is missing
    captured.run(
        f"alter role r_{captured.source.slot} replication; alter table items add primary key (id);"
        " create table if not exists good (id int primary key, name text);"
        f" alter table good owner to r_{captured.source.slot}"
    )
    if error is not GapOpen:
        assert captured.has_work()
        captured.drain()
        assert captured.info().gaps == 0
    else:
        captured.restart("a test")
    captured.run("update items set name = 'again' where id = 3")
    captured.drain()
    assert left(captured, "items") == captured.table()
    assert [said for said in captured.problems() if "items" in said] == []


def test_a_run_that_dies_once_a_table_is_out_leaves_no_gap(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = both(captured)
    captured.drain()
    captured.run("alter table items drop constraint items_pkey")
    killed_at(captured, monkeypatch, prepare, "read_tables")
    assert is_changed(captured, "items")
    captured.run("alter table items add primary key (id)", "delete from items where id = 2")
    assert captured.has_work()
    killed_at(captured, monkeypatch, CaptureStore, "claim_capture")
    captured.drain()
    assert left(captured, "items") == captured.table()
    assert (captured.info().gaps, captured.problems()) == (0, [])


def test_what_somebody_else_took_out_of_the_publication_is_a_gap_as_ever(captured: Captured) -> None:
    captured = both(captured)
    captured.drain()
    slot = slot_of(captured)
    for statement in ("drop table only good", "add table only good"):
        captured.run(f"alter publication {slot} {statement}")
    captured.run("alter table items drop constraint items_pkey")
    with pytest.raises(GapOpen, match=r"changed or dropped by another program: public\.good"):
        captured.drain()
    assert is_changed(captured, "items")
