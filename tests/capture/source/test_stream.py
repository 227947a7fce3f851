"""The stream of a real source's slot: its messages, its end, advancing the slot, and failures that it detects."""

import threading

import psycopg
import pytest
from psycopg import Connection

from millrace.capture.decoding.pgoutput import Begin, Commit, Insert, Lsn, Message, decode
from millrace.capture.source import connection as connections
from millrace.capture.source import slot as slots
from millrace.capture.source import stream as streams
from millrace.capture.source.connection import connect_source, flush_lsn
from millrace.capture.source.slot import PublicationMissing, SlotBusy, SlotLost, drop_slot, slot_state
from millrace.capture.source.stream import NoStream, SlotStream
from millrace.postgres.connecting import NoAnswer
from millrace.postgres.embedded import EmbeddedPostgres
from tests.capture.source.test_slot import capturing
from tests.support.building.relay import Relay
from tests.support.capturing.sources import Source
from tests.support.factories import value
from tests.support.patience import wait_until

__all__ = ["capturing"]

GOES_ON = threading.Event()


def opened(connection: Connection, source: Source, *, takes_over: bool = False) -> SlotStream:
    return SlotStream(connection, source.slot, source.slot, takes_over=takes_over)


def taken(stream: SlotStream, connection: Connection) -> list[Message]:
    flushed, _ = flush_lsn(connection)
    found: list[Message] = []
    while stream.passed_lsn < flushed:
        found += map(decode, stream.messages(flushed, GOES_ON))
    return found


def keys(messages: list[Message]) -> list[bytes]:
    return [message.new[0] for message in messages if isinstance(message, Insert) and isinstance(message.new[0], bytes)]


def consumed(connection: Connection, source: Source) -> Lsn | None:
    state = slot_state(connection, source.slot)
    assert state is not None
    return state.confirmed_flush_lsn


def heard(source: Source) -> int:
    """Return at how many milliseconds after the start of the stream the server last heard from the client."""
    look = "select extract(epoch from r.reply_time - r.backend_start) * 1000 from pg_stat_replication r"
    query = f"{look} join pg_replication_slots s on s.active_pid = r.pid where s.slot_name = %s"
    return int(value(source.connection, query, source.slot) or 0)


def test_transactions_are_given_whole_in_the_order_of_their_commits(capturing: Connection, source: Source) -> None:
    source.run("begin", "insert into t select generate_series(1, 1000)")
    with psycopg.connect(source.dsn, autocommit=True) as other:
        other.execute("insert into t values (2001)")
    source.run("commit", "insert into t values (2002)")
    with opened(capturing, source) as stream:
        found = taken(stream, capturing)
        assert keys(found) == [b"2001", *(b"%d" % n for n in range(1, 1001)), b"2002"]
        assert [type(message) for message in (found[0], found[-1])] == [Begin, Commit]
        assert taken(stream, capturing) == []
        source.run("insert into t values (2003)")
        assert keys(taken(stream, capturing)) == [b"2003"]


def test_what_was_not_given_up_comes_again(capturing: Connection, source: Source) -> None:
    source.run("insert into t values (1)", "insert into t values (2)")
    with opened(capturing, source) as stream:
        found = taken(stream, capturing)
        first = next(message for message in found if isinstance(message, Commit))
        stream.advance(first.end_lsn)
    assert consumed(capturing, source) == first.end_lsn
    with opened(capturing, source) as stream:
        assert keys(taken(stream, capturing)) == [b"2"]
        # its commit begins there
        stream.advance(first.end_lsn)
    with opened(capturing, source) as stream:
        assert keys(taken(stream, capturing)) == [b"2"]


def test_reading_can_end_within_a_transaction(capturing: Connection, source: Source) -> None:
    source.run("insert into t select generate_series(1, 10000)")
    flushed, _ = flush_lsn(capturing)
    with opened(capturing, source) as stream:
        assert isinstance(decode(next(stream.messages(flushed, GOES_ON))), Begin)

    def fail() -> None:
        with opened(capturing, source) as stream:
            next(stream.messages(flushed, GOES_ON))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with opened(capturing, source) as stream:
        assert len(keys(taken(stream, capturing))) == 10000


def test_who_is_to_stop_between_two_transactions_ends_there(capturing: Connection, source: Source) -> None:
    stop = threading.Event()
    stop.set()
    with opened(capturing, source) as stream:
        assert list(stream.messages(Lsn(2**63), stop)) == []


def test_only_stored_changes_move_it(capturing: Connection, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_SIGN_S", 0.02)
    source.run("insert into t values (1)")
    with opened(capturing, source) as stream:
        end = next(message.end_lsn for message in taken(stream, capturing) if isinstance(message, Commit))
        stream.advance(end)
        # a transaction that was read and not stored, an open one, and log of other tables
        source.run("insert into t values (2); insert into other select repeat('x', 1000) from generate_series(1, 100)")
        assert keys(taken(stream, capturing)) == [b"2"]
        source.run("insert into other select repeat('x', 1000) from generate_series(1, 100)")
        assert taken(stream, capturing) == []
        before = heard(source)
        wait_until(lambda: heard(source) > before + 200, "it said several times that it is there")
        assert consumed(capturing, source) == end
    assert consumed(capturing, source) == end


def test_a_slow_caller_is_waited_for(capturing: Connection, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PATIENCE_S", 1)
    monkeypatch.setattr(streams, "_SIGN_S", 0.1)
    # more than the buffers between server and client hold
    source.run("insert into t select n, repeat('x', 1000) from generate_series(1, 20000) n")
    with opened(capturing, source) as stream:
        wait_until(lambda: heard(source) > 3000, "three times as long as the server waits for a word")
        assert len(keys(taken(stream, capturing))) == 20000


def test_a_silent_stream_is_ended(capturing: Connection, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.run("insert into t select n, repeat('x', 1000) from generate_series(1, 20000) n")
    with monkeypatch.context() as patch:
        patch.setattr(connections, "PATIENCE_S", 1)
        stream = opened(capturing, source)
        wait_until(
            lambda: value(capturing, "select bool_and(active_pid is null) from pg_replication_slots"),
            "the server gave it up",
        )
        with stream, pytest.raises(psycopg.OperationalError):
            taken(stream, capturing)
    with opened(capturing, source) as stream:
        assert len(keys(taken(stream, capturing))) == 20000


@pytest.mark.usefixtures("capturing")
def test_a_silent_link_is_noticed(source: Source, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_SIGN_S", 0.05)
    relay = Relay(f"{postgres.socket}/.s.PGSQL.5432")
    try:
        parameters = {"host": "127.0.0.1", "port": str(relay.server_address[1])}
        with connect_source(psycopg.conninfo.make_conninfo(source.dsn, **parameters)) as far:
            stream = opened(far, source)
            # while the server answers, no change has to arrive
            monkeypatch.setattr(streams, "ANSWER_S", 0.5)
            before = heard(source)
            wait_until(
                lambda: taken(stream, far) == [] and heard(source) > before + 1000,
                "for twice as long each side hears the other",
            )
            relay.hush()
            with pytest.raises(NoAnswer):
                list(stream.messages(Lsn(2**63), GOES_ON))
            stream.close()
    finally:
        relay.cut()


def test_decoding_is_waited_for(capturing: Connection, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.run("insert into other select 'x' from generate_series(1, 300000)", "insert into t values (1)")
    with opened(capturing, source) as stream:
        # the server hears nothing from the client, and decodes for longer than the answer timeout
        monkeypatch.setattr(streams, "ANSWER_S", 0.02)
        stream._silent_until = 0.0
        monkeypatch.setattr(streams, "LOOK_S", float("inf"))
        assert keys(taken(stream, capturing)) == [b"1"]


def test_a_publication_that_is_dropped_is_missed_also_when_it_is_back(capturing: Connection, source: Source) -> None:
    again = f"create publication {source.slot} for table t".encode()
    with opened(capturing, source) as stream:
        source.run("insert into t values (1)")
        assert keys(taken(stream, capturing)) == [b"1"]
        capturing.execute(f"drop publication {source.slot}".encode())
        source.run("insert into t values (2)")
        capturing.execute(again)
        source.run("insert into t values (3)")
        with pytest.raises(PublicationMissing) as missing:
            taken(stream, capturing)
        assert source.slot in (missing.value.detail or "")
    with opened(capturing, source) as stream, pytest.raises(PublicationMissing):
        taken(stream, capturing)
    capturing.execute(f"drop publication {source.slot}".encode())
    with pytest.raises(PublicationMissing, match="none of this name"):
        opened(capturing, source)


def test_a_slot_that_is_lost_while_it_is_read(capturing: Connection, source: Source) -> None:
    def lose() -> None:
        capturing.execute("select pg_terminate_backend(active_pid, 10000) from pg_replication_slots")
        capturing.execute("select pg_drop_replication_slot(%s)", (source.slot,))

    with opened(capturing, source) as stream:
        lose()
        with pytest.raises(SlotLost, match="no such slot"):
            list(stream.messages(Lsn(2**63), GOES_ON))


def test_only_the_lease_ends_a_reader(capturing: Connection, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "BUSY_S", 0.2)
    source.run("insert into t values (1)")
    with opened(capturing, source, takes_over=True) as former:
        assert keys(taken(former, capturing)) == [b"1"]
        with pytest.raises(SlotBusy):
            opened(capturing, source)
        monkeypatch.undo()
        with opened(capturing, source, takes_over=True) as stream:
            assert keys(taken(stream, capturing)) == [b"1"]
            with pytest.raises(psycopg.OperationalError):
                list(former.messages(Lsn(2**63), GOES_ON))
            # dropping the slot ends the reader too
            drop_slot(capturing, source.slot)
            with pytest.raises(SlotLost):
                list(stream.messages(Lsn(2**63), GOES_ON))
            stream.close()


@pytest.mark.usefixtures("capturing")
def test_a_role_that_may_not_replicate_is_told_what_it_needs(source: Source) -> None:
    source.run("create role plain login")
    try:
        with (
            connect_source(psycopg.conninfo.make_conninfo(source.dsn, user="plain")) as plain,
            pytest.raises(NoStream) as refused,
        ):
            opened(plain, source)
        assert "`replication`" in (refused.value.hint or "")
        assert "max_wal_senders" in (refused.value.hint or "")
    finally:
        source.run("drop role plain")


def test_no_limit_ends_a_stream(capturing: Connection, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_SIGN_S", 0.05)
    limits: list[str] = ["statement_timeout = '50ms'", "lock_timeout = '50ms'", "temp_file_limit = '64kB'"]
    if capturing.info.server_version >= 170000:
        limits.append("transaction_timeout = '50ms'")
    for limit in limits:
        source.run(f"alter database {source.slot} set {limit}")
    source.run("insert into t select n, repeat('x', 1000) from generate_series(1, 20000) n")
    with connect_source(source.dsn) as limited, opened(limited, source) as stream:
        before = heard(source)
        messages = stream.messages(flush_lsn(capturing)[0], GOES_ON)
        first = [next(messages) for _ in range(10)]
        # the stream stays within the transaction for longer than these timeouts
        wait_until(lambda: heard(source) > before + 200, "it says several times that it is there")
        assert len(keys([decode(message) for message in (*first, *messages)])) == 20000
