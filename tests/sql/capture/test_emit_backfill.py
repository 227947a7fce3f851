"""A backfill: the rows that a table had, beside its log, whatever happens while they are read."""

from random import Random
from typing import Any

import pytest

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import CaptureStore, EmittedRows
from millrace.resources.errors import EventIdReused, Malformed
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import (
    PUBLISHED,
    STEP,
    Row,
    Source,
    append_foreign,
    as_read,
    decider_id,
    deleted,
    events,
    faulty,
    held,
    inserted,
    progress_of,
    source,
    stream,
    table,
    truncated,
    updated,
    with_data,
)
from tests.support.factories import (
    Connect,
    assert_log_holds_every_event_once,
    refusal,
    rows,
    start,
    terminate,
    value,
    wait_blocked,
)

__all__ = ["source"]

ID = "0b5c1d9e-0000-4000-8000-0000000000ff"


def test_rows_become_events_chunk_by_chunk_and_the_backfill_ends(source: Source) -> None:
    assert source.backfill(1, 2, done=False) == EmittedRows("stored", 2, 0, 0)
    assert progress_of(source) == ("[2]", 2, False, None)
    refusal(Malformed, source.finish)
    assert source.backfill(3, done=False) == EmittedRows("stored", 1, 0, 0)
    assert source.backfill() == EmittedRows("stored", 0, 0, 0)
    assert progress_of(source) == ("[3]", 3, True, 1)
    assert events(source.store) == [("[1]", "backfilled"), ("[2]", "backfilled"), ("[3]", "backfilled")]
    assert source.finish() == 1
    assert source.backfill(4).appended == 0


def test_a_chunk_that_is_given_again_appends_only_what_is_missing(source: Source) -> None:
    source.backfill(1, 2, done=False)
    assert source.backfill(1, 2, 3, done=False) == EmittedRows("stored", 1, 2, 0)
    assert [key for key, _ in events(source.store)] == ["[1]", "[2]", "[3]"]


def test_a_chunk_waits_until_the_log_is_emitted_up_to_where_its_snapshot_sees(source: Source) -> None:
    source.commit(inserted(1))
    assert source.backfill(1, 2).status == "behind"
    source.emit()
    assert source.backfill(1, 2, high_lsn=Lsn(source.lsn + 1)).status == "behind"
    assert progress_of(source) == (None, 0, False, None)
    assert source.backfill(1, 2).status == "stored"


def test_a_snapshot_from_before_the_publication_is_not_taken(source: Source) -> None:
    before = f"{PUBLISHED - 1}:{PUBLISHED + 5}:{PUBLISHED - 1}"
    assert source.backfill(1, snapshot=before).status == "unpublished"
    assert source.backfill(1, snapshot=f"{PUBLISHED}:{PUBLISHED + 5}:").status == "stored"


def test_a_row_with_newer_changes_in_the_log_is_left_out(source: Source) -> None:
    source.commit(inserted(1, "seen"), inserted(2), inserted(3))
    snapshot = f"{source.xid}:{source.xid}:"
    source.commit(updated(1, "newer"), deleted(2))
    source.emit()
    assert source.backfill(1, 2, 3, 4, snapshot=snapshot) == EmittedRows("stored", 2, 2, 0)
    assert stream(source.store, 1)[-1] == ("updated", "newer")
    assert stream(source.store, 2)[-1] == ("deleted", None)
    assert stream(source.store, 3)[-1] == ("backfilled", "read")
    assert stream(source.store, 4) == [("backfilled", "read")]


def test_a_transaction_in_progress_at_the_snapshot_is_newer_although_its_number_is_lower(source: Source) -> None:
    slow = source.xid
    source.xid += 1
    source.commit(inserted(1))
    snapshot = f"{slow}:{source.xid}:{slow}"
    source.save(source.changes(updated(1, "slow"), xid=slow))
    source.emit()
    assert source.backfill(1, snapshot=snapshot).left_out == 1


def test_a_row_of_a_stream_in_the_quarantine_waits_there(source: Source) -> None:
    source.commit(inserted(1), faulty(1), faulty(2, action="inserted"))
    source.emit()
    assert source.backfill(1, 2, 3) == EmittedRows("stored", 1, 0, 2)
    assert held(source.store) == [
        ("[1]", "updated", True),
        ("[2]", "inserted", True),
        ("[1]", "backfilled", False),
        ("[2]", "backfilled", False),
    ]


def test_a_row_that_is_too_large_is_quarantined_with_its_fault(source: Source) -> None:
    source.store.connection.execute("set event_store.max_data_bytes = 1000")
    assert source.backfill(1, value="x" * 1000, done=False) == EmittedRows("stored", 0, 0, 1)
    assert held(source.store) == [("[1]", "backfilled", True)]
    assert source.backfill(1, value="x" * 1000) == EmittedRows("stored", 0, 1, 0)


def test_a_table_that_is_declared_anew_is_read_anew(source: Source) -> None:
    source.commit(inserted(3), inserted(4))
    source.emit()
    source.backfill(1, 2, 3, 4)
    source.finish()
    source.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint="2")])
    assert source.backfill(1, 3).status == "unpublished"
    source.store.publish_tables("c", source.token, source.xid)
    source.commit(updated(4))
    source.emit()
    source.backfill(1, 3, value="anew")
    source.finish()
    # 2 no longer meets the filter; 4 has a change since
    assert stream(source.store, 1)[-1] == ("backfilled", "anew")
    assert stream(source.store, 2)[-1] == ("deleted", None)
    assert stream(source.store, 3)[-1] == ("backfilled", "anew")
    assert stream(source.store, 4)[-1] == ("updated", 2)


def test_the_end_of_a_backfill_takes_bounded_calls_and_goes_on_where_it_was(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(10)])
    source.emit()
    source.begin()
    source.backfill(3, 12)
    assert source.finish(limit=4) == 3
    live = [key for key, name in dict(events(source.store)).items() if name != "deleted"]
    assert sorted(live) == ["[12]", "[3]"]


def test_what_waits_in_the_quarantine_of_a_lost_slot_ends_behind_it(source: Source) -> None:
    source.commit(inserted(1), faulty(1), faulty(2, action="inserted"), faulty(3, action="inserted"))
    source.emit()
    source.begin()
    source.backfill(2)
    source.finish()
    assert held(source.store)[3:] == [
        ("[2]", "backfilled", False),
        ("[1]", "deleted", False),
        ("[3]", "deleted", False),
    ]


def test_a_kill_in_a_chunk_leaves_neither_events_nor_progress_of(source: Source, connect: Connect) -> None:
    holder, observer = connect(autocommit=False), connect()
    append_foreign(CaptureStore(holder), "updated", 3)
    doomed = source.store.connection
    call = start(lambda: source.backfill(1, 2, 3, 4))
    wait_blocked(observer, doomed.info.backend_pid)
    terminate(observer, doomed.info.backend_pid)
    assert call.exception(20) is not None
    holder.rollback()
    source.store = CaptureStore(connect())
    assert (events(source.store), progress_of(source)) == ([], (None, 0, False, None))
    assert source.backfill(1, 2, 3, 4).appended == 4


def test_malformed_chunks_and_unknown_tables_are_refused(source: Source) -> None:
    refusal(Malformed, lambda: source.store.finish_backfill("c", source.token, "public", "none"))
    refusal(Malformed, lambda: source.store.finish_backfill("c", source.token, "public", "t", 0))
    call = "select (event_store.emit_backfill('c', %s, 'public', 't', %s, %s, %s, %s, %s, %s, %s, null, %s)).appended"
    one, data = ["0b5c1d9e-0000-4000-8000-000000000001"], ["{}"]
    cases: tuple[tuple[object, ...], ...] = (
        (None, "0/1", [], [], ID, [], [], True),
        ("800:800:", None, [], [], ID, [], [], True),
        ("800:800:", "0/1", [], [], ID, [], [], None),
        ("800:800:", "0/1", [], [], None, [], [], True),
        ("800:800:", "0/1", None, [], ID, [], [], True),
        ("800:800:", "0/1", [], one, ID, data, [], True),
        ("800:800:", "0/1", ["[1]"], one, ID, [], [], True),
        ("800:800:", "0/1", ["[1]"], one, ID, data, [None, None], True),
        ("800:800:", "0/1", ["[1]"], one, ID, data, None, True),
        ("800:800:", "0/1", ["[1]"], one, ID, ["{"], [], True),
        ("800:800:", "0/1", ["[1]"], [None], ID, data, [], True),
    )
    for arguments in cases:
        refusal(Malformed, lambda a=arguments: source.store._value(int, call, (source.token, *a)))  # type: ignore[misc]
    assert progress_of(source) == (None, 0, False, None)


def test_an_event_id_of_somebody_else_is_refused_by_the_append_or_left_out(source: Source) -> None:
    (change,) = source.commit(inserted(1))
    source.emit()
    source.store.connection.execute(
        "select event_store.emit_backfill('c', %s, 'public', 't', '900:900:', '0/1', '{[9]}', array[%s::uuid], %s, '{\"{}\"}',"
        " '{}', null, false)",
        (source.token, change.event_id, ID),
    )
    assert stream(source.store, 9) == []
    assert issubclass(EventIdReused, Exception)


# any course


class Lives:
    """A source with a table, transactions that overlap, and the process that captures it, in any course."""

    def __init__(self, source: Source, random: Random) -> None:
        self.source = source
        self.random = random
        self.rows: dict[int, object] = {}
        self.open: dict[int, Row] = {}
        self.unread: list[Any] = []
        self.chunk: tuple[Any, ...] | None = None
        self.number = 0

    def snapshot(self) -> str:
        xip = ",".join(str(xid) for xid in sorted(self.open))
        return f"{min(self.open, default=self.source.xid)}:{self.source.xid}:{xip}"

    def begin(self) -> None:
        """Begin a transaction that writes a row which no other one writes."""
        free = [key for key in range(8) if all(row.key != key for row in self.open.values())]
        if not free or any(row.action == "truncated" for row in self.open.values()):
            return
        self.open[self.source.xid] = Row(self.random.choice(free))
        self.source.xid += 1

    def commit(self) -> None:
        if not self.open:
            return
        xid = self.random.choice(list(self.open))
        key = self.open.pop(xid).key
        assert isinstance(key, int)
        self.number += 1
        if key in self.rows and self.random.random() < 0.5:
            del self.rows[key]
            done = deleted(key)
        elif key in self.rows and self.random.random() < 0.5:
            # v stays as it is, and the log does not hold it
            (change,) = self.source.changes(updated(key), xid=xid)
            self.unread.append(with_data(change, record={"id": key, "n": self.number}, unavailable=["v"]))
            return
        else:
            done = (updated if key in self.rows else inserted)(key, self.number)
            self.rows[key] = self.number
        self.unread += self.source.changes(done, xid=xid)

    def truncate(self) -> None:
        if self.open or self.random.random() < 0.7:
            return
        self.rows.clear()
        self.unread += self.source.changes(truncated())

    def store(self) -> None:
        """Read a part of the log, or all of it."""
        if not self.unread:
            return
        part = self.unread[: self.random.randint(1, len(self.unread))]
        self.source.save(part, Lsn(part[-1].commit_lsn + STEP))
        del self.unread[: len(part)]

    def emit(self) -> None:
        self.source.emit(self.random.randint(1, 5))

    def read(self) -> None:
        """Read the next chunk of the table in a snapshot; it may be stored much later, or never."""
        (registered,) = self.source.store.captured_tables("c")
        if self.chunk is not None or registered.rows_read:
            return
        after = -1 if registered.backfill_key is None else int(registered.backfill_key.strip("[]"))
        keys = sorted(key for key in self.rows if key > after)[:3]
        rest = any(key > (keys[-1] if keys else after) for key in self.rows)
        values = [self.rows[key] for key in keys]
        self.chunk = (keys, values, self.snapshot(), self.source.lsn, not rest, registered.backfill_offset)

    def write(self) -> None:
        """Store the chunk that was read; forget it, as a kill does, now and then."""
        if self.chunk is None:
            return
        if self.random.random() < 0.7:
            while self.unread:
                self.store()
            self.source.emit_all()
        keys, values, snapshot, high_lsn, done, backfill_offset = self.chunk
        read = [self.source._row(key, "t", value, backfill_offset) for key, value in zip(keys, values, strict=True)]
        last = decider_id(keys[-1]) if keys else None
        stored = self.source.store.emit_backfill(
            "c", self.source.token, "public", "t", snapshot, high_lsn, as_read(read), last, done=done
        )
        if stored.status != "behind" or self.random.random() < 0.2:
            self.chunk = None

    def lose(self) -> None:
        """Lose the slot with its unread changes, and make another one."""
        if self.open or self.random.random() < 0.5:
            return
        self.source.emit_all()
        self.unread.clear()
        self.source.begin()
        self.chunk = None

    def finish(self) -> None:
        (registered,) = self.source.store.captured_tables("c")
        if registered.rows_read:
            self.source.store.finish_backfill("c", self.source.token, "public", "t", self.random.randint(1, 4))

    def declare(self) -> None:
        """Declare another filter: some rows are captured no more, silently in the log, and everything is read anew."""
        if self.random.random() < 0.5:
            return
        self.number += 1
        written = {row.key for row in self.open.values()}
        for key in [key for key in self.rows if key not in written and self.random.random() < 0.3]:
            del self.rows[key]
        self.source.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint=str(self.number))])
        self.source.store.publish_tables("c", self.source.token, self.source.xid)
        self.chunk = None


@pytest.mark.parametrize("seed", range(40))
def test_in_any_course_the_live_streams_are_the_table(source: Source, seed: int) -> None:
    random = Random(seed)
    lives = Lives(source, random)
    for _ in range(random.randint(20, 150)):
        random.choice(
            [
                lives.begin, lives.begin, lives.commit, lives.commit, lives.truncate, lives.store, lives.emit, lives.read,
                lives.write, lives.lose, lives.finish, lives.declare,
            ]
        )()  # fmt: skip
    while lives.open:
        lives.commit()
    while True:
        while lives.unread:
            lives.store()
        source.emit_all()
        (registered,) = source.store.captured_tables("c")
        if registered.backfill_generation is not None:
            break
        lives.read()
        lives.write()
        lives.finish()
    live: dict[str, object] = {}
    for key, event, data in rows(
        source.store.connection,
        "select decider_id, event, data from event_store.events where decider_id <> '[]' order by \"offset\"",
    ):
        if event == "deleted":
            live.pop(key, None)
        elif "unavailable" not in data:
            live[key] = data["record"]["v"]
        else:
            live.setdefault(key, "in no event")
    assert live == {decider_id(key): found for key, found in lives.rows.items()}
    doubled = rows(
        source.store.connection,
        """
        select e.decider_id, e.version
        from event_store.events e
        join event_store.events b on (b.decider_id, b.decider, b.version) = (e.decider_id, e.decider, e.version - 1)
        where e.event = 'backfilled' and b.event <> 'deleted' and not b.data ? 'unavailable'
          and e.data -> 'record' = b.data -> 'record'
        """,
    )
    assert doubled == []
    assert value(source.store.connection, "select count(*) from event_store.unchanged_rows") == 0
    EventStore(source.store.connection).sequence_events()
    assert_log_holds_every_event_once(source.store.connection)
