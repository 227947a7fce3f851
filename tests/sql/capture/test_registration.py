"""Captures as they are declared, shown, restarted and removed: one per decider, which keeps the names of its rows."""

from functools import partial

import pytest

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.store import CaptureStore, RegisteredTable, TableRegistration
from millrace.errors import CaptureInUse, DeciderCaptured, UnknownCapture
from millrace.event_store.platform import PlatformStore
from tests.support.capturing import captures
from tests.support.capturing.captures import Source, T, deleted, events, faulty, inserted, table, truncated, updated
from tests.support.factories import Connect, at_once, refusal, rows, start, value, wait_blocked
from tests.support.patience import patience
from tests.support.sql_calls import get_events


@pytest.fixture
def registry(connect: Connect) -> CaptureStore:
    return CaptureStore(connect())


def registered(store: CaptureStore, name: str = "t", capture: str = "c") -> RegisteredTable:
    (found,) = [each for each in store.captured_tables(capture) if each.table_name == name]
    return found


def test_a_capture_is_registered_once_with_the_events_of_its_tables(registry: CaptureStore) -> None:
    assert registry.register_capture("c", "s", "p", [table("t"), table("u", key=["a", "b"])])
    before = registry.captured_tables("c")
    assert not registry.register_capture("c", "s", "p", [table("u", key=["a", "b"]), table("t")])
    assert registry.captured_tables("c") == before
    found = [(each.table_name, each.key_columns, each.backfill_generation) for each in before]
    assert found == [("t", None, None), ("u", ["a", "b"], None)]
    named = rows(registry.connection, "select event from event_store.deciders where decider = %s order by 1", T)
    assert [row[0] for row in named] == ["backfilled", "deleted", "inserted", "schema_changed", "truncated", "updated"]


def test_a_changed_declaration_reads_anew_only_what_changed(source: Source) -> None:
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
    # the events of tables that are no longer captured stay
    assert [event.event for event in get_events(PlatformStore(store.connection), "[1]", T)] == ["backfilled"]
    assert not store.register_capture("c", "slot_c", "pub_c", [table("u", "2"), table("w")])


def test_tables_may_get_another_key_or_swap_deciders(source: Source) -> None:
    store = source.store
    source.commit(inserted(1))
    (before,) = store.capture_info("c")
    assert store.register_capture("c", "slot_c", "pub_c", [table(key=["a"])])
    assert registered(store).published_xid is None
    (after,) = store.capture_info("c")
    assert (after.stored_lsn, after.unemitted, after.source_generation) == (before.stored_lsn, 1, 1)
    assert source.emit().emitted == 1
    store.register_capture("c", "slot_c", "pub_c", [table("t"), table("u")])
    swapped = [TableRegistration("public", name, f"table:public.{other}", None, "1") for name, other in ("tu", "ut")]
    assert store.register_capture("c", "slot_c", "pub_c", swapped)
    assert registered(store, "t").decider == "table:public.u"


def test_a_decider_belongs_to_one_capture(registry: CaptureStore) -> None:
    registry.register_capture("c", "s", "p", [table("t")])
    refused = refusal(DeciderCaptured, lambda: registry.register_capture("d", "s", "p", [table("u"), table("t")]))
    assert "public.t of capture c" in str(refused)
    assert [info.capture for info in registry.capture_info()] == ["c"]
    refusal(UnknownCapture, lambda: registry.capture_info("none"))


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
    assert call.result(patience()) is False


KEYED = ["id"]
NAMELESS: list[str] = []


def register(source: Source, key: list[str] | None, fingerprint: str, name: str = "t", decider: str = "t") -> bool:
    declared = TableRegistration("public", name, f"table:public.{decider}", key, fingerprint)
    return source.store.register_capture("c", "slot_c", "pub_c", [declared, table("beside")])


# the key of the third is unknown, because the table is stopped
@pytest.mark.parametrize(("before", "after"), [(KEYED, NAMELESS), (NAMELESS, KEYED), (NAMELESS, None)])
def test_live_streams_keep_their_decider_from_rows_named_otherwise(
    source: Source, before: list[str] | None, after: list[str] | None
) -> None:
    of_nobody = r'such as \[1,"0/1000",0\] of rows that nothing names; a key names .* public\.t now'
    of_a_key = r"such as \[7\] of rows that a key names; nothing names the rows of public\.t now"
    key, said = (7, of_a_key) if before is KEYED else ((1, "0/1000", 0), of_nobody)
    declared = partial(source.store.captured_tables, "c")
    register(source, before, "2")
    source.commit(deleted(1), inserted(key))
    with pytest.raises(DeciderCaptured, match="changes of it are stored that are no events yet"):
        register(source, after, "3")
    source.emit()
    found = declared()
    with pytest.raises(DeciderCaptured, match=rf"(?s)table:public\.t has live streams, {said}.*another decider"):
        register(source, after, "3")
    assert declared() == found
    # everything else in the declaration may change
    assert register(source, before, "3")
    with source.store.connection.transaction(force_rollback=True):
        assert register(source, after, "4", decider="other")
    # also if the table was taken out meanwhile
    source.store.register_capture("c", "slot_c", "pub_c", [table("beside")])
    if before is KEYED:
        with pytest.raises(DeciderCaptured, match="has live streams"):
            register(source, after, "3")
    assert register(source, before, "3")
    source.commit(inserted((1, "0/2000", 0)), truncated())
    source.emit_all()
    assert register(source, after, "4")


def test_a_live_stream_is_found_that_waits_or_is_behind_thousands(source: Source) -> None:
    register(source, KEYED, "2")
    source.commit(*(inserted(n) for n in range(1500)), *(deleted(n) for n in range(1500)))
    source.emit_all()
    for done, live in ((inserted("last"), '"last"'), (faulty(7), "7")):
        with source.store.connection.transaction(force_rollback=True):
            source.commit(done)
            source.emit()
            with pytest.raises(DeciderCaptured, match=rf"such as \[{live}\]"):
                register(source, NAMELESS, "3")


def test_all_goes_but_events_numbers_and_gaps(source: Source, connect: Connect) -> None:
    other = Source(CaptureStore(connect()), "d", table("u"))
    other.begin()
    other.commit(faulty(1, "u"))
    other.emit()
    source.commit(inserted(1), faulty(2))
    source.emit()
    source.begin()
    source.commit(inserted(3))
    assert "leased by me" in str(refusal(CaptureInUse, lambda: source.store.unregister_capture("c")))
    source.forget_lease()
    source.store.unregister_capture("c", "switched off")
    store = source.store
    assert [info.capture for info in store.capture_info()] == ["d"]
    assert events(store) == [("[1]", "inserted")]
    assert store.captured_tables("c") == []
    assert store.quarantined_changes("c") == []
    assert len(store.quarantined_changes("d")) == 1
    assert value(store.connection, "select count(*) from event_store.wal_events") == 1
    assert len(store.capture_gaps("c")) == 1
    assert len(rows(store.connection, "select from event_store.source_generations where capture = 'c'")) == 2
    entry, *_ = PlatformStore(store.connection).audit_log()
    assert (entry.operation, entry.reason, entry.detail["wal_events"], entry.detail["quarantined"]) == (
        "unregister_capture", "switched off", 3, 1,
    )  # fmt: skip
    refusal(UnknownCapture, lambda: store.unregister_capture("c"))


def test_its_deciders_are_free_again(source: Source, connect: Connect) -> None:
    source.commit(inserted(1))
    source.emit()
    source.store.release_capture("c", source.token)
    source.store.unregister_capture("c")
    again = Source(CaptureStore(connect()), "d", table("t"))
    again.begin()
    again.backfill(2)
    again.finish()
    # rows that the new capture did not read are gone
    assert [name for key, name in events(again.store) if key == "[1]"] == ["inserted", "deleted"]


def test_every_capture_with_how_far_it_is_what_waits_and_who_works_on_it(connect: Connect) -> None:
    one = Source(CaptureStore(connect()), "c", table("t"), table("u"))
    other = Source(CaptureStore(connect()), "d", table("w"))
    one.begin()
    one.commit(inserted(1), faulty(1), updated(1))
    one.emit()
    one.backfill(2, 3)
    one.finish()
    one.commit(inserted(4), inserted(5))
    other.store.release_capture("d", other.token)
    first, second = one.store.capture_info()
    assert (first.capture, first.source_generation, first.slot, first.publication) == ("c", 1, "slot_c", "pub_c")
    assert (first.stored_lsn, first.stored_at, first.unemitted) == (one.lsn, captures.BEGAN, 2)
    assert (first.quarantined, first.held, first.open_gaps, first.gaps) == (1, 1, 0, 0)
    assert (first.tables, first.tables_to_backfill, first.backfilled_rows) == (2, 1, 2)
    assert (first.lease_owner, first.leased_until) == ("me", one.lease.leased_until)
    assert (second.capture, second.source_generation, second.stored_lsn, second.lease_owner) == ("d", None, None, None)
    assert one.store.capture_info("d") == [second]


def test_a_gap_is_recorded_once_while_it_is_open(source: Source, connect: Connect) -> None:
    def record(n: int) -> int:
        return CaptureStore(connect()).record_gap("c", Lsn(n), Lsn(n + 1), f"reason {n}")

    gaps = {future.result() for future in at_once([partial(record, n) for n in range(1, 6)])}
    (gap,) = source.store.capture_gaps("c")
    assert gaps == {gap.gap_id}
    assert gap.from_lsn is not None
    assert (gap.to_lsn, gap.reason) == (Lsn(gap.from_lsn + 1), f"reason {int(gap.from_lsn)}")
    assert gap.resolved_by_generation is None
    (info,) = source.store.capture_info("c")
    assert (info.open_gaps, info.gaps) == (1, 1)
    source.begin()
    assert source.store.record_gap("c", None, None, "another one") != gap.gap_id
    assert [each.reason for each in source.store.capture_gaps("c")] == ["another one", gap.reason]


def test_a_new_start_is_a_gap_from_what_is_stored_and_audited(source: Source) -> None:
    source.commit(inserted(1))
    source.store.restart_capture("c", "the source was set back")
    (gap,) = source.store.capture_gaps("c")
    assert gap.from_lsn == source.lsn
    assert "the source was set back" in gap.reason
    assert source.store.claim_capture("c", "me").gap
    entry, *_, registered = PlatformStore(source.store.connection).audit_log()
    assert registered.operation == "register_capture"
    assert (entry.operation, entry.reason, entry.detail["gap_id"]) == (
        "restart_capture", "the source was set back", gap.gap_id,
    )  # fmt: skip
