"""Slots of a real source: made, read, advanced, dropped, held by another session, lost."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import Connection

from millrace.capture.decoding.pgoutput import Insert, Lsn, decode
from millrace.capture.source import slot as slots
from millrace.capture.source.connection import connect_source, flush_lsn
from millrace.capture.source.slot import SlotBusy, SlotLost, SlotState, advance, create_slot, drop_slot, slot_state
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres
from tests.support.capturing.given import given
from tests.support.capturing.sources import Source
from tests.support.factories import start, value
from tests.support.patience import patience, wait_until


@pytest.fixture
def capturing(source: Source) -> Iterator[Connection]:
    """Open a session of `connect_source`; the source has tables `t` and `other`, a slot, and a publication of `t`."""
    source.run("create table t (id int primary key, note text)", "create table other (note text)")
    with connect_source(source.dsn) as connection:
        connection.execute(f"create publication {source.slot} for table t".encode())
        create_slot(connection, source.slot)
        yield connection


def keys(connection: Connection, slot: str) -> list[bytes]:
    messages = map(decode, given(connection, slot))
    return [message.new[0] for message in messages if isinstance(message, Insert) and isinstance(message.new[0], bytes)]


def slot_now(connection: Connection, slot: str) -> SlotState:
    state = slot_state(connection, slot)
    assert state is not None
    return state


def consumed(connection: Connection, slot: str) -> Lsn | None:
    return slot_now(connection, slot).confirmed_flush_lsn


@contextmanager
def reader(source: Source, postgres: EmbeddedPostgres) -> Iterator[int]:
    """Start another program that holds the slot; yield the pid of its session."""
    held = subprocess.Popen(
        [PROGRAMS / "pg_recvlogical", "--start", "-S", source.slot, "-d", source.dsn, "-f", "-", "-o", "proto_version=1",
         "-o", f"publication_names={source.slot}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as observer:
            query = "select active_pid from pg_replication_slots where slot_name = %s"
            wait_until(lambda: value(observer, query, source.slot) is not None, "the slot is held")
            yield value(observer, query, source.slot)
    finally:
        held.kill()
        held.wait()


def test_a_new_slot_holds_what_commits_from_then_on(capturing: Connection, source: Source) -> None:
    state = slot_now(capturing, source.slot)
    assert (state.plugin, state.database, state.active_pid, state.wal_status, state.lost) == (
        "pgoutput", source.slot, None, "reserved", None,
    )  # fmt: skip
    source.run("insert into t values (1)", "insert into t values (2)")
    assert keys(capturing, source.slot) == [b"1", b"2"]
    assert keys(capturing, source.slot) == [b"1", b"2"]  # nothing was consumed


def test_the_consistent_point_is_where_the_slot_stands(source: Source) -> None:
    source.listen()
    drop_slot(source.connection, source.slot)
    assert create_slot(source.connection, source.slot) == consumed(source.connection, source.slot)
    with pytest.raises(psycopg.errors.DuplicateObject):
        create_slot(source.connection, source.slot)


def test_a_slot_waits_for_open_transactions_until_somebody_cancels_that(source: Source) -> None:
    source.run("create table t (id int)", "begin", "insert into t values (1)")
    with connect_source(source.dsn) as connection:
        connection.execute("set statement_timeout = '100ms'")
        connection.execute("set lock_timeout = '100ms'")
        said: list[str] = []

        def cancel(whom: str) -> None:
            said.append(whom)
            source.connection.execute("select pg_cancel_backend(%s)", (connection.info.backend_pid,))

        with pytest.raises(SlotBusy, match="was not made"):
            create_slot(connection, source.slot, cancel)
        assert f"session {source.connection.info.backend_pid} " in said[0]
        assert slot_state(connection, source.slot) is None
    source.run("rollback")


def test_a_slot_says_how_much_it_holds_back(capturing: Connection, source: Source) -> None:
    advance(capturing, source.slot, flush_lsn(capturing)[0])
    before = slot_now(capturing, source.slot)
    source.run("insert into t select n, repeat('x', 1000) from generate_series(1, 1000) n")
    after = slot_now(capturing, source.slot)
    assert before.lag_bytes == 0
    assert after.lag_bytes is not None
    assert after.retained_bytes is not None
    assert after.lag_bytes > 1_000_000
    assert after.retained_bytes >= after.lag_bytes
    for n in range(20):
        source.connection.execute("insert into t values (%s)", (-n,))
    much_later = slot_now(capturing, source.slot)
    assert (much_later.xid_age or 0) - (after.xid_age or 0) >= 20
    if capturing.info.server_version >= 170000:
        assert after.inactive_since is not None
        assert abs((datetime.now(UTC) - after.inactive_since).total_seconds()) < 60


def test_a_slot_that_is_held_is_waited_for(capturing: Connection, source: Source, postgres: EmbeddedPostgres) -> None:
    source.run("insert into t values (1)")
    with reader(source, postgres) as pid:
        reading = start(lambda: keys(capturing, source.slot))
        refused = "select count(*) from pg_stat_activity where query ~ %s and application_name = 'millrace' and state = 'idle'"
        wait_until(
            lambda: value(source.connection, refused, f"^START_REPLICATION.*{source.slot}") == 1,
            "it was refused, and tries again",
        )
        source.connection.execute("select pg_terminate_backend(%s)", (pid,))
    assert reading.result(patience()) == [b"1"]


def test_a_slot_that_somebody_keeps_is_busy(
    capturing: Connection, source: Source, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "BUSY_S", 0.2)
    source.run("insert into t values (1)")
    with reader(source, postgres) as pid:
        assert slot_now(capturing, source.slot).active_pid == pid
        for refused in (
            lambda: given(capturing, source.slot),
            lambda: advance(capturing, source.slot, flush_lsn(capturing)[0]),
            lambda: drop_slot(capturing, source.slot),
        ):
            with pytest.raises(SlotBusy) as busy:
                refused()
            assert str(pid) in (busy.value.detail or "")
            assert busy.value.hint


def test_a_slot_that_is_gone_is_lost(capturing: Connection, source: Source) -> None:
    drop_slot(capturing, source.slot)
    with pytest.raises(SlotLost, match="no such slot"):
        given(capturing, source.slot)
    with pytest.raises(SlotLost, match="no such slot"):
        advance(capturing, source.slot, flush_lsn(capturing)[0])


def test_a_slot_of_a_removed_log_is_lost(capturing: Connection, source: Source, postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        try:
            admin.execute("alter system set max_slot_wal_keep_size = '1MB'")
            admin.execute("select pg_reload_conf()")
            for _ in range(3):
                source.run("insert into t select n, repeat('x', 1000) from generate_series(1, 1000) n; truncate t")
                admin.execute("select pg_switch_wal()")
            admin.execute("checkpoint")
            state = slot_now(capturing, source.slot)
            assert state.lost
            for refused in (
                lambda: given(capturing, source.slot),
                lambda: advance(capturing, source.slot, flush_lsn(capturing)[0]),
            ):
                with pytest.raises(SlotLost) as lost:
                    refused()
                assert lost.value.detail == state.lost
        finally:
            admin.execute("alter system reset max_slot_wal_keep_size")
            admin.execute("select pg_reload_conf()")
