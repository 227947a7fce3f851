"""A table that is compared with its streams, to verify, to repair, or because its capture restarts."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from psycopg import Connection

from millrace.capture import backfill as backfilling
from millrace.capture import verify as verifying
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.drain import CaptureReport
from millrace.capture.source import chunks as source_chunks
from millrace.capture.source.chunks import Chunk
from millrace.capture.source.connection import flush_lsn
from millrace.capture.source.stream import SlotStream
from millrace.capture.verify import BadCondition, Verification
from tests.support.capturing.captured import Captured, declared, preceded, replay
from tests.support.patience import patience

ITEMS = CapturedTable("items")


def events(captured: Captured) -> int:
    return int(captured.value("select count(*) from event_store.events"))


def verified(captured: Captured, repairs: str | None = None, where: str | None = None) -> Verification:
    return captured.verify(ITEMS, repairs=repairs, where=where)


@pytest.fixture
def wrong(captured: Captured) -> Captured:
    """Three rows of a hundred differ from the log: the store was changed behind the capture's back."""
    captured.run("insert into items select n, 'old', n from generate_series(1, 100) n")
    captured.drain()
    captured.store.execute("set session_replication_role = replica")
    captured.store.execute(
        "update event_store.events set data = jsonb_set(data, '{record,name}', '\"wrong\"') where decider_id = '[7]'"
    )
    captured.store.execute("update event_store.events set decider_id = '[200]' where decider_id = '[8]'")
    captured.store.execute("reset session_replication_role")
    return captured


def test_verifying_makes_no_event_and_a_repair_makes_what_differs(wrong: Captured) -> None:
    before = events(wrong)
    for _ in range(2):
        found = verified(wrong)
        assert (found.rows, found.unchanged, found.changed, found.missing, found.gone) == (100, 98, 1, 1, 1)
        assert sorted(found.examples) == ["[200]", "[7]", "[8]"]
        assert events(wrong) == before
    assert wrong.replayed() != wrong.table()
    found = verified(wrong, "the store was changed")
    assert (found.changed, found.missing, found.gone) == (1, 1, 1)
    assert events(wrong) == before + 3
    assert wrong.replayed() == wrong.table()
    assert wrong.rows("select operation, reason from event_store.audit_log where operation = 'begin_verification'") == [
        ("begin_verification", "the store was changed")
    ]
    assert verified(wrong).differing == 0
    assert wrong.value("select count(*) from event_store.verifications") == 0
    assert wrong.value("select count(*) from event_store.unchanged_rows") == 0


def test_a_condition_that_is_none_of_the_table_is_refused(wrong: Captured) -> None:
    with pytest.raises(BadCondition, match="nothing like it"):
        verified(wrong, "some", where='"nothing like it" = 1')


def test_only_rows_that_are_captured_are_read(wrong: Captured) -> None:
    some = replace(wrong, capture=Capture("shop", lambda: wrong.source.dsn, (CapturedTable("items", where="id < 50"),)))
    some.drain()
    (declared,) = some.capture.tables
    found = some.verify(declared, where="id > 40 or id = 1")
    assert (found.rows, found.unchanged) == (10, 10)


def test_an_idle_source_is_caught_up_with_at_once(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    with captured.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        counting = preceded(SlotStream.messages, lambda: looks.append(None))
        monkeypatch.setattr(SlotStream, "messages", counting)
        for _ in range(3):
            captured.run("create table if not exists others (id int)", "insert into others values (1)")
            flushed, _ = flush_lsn(captured.source.connection)
            process.catch_up(flushed)
    assert len(looks) <= 6


def test_what_was_not_captured_yet_is_captured_first(captured: Captured) -> None:
    captured.run("insert into items values (1)")
    assert verified(captured).unchanged == 1
    captured.run("insert into items values (2)", "delete from items where id = 1")
    found = verified(captured)
    assert (found.rows, found.unchanged, found.differing) == (1, 1, 0)
    assert [(c["action"], c["record_pk"]) for c in captured.changes()] == [
        ("backfilled", "[1]"), ("inserted", "[2]"), ("deleted", "[1]")
    ]  # fmt: skip


def test_beside_a_process_that_captures_it_waits_for_that(wrong: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 30)
    stop = threading.Event()
    changed = iter(range(1000, 2000))

    def read_chunk(connection: Connection, table: CapturedTable, after: Sequence[str] | None, limit: int) -> Chunk:
        wrong.run(f"insert into items values ({next(changed)})")
        chunk = source_chunks.read_chunk(connection, table, after, min(limit, 30))
        wrong.run("update items set ok = true where id % 10 = 5", "delete from items where id = 50")
        return chunk

    monkeypatch.setattr(verifying, "read_chunk", read_chunk)
    with wrong.process() as process, ThreadPoolExecutor(1) as thread:
        running = thread.submit(process.drain, budget_s=patience(), idle_s=60, stop=stop)
        try:
            found = verified(wrong, "beside")
        finally:
            stop.set()
        running.result()
    assert (found.changed, found.missing, found.gone) == (1, 1, 1)
    assert found.left_out > 0
    assert wrong.replayed() == wrong.table()


USUAL = (
    "true", "null::bool", "(-7)::int2", "7", "7::int8", "7::oid", "1.50", "'NaN'::numeric", "'Infinity'::numeric", "1e300::numeric",
    "0.1::float4", "1e-300::float8", "'-Infinity'::float8", "'a\"\\'::text", "' x '::char(5)", "'x'::varchar", "'\\x00ff'::bytea",
    "'{\"a\": 1.50}'::json", "'{\"a\": [1, null]}'::jsonb", "'2024-02-29'::date", "'infinity'::timestamptz", "'4713-01-01 BC'::date",
    "'2024-01-01 00:00:00.123456+05'::timestamptz", "'1 day 02:03:04.5'::interval", "'{1,NULL,3}'::int[]", "'(1,2)'::point",
    "gen_random_uuid()", "'[1,2)'::int4range", "'1.2.3.4/8'::inet", "'B101'::bit(3)", "'a b'::tsvector", "'1.50'::money",
)  # fmt: skip
OF_ITS_OWN = (
    "'ha\"p\\py'::mood", "2.5::amount", "row(1, E'a\\tb')::pair", "array['a', E'b\\n\"c\\\\', null]",
    "E'a\\tb\\nc\\\\d\\re\\bf\\fg\\vh'", "''", "'\\.'", "'\\N'", "repeat('x', 5000)",
)  # fmt: skip


def anew(captured: Captured) -> CaptureReport:
    captured.restart("a test")
    return captured.drain()


def test_a_capture_that_begins_anew_does_not_double_the_log(captured: Captured) -> None:
    captured.run(
        "create type mood as enum ('sad', 'ha\"p\\py')",
        "create domain amount as numeric(10,2)",
        "create type pair as (a int, b text)",
    )
    columns = ", ".join(f"{expression} as c{at}" for at, expression in enumerate((*USUAL, *OF_ITS_OWN)))
    captured.run(f"create table many as select 1 as id, {columns}")
    captured.run(
        "alter table many add primary key (id); alter table many add long text; alter table many alter long set storage external",
        "create table parts (id int primary key, name text) partition by range (id);"
        "create table parts_1 partition of parts for values from (0) to (1000)",
        "insert into items select n, 'backfilled', n / 3.0 from generate_series(1, 100) n",
    )
    both = declared(captured, CapturedTable("items"), CapturedTable("many"), CapturedTable("parts"))
    both.drain()
    # the same types through the log, and values that an update leaves out
    both.run(
        "update many set id = 2, long = repeat('x', 5000)", "update many set c3 = 8",
        "insert into items values (101, null, 'NaN', true)", "update items set ok = false where id % 2 = 0",
        "insert into parts select n, 'x' from generate_series(1, 50) n",
    )  # fmt: skip
    both.drain()
    before = events(both)
    report = anew(both)
    assert (report.backfilled, report.unchanged) == (0, 152)
    assert events(both) == before
    # a new partition without rows causes no backfill
    both.run("create table parts_2 partition of parts for values from (1000) to (2000)")
    report = both.drain()
    assert (report.backfilled, report.unchanged, events(both)) == (0, 0, before)
    # unseen by the capture
    both.run("insert into parts values (1500, 'new')")
    slot = both.value("select slot from event_store.captures")
    both.source.connection.execute("select pg_drop_replication_slot(%s)", (slot,))
    both.run("delete from items where id = 7", "update items set name = 'unseen' where id = 8")
    report = anew(both)
    assert (report.backfilled, report.unchanged) == (2, 150)
    assert events(both) == before + 3
    assert replay(both.changes())["items", "[8]"] == {"id": 8, "name": "unseen", "amount": 8 / 3, "ok": False}
    assert ("items", "[7]") not in replay(both.changes())
