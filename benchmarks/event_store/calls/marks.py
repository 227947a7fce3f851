"""Recorded moments of the log: the idle pass beside one that records none, and their share of a busy hour's CPU."""

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import psycopg

from benchmarks.cpu import backend_us
from benchmarks.event_store.bench import DATA, Bench, Result, fill
from benchmarks.event_store.calls.growth import APPEND

# of 90 days, one a minute
KEPT = 129_600
APPENDS_A_SECOND = 20
MOST_IDLE, MOST_OF_AN_HOUR = 1.02, 0.001
PASS = b"select event_store_platform.sequence_events()"
MARK = b"select event_store_private.add_mark(null)"


def cost(bench: Bench) -> list[Result]:
    """Measure beside a store whose sequencer records nothing; the hour is one of the store's clock."""
    marked, bare = bench.ours(), bench.ours()
    bare.run(
        "create or replace function event_store_private.add_mark(v_reason text) returns event_store.log_marks"
        " language sql set search_path = event_store, pg_temp return null::event_store.log_marks"
    )
    kept, number, seconds = bench.size(KEPT, 100), bench.size(2000, 20), bench.size(3600, 130)
    marked.run(
        "insert into event_store.log_marks (marked_at, marks)"
        " select now() - n * interval '1 minute', array_fill(1::bigint, '{16}')"
        f" from generate_series(1, {kept}) n"
    )
    for database in (marked, bare):
        fill(database, "log", bench.size(2000, 20))
        database.run(PASS.decode())
        database.run("vacuum analyze")

    def repeat(connection: psycopg.Connection, call: bytes) -> None:
        for _ in range(number):
            connection.execute(call, prepare=True)

    with marked.connect() as ours, bare.connect() as other:
        measures = [
            partial(backend_us, connection, partial(repeat, connection, call), number)
            for connection, call in ((ours, PASS), (other, PASS), (ours, MARK))
        ]
        for measure in measures:
            measure()  # warm
        idle, without, mark = bench.in_turn(*measures)
        whole = backend_us(ours, partial(busy, ours, seconds))
        marks = len(marked.run("select mark_id from event_store.log_marks where marked_at > now()"))
    share = marks * mark / whole
    return [
        Result("a pass with nothing new; none is recorded", idle, without, "us of CPU", MOST_IDLE * without / idle, 1),
        Result(f"a mark beside {kept:,}", mark, unit="us of CPU"),
        Result(f"marks of {seconds:,} s with {APPENDS_A_SECOND} appends each", marks, unit="marks"),
        Result("  their % of the CPU; the most", share * 100, MOST_OF_AN_HOUR * 100, "%", MOST_OF_AN_HOUR / share, 1),
    ]


def busy(connection: psycopg.Connection, seconds: int) -> None:
    """Append and sequence for so many seconds of the store's clock."""
    began = datetime.now(UTC) + timedelta(hours=1)
    for second in range(seconds):
        clock = (began + timedelta(seconds=second)).isoformat()
        connection.execute("select set_config('event_store.clock', %s, false)", (clock,))
        for _ in range(APPENDS_A_SECOND):
            connection.execute(APPEND, (uuid4(), uuid4(), DATA, uuid4()), prepare=True)
        connection.execute(PASS, prepare=True)
