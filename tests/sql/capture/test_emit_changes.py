"""Stored changes become events: in order, once; a change that cannot become one blocks only its own stream."""

from dataclasses import replace
from typing import LiteralString
from uuid import UUID

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.store import CaptureStore, Emitted, EmittedRows, Requeued
from millrace.errors import LeaseLost
from millrace.event_store.platform import PlatformStore
from tests.sql.event_store.test_stream_head import purge
from tests.support import factories
from tests.support.capturing import captures
from tests.support.capturing.captures import Source, T, U, append_foreign, held, inserted, stream, truncated, updated
from tests.support.patience import patience
from tests.support.sql_calls import get_events


def stored(source: Source) -> list[UUID]:
    found = factories.rows(source.store.connection, 'select event_id from event_store.events order by "offset"')
    return [event_id for (event_id,) in found]


def test_changes_become_events_in_the_order_of_commits_and_transactions(source: Source) -> None:
    first = source.commit(inserted(1), inserted(2), updated(1))
    second = source.commit(captures.deleted(2), updated(1, 3))
    assert source.emit() == Emitted(5, 0, 0, behind=False)
    assert stored(source) == captures.event_ids([*first, *second])
    assert stream(source.store, 1) == [("inserted", 1), ("updated", 2), ("updated", 3)]
    assert stream(source.store, 2) == [("inserted", 1), ("deleted", None)]
    (one, *_, last) = get_events(PlatformStore(source.store.connection), "[1]", T)
    assert (str(one.command_id), str(last.command_id)) == (first[0].command_id, second[0].command_id)
    assert source.emit() == Emitted(0, 0, 0, behind=False)
    PlatformStore(source.store.connection).sequence_events()
    factories.assert_log_holds_every_event_once(source.store.connection)


def test_a_limit_ends_a_call_anywhere_also_within_a_transaction(source: Source) -> None:
    limit = 3
    done = [source.commit(*[inserted((n, m)) for m in range(5)]) for n in range(4)]
    calls = 0
    while source.emit(limit).behind:
        calls += 1
        assert len(stored(source)) == calls * limit
    assert calls == (20 - 1) // limit
    assert stored(source) == [id_ for changes in done for id_ in captures.event_ids(changes)]


def test_nothing_is_emitted_beyond_what_is_said_to_be_stored(source: Source, connect: factories.Connect) -> None:
    other = CaptureStore(connect(autocommit=False))
    other.copy_changes(source.generation, source.changes(inserted(1)))
    assert source.emit() == Emitted(0, 0, 0, behind=False)
    other.connection.rollback()


def test_a_faulty_change_and_later_ones_of_its_stream_wait_the_rest_flows(source: Source) -> None:
    source.commit(inserted(1), inserted(2))
    source.commit(updated(1), captures.faulty(1), updated(1), updated(2))
    assert source.emit() == Emitted(4, 1, 1, behind=False)
    source.commit(captures.deleted(1), captures.deleted(2))
    assert source.emit() == Emitted(1, 0, 1, behind=False)
    assert stream(source.store, 1) == [("inserted", 1), ("updated", 2)]
    assert stream(source.store, 2) == [("inserted", 1), ("updated", 2), ("deleted", None)]
    assert held(source.store) == [("[1]", "updated", True), ("[1]", "updated", False), ("[1]", "deleted", False)]
    (change, *_) = source.store.quarantined_changes("c")
    assert (change.fault, change.raw, change.relation) == ("column v: not UTF-8", b"U\x00", b"R")
    # a change with an unreadable key, and one with a key too long for a stream
    source.commit(captures.faulty(None), updated(2, 3), inserted("k" * 2000), inserted(3))
    assert source.emit() == Emitted(2, 2, 0, behind=False)
    assert held(source.store)[3][:2] == (None, "updated")


def test_data_of_sizes_around_the_limit_are_judged_as_an_append_does(source: Source) -> None:
    source.store.connection.execute("set event_store.max_data_bytes = 2500")
    noise = "".join(chr(33 + n * 7919 % 90) for n in range(3000))
    source.commit(*[inserted(n, noise[: 2100 + n]) for n in range(400)])
    source.commit(*[inserted(n + 1000, "x" * (2100 + n)) for n in range(400)])
    done = source.emit()
    assert done.emitted + done.quarantined == 800
    assert 200 < done.quarantined < 600
    faults = {change.fault for change in source.store.quarantined_changes("c", limit=1000)}
    assert all("event_store.max_data_bytes allows 2500" in str(fault) for fault in faults)


def test_a_stream_that_somebody_closed_holds_up_nobody_else(source: Source) -> None:
    source.commit(inserted(1), inserted(2))
    source.emit()
    append_foreign(source.store, "updated", 1, final=True)
    source.commit(updated(1), updated(2), truncated())
    assert source.emit_all() == Emitted(3, 1, 0, behind=False)
    (change,) = source.store.quarantined_changes("c")
    assert (change.decider_id, change.fault) == ("[1]", "its stream is closed by a final event")
    assert source.backfill(1, 2) == EmittedRows("stored", 1, 0, 1)
    assert source.store.requeue_changes("c") == Requeued(0, 2)


def test_a_used_event_id_and_a_decider_without_events_hold_up_nobody_else(source: Source) -> None:
    changes = source.changes(inserted(1), inserted(2), inserted(3))
    append_foreign(source.store, "updated", 9, UUID(changes[0].event_id))
    source.save([changes[0], replace(changes[1], decider="unknown"), changes[2]])
    assert source.emit() == Emitted(1, 2, 0, behind=False)
    assert [change.fault for change in source.store.quarantined_changes("c")] == [
        f"event_id {changes[0].event_id} is stored with other content",
        "decider unknown has no event inserted",
    ]


def test_an_idle_capture_writes_nothing_and_is_asked_for_its_lease(source: Source) -> None:
    source.commit(inserted(1))
    source.emit()
    connection = source.store.connection
    with connection.transaction():
        assert source.emit() == Emitted(0, 0, 0, behind=False)
        assert factories.value(connection, "select pg_current_xact_id_if_assigned()::text") is None
    factories.refusal(LeaseLost, lambda: source.store.emit_changes("c", source.token - 1))
    source.store.release_capture("c", source.token)
    factories.refusal(LeaseLost, source.emit)


def test_a_truncation_ends_the_live_streams_of_its_table_first(connect: factories.Connect) -> None:
    source = Source(CaptureStore(connect()), "c", captures.table("t"), captures.table("u"))
    store = PlatformStore(source.store.connection)
    source.begin()
    source.commit(inserted(1), inserted(2), inserted(3), captures.deleted(3), inserted(1, table="u"))
    source.commit(truncated(), inserted(2, "again"))
    assert source.emit().behind is False
    assert stream(source.store, 1) == [("inserted", 1), ("deleted", None)]
    assert stream(source.store, 2) == [("inserted", 1), ("deleted", None), ("inserted", "again")]
    assert stream(source.store, 3) == [("inserted", 1), ("deleted", None)]
    assert captures.events(source.store, U) == [("[1]", "inserted")]
    (truncation,), (*_, last) = get_events(store, "[]", T), get_events(store, "[1]", T)
    assert (truncation.event, truncation.command_id) == ("truncated", last.command_id)
    assert last.data == truncation.data | {"truncated": True}


def test_a_truncation_of_many_rows_takes_bounded_calls(source: Source) -> None:
    limit = 3
    source.commit(*[inserted(n) for n in range(20)])
    source.emit_all()
    source.commit(truncated(), inserted(5))
    seen = 20
    while source.emit(limit).behind:
        now = len(stored(source))
        assert now - seen <= limit + 1
        seen = now
    assert factories.value(source.store.connection, "select truncating_key from event_store.captures") is None
    for n in range(20):
        names = [name for name, _ in stream(source.store, n)]
        assert names == ["inserted", "deleted"] + (["inserted"] if n == 5 else [])


def test_a_truncation_ends_a_stream_that_waits_behind_its_own_changes(source: Source) -> None:
    source.commit(inserted(1), captures.faulty(1), captures.faulty(2, action="inserted"), inserted(3))
    source.commit(truncated())
    assert source.emit_all() == Emitted(4, 2, 2, behind=False)
    assert held(source.store)[:2] == [("[1]", "updated", True), ("[2]", "inserted", True)]
    assert held(source.store)[2:] == [("[1]", "deleted", False), ("[2]", "deleted", False)]
    source.commit(truncated(), truncated())  # each is an event
    assert source.emit_all() == Emitted(2, 0, 0, behind=False)


def test_a_deletion_whose_event_id_somebody_used_is_quarantined_alone(source: Source) -> None:
    def take(named: object, key: int) -> None:
        id_ = UUID(factories.value(source.store.connection, "select md5(%s)", f"{named}/{T}/[{key}]"))
        append_foreign(source.store, "updated", "x", id_)

    source.commit(*[inserted(n) for n in range(4)])
    source.emit()
    (truncation,) = changes = source.changes(truncated())
    take(truncation.event_id, 1)
    source.save(changes)
    assert source.emit_all() == Emitted(5, 0, 1, behind=False)  # with the truncation and the foreign stream
    assert held(source.store) == [("[1]", "deleted", True)]
    # after a backfill too
    source.commit(inserted(2), inserted(3))
    source.emit()
    source.begin()
    (captured,) = source.store.captured_tables("c")
    reading = f"{source.generation}/{captured.backfill_offset}/{T}"
    take(factories.value(source.store.connection, "select md5(%s)::uuid", reading), 2)
    source.backfill()
    source.finish()
    assert held(source.store)[1:] == [("[2]", "deleted", True)]
    assert stream(source.store, 3)[-1] == ("deleted", None)
    # the event truncated itself
    changes = source.changes(truncated())
    append_foreign(source.store, "updated", "y", UUID(changes[0].event_id))
    source.save(changes)
    source.emit_all()
    assert held(source.store)[2:] == [("[]", "truncated", True)]


def test_what_the_sources_transaction_said_is_what_led_to_the_event(source: Source) -> None:
    said: list[dict[str, object] | None] = [
        {"correlation_id": "request-7", "by": "me"},
        {"correlation_id": 7},  # invalid as metadata: it stays in the change's data
        {},
        None,
    ]
    changes = source.changes(*[inserted(n) for n in range(len(said))])
    source.save([c if a is None else captures.with_data(c, annotations=a) for c, a in zip(changes, said, strict=True)])
    source.emit()
    found = [event for n in range(len(said)) for event in PlatformStore(source.store.connection).read(T, f"[{n}]")]
    assert [event.metadata for event in found] == [said[0], None, None, None]
    assert [event.data.get("annotations") for event in found] == said


def test_a_truncation_ends_streams_whose_events_are_purged_too(source: Source) -> None:
    source.commit(inserted(1), inserted(2))
    source.emit()
    store = PlatformStore(source.store.connection)
    purge(store, "[1]")
    assert list(store.read(T, "[1]")) == []
    source.commit(truncated())
    source.emit_all()
    assert [(event.event, event.version) for event in store.read(T, "[1]")] == [("deleted", 2)]
    assert get_events(store, "[2]", T)[-1].event == "deleted"


def test_emitting_goes_on_beside_appends_of_others_to_the_streams(source: Source, connect: factories.Connect) -> None:
    source.commit(inserted(1), inserted(2))
    source.emit()
    other = connect(autocommit=False)
    append_foreign(CaptureStore(other), "updated", 2)
    source.commit(updated(1), updated(2))
    call = factories.start(source.emit)
    factories.wait_blocked(connect(), source.store.connection.info.backend_pid)
    other.commit()
    assert call.result(patience()).emitted == 2
    assert len(get_events(PlatformStore(source.store.connection), "[2]", T)) == 3
    PlatformStore(source.store.connection).sequence_events()
    factories.assert_log_holds_every_event_once(source.store.connection)


def test_many_changes_are_emitted_in_calls_of_ten_thousand(source: Source) -> None:
    changes: LiteralString = """
        insert into event_store.wal_events
        select %s, ('0/1000'::pg_lsn + n / 100 * 256), n %% 100, '700', now(), %s, format('[%%s]', n %% 6000), 'updated',
          gen_random_uuid(), gen_random_uuid(), jsonb_build_object('record', jsonb_build_object('id', n %% 6000, 'v', n))
        from generate_series(0, 19999) n
    """
    source.store.connection.execute(changes, (source.generation, T))
    end = Lsn(0x1000 + 200 * 256)
    assert source.store.store_changes("c", source.token, end, captures.BEGAN) == 20_000
    for call in range(2):
        assert source.emit() == Emitted(10_000, 0, 0, behind=call < 1)
    assert [v for _, v in stream(source.store, 7)] == [7, 6007, 12007, 18007]


def test_a_truncation_reads_no_more_the_more_changes_each_row_had(source: Source) -> None:
    connection = source.store.connection
    source.store.register_capture("c", "slot_c", "pub_c", [captures.table("t"), captures.table("u")])

    def truncate(name: str) -> int:
        source.commit(truncated(name))
        return factories.buffers(connection, "select * from event_store_platform.emit_changes('c', %s)", source.token)

    source.commit(*[inserted(n, table="t") for n in range(5)])
    source.emit_all()
    truncate("t")  # to warm the session's caches
    source.commit(*[inserted(n, table="t") for n in range(5)])
    source.emit_all()
    once = truncate("t")
    source.commit(*[inserted(10 + n % 5, n, table="u") for n in range(6000)])
    source.emit_all()
    often = truncate("u")
    assert [name for _, name in captures.events(source.store, U)].count("deleted") == 5
    assert often <= once + 150  # one entry for each change would be 450
