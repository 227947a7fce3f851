"""Declaring a capture in the store: idempotent, changed where the declaration changed, one capture per decider."""

from functools import partial

import psycopg
import pytest

from millrace.resources.capture.store import CaptureStore, RegisteredTable, TableRegistration
from millrace.resources.errors import DeciderCaptured, Malformed
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.refusals import refusals
from tests.support.capturing.captures import Source, T, inserted, source, table
from tests.support.factories import Connect, at_once, refusal, rows, start, wait_blocked

__all__ = ["source"]


@pytest.fixture
def captures(connect: Connect) -> CaptureStore:
    return CaptureStore(connect())


def registered(store: CaptureStore, name: str = "t", capture: str = "c") -> RegisteredTable:
    (found,) = [each for each in store.captured_tables(capture) if each.table_name == name]
    return found


def test_a_capture_is_registered_once_with_the_events_of_its_tables(captures: CaptureStore) -> None:
    assert captures.register_capture("c", "s", "p", [table("t"), table("u", key=["a", "b"])])
    before = captures.captured_tables("c")
    assert not captures.register_capture("c", "s", "p", [table("u", key=["a", "b"]), table("t")])
    assert captures.captured_tables("c") == before
    assert [(each.table_name, each.key_columns, each.backfill_generation) for each in before] == [
        ("t", None, None),
        ("u", ["a", "b"], None),
    ]
    named = rows(captures.connection, "select event from event_store.deciders where decider = %s order by 1", T)
    assert [row[0] for row in named] == ["backfilled", "deleted", "inserted", "schema_changed", "truncated", "updated"]


def test_a_changed_declaration_adds_removes_and_backfills_anew_only_what_changed(source: Source) -> None:
    store = source.store
    store.register_capture("c", "slot_c", "pub_c", [table("t"), table("u")])
    store.publish_tables("c", source.token, 700)
    for name in ("t", "u"):
        source.backfill(1, name=name)
        source.finish(name)
    before = registered(store, "u")
    assert store.register_capture("c", "slot_c", "pub_c", [table("u", "2"), table("w")])
    w, u = registered(store, "w"), registered(store, "u")
    assert (w.published_xid, w.backfill_generation) == (None, None)
    assert (u.published_xid, u.backfill_key, u.backfilled_rows, u.rows_read) == (None, None, 0, False)
    assert u.backfill_offset > before.backfill_offset
    assert [each.table_name for each in store.captured_tables("c")] == ["u", "w"]
    # the events of what is no longer captured stay
    assert [event.event for event in EventStore(store.connection).get_events("[1]", T)] == ["backfilled"]
    assert not store.register_capture("c", "slot_c", "pub_c", [table("u", "2"), table("w")])


def test_other_key_columns_are_another_declaration(source: Source) -> None:
    assert source.store.register_capture("c", "slot_c", "pub_c", [table(key=["a"])])
    assert registered(source.store).published_xid is None


def test_a_table_may_get_another_decider_and_two_may_swap(source: Source) -> None:
    store = source.store
    store.register_capture("c", "slot_c", "pub_c", [table("t"), table("u")])
    swapped = [
        TableRegistration("public", "t", "table:public.u", None, "1"),
        TableRegistration("public", "u", "table:public.t", None, "1"),
    ]
    assert store.register_capture("c", "slot_c", "pub_c", swapped)
    assert registered(store, "t").decider == "table:public.u"


def test_a_decider_belongs_to_one_capture(captures: CaptureStore) -> None:
    captures.register_capture("c", "s", "p", [table("t")])
    refused = refusal(DeciderCaptured, lambda: captures.register_capture("d", "s", "p", [table("u"), table("t")]))
    assert "public.t of capture c" in str(refused)
    assert [info.capture for info in captures.capture_info()] == ["c"]


def test_of_two_captures_that_register_one_decider_at_once_one_gets_it(connect: Connect) -> None:
    def register(capture: str) -> bool:
        return CaptureStore(connect()).register_capture(capture, "s", "p", [table("t"), table("u")])

    outcomes = [type(future.exception()) for future in at_once([partial(register, name) for name in "abcd"])]
    assert sorted(outcomes, key=str) == sorted([type(None), *[DeciderCaptured] * 3], key=str)


def test_a_registration_that_waits_for_another_one_sees_what_that_did(connect: Connect) -> None:
    first, second = CaptureStore(connect(autocommit=False)), CaptureStore(connect())
    first.register_capture("c", "s", "p", [table("t")])
    call = start(lambda: second.register_capture("c", "s", "p", [table("t")]))
    wait_blocked(connect(), second.connection.info.backend_pid)
    first.connection.commit()
    assert call.result(20) is False


@pytest.mark.parametrize("name", ["", "1a", "A", "a b", "a" * 32, "ä"])
def test_a_misnamed_capture_is_refused(captures: CaptureStore, name: str) -> None:
    refusal(Malformed, lambda: captures.register_capture(name, "s", "p", [table()]))


@pytest.mark.parametrize(
    "tables",
    [
        "null", "{}", "[]", "[1]", '[{"schema": "s", "table": "t", "decider": "d"}]',
        '[{"schema": "", "table": "t", "decider": "d", "fingerprint": ""}]',
        '[{"schema": 1, "table": "t", "decider": "d", "fingerprint": ""}]',
        '[{"schema": "s", "table": "t", "decider": "d", "fingerprint": "", "key_columns": "a"}]',
        '[{"schema": "s", "table": "t", "decider": "d", "fingerprint": "", "key_columns": [1]}]',
        '[{"schema": "s", "table": "t", "decider": "d", "fingerprint": ""}, {"schema": "s", "table": "t", "decider": "e", "fingerprint": ""}]',
        '[{"schema": "s", "table": "t", "decider": "d", "fingerprint": ""}, {"schema": "s", "table": "u", "decider": "d", "fingerprint": ""}]',
    ],
)  # fmt: skip
def test_malformed_tables_are_refused_and_nothing_is_registered(captures: CaptureStore, tables: str) -> None:
    with refusals_of(captures.connection), refusals():
        captures.connection.execute("select event_store.register_capture('c', 's', 'p', %s::jsonb)", (tables,))
    assert captures.capture_info() == []


def refusals_of(connection: psycopg.Connection) -> "pytest.RaisesExc[Malformed]":
    assert connection.autocommit
    return pytest.raises(Malformed)


def test_slot_and_publication_must_be_named(captures: CaptureStore) -> None:
    refusal(Malformed, lambda: captures.register_capture("c", "", "p", [table()]))
    refusal(Malformed, lambda: captures.register_capture("c", "s", "", [table()]))


def test_a_registration_changes_nothing_of_what_is_stored(source: Source) -> None:
    source.commit(inserted(1))
    before = source.store.capture_info("c")
    source.store.register_capture("c", "slot_c", "pub_c", [table("t", "2")])
    (after,) = source.store.capture_info("c")
    assert (after.stored_lsn, after.unemitted, after.source_generation) == (before[0].stored_lsn, 1, 1)
    assert source.emit().emitted == 1
