"""Backfills and the quarantine in any order: random lives of a source and of the process that captures it."""

from random import Random
from typing import Any, LiteralString
from uuid import UUID

import pytest

from millrace.capture.decoding.pgoutput import Lsn
from millrace.event_store.platform import PlatformStore
from tests.long import seeds
from tests.support.capturing import captures
from tests.support.factories import assert_log_holds_every_event_once, rows, value


class Lives:
    """A source with a table and overlapping transactions, and its capturing process, in any order."""

    def __init__(self, source: captures.Source, random: Random) -> None:
        self.source = source
        self.random = random
        self.rows: dict[int, object] = {}
        self.open: dict[int, captures.Row] = {}
        self.unread: list[Any] = []
        self.chunk: tuple[Any, ...] | None = None
        self.number = 0

    def snapshot(self) -> str:
        xip = ",".join(str(xid) for xid in sorted(self.open))
        return f"{min(self.open, default=self.source.xid)}:{self.source.xid}:{xip}"

    def begin(self) -> None:
        """Begin a transaction that writes a row that no other one writes."""
        free = [key for key in range(8) if all(row.key != key for row in self.open.values())]
        if not free or any(row.action == "truncated" for row in self.open.values()):
            return
        self.open[self.source.xid] = captures.Row(self.random.choice(free))
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
            done = captures.deleted(key)
        elif key in self.rows and self.random.random() < 0.5:
            # v does not change, and the log does not hold its value
            (change,) = self.source.changes(captures.updated(key), xid=xid)
            self.unread.append(captures.with_data(change, record={"id": key, "n": self.number}, unavailable=["v"]))
            return
        else:
            done = (captures.updated if key in self.rows else captures.inserted)(key, self.number)
            self.rows[key] = self.number
        self.unread += self.source.changes(done, xid=xid)

    def truncate(self) -> None:
        if self.open or self.random.random() < 0.7:
            return
        self.rows.clear()
        self.unread += self.source.changes(captures.truncated())

    def store(self) -> None:
        """Read a part of the log, or all of it."""
        if not self.unread:
            return
        part = self.unread[: self.random.randint(1, len(self.unread))]
        self.source.save(part, Lsn(part[-1].commit_lsn + captures.STEP))
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
        last = captures.decider_id(keys[-1]) if keys else None
        stored = self.source.store.emit_backfill(
            "c", self.source.token, "public", "t", snapshot, high_lsn, captures.as_read(read), last, done=done
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
        """Declare another filter: the capture silently loses some rows, and the whole table is read again."""
        if self.random.random() < 0.5:
            return
        self.number += 1
        written = {row.key for row in self.open.values()}
        for key in [key for key in self.rows if key not in written and self.random.random() < 0.3]:
            del self.rows[key]
        self.source.store.register_capture("c", "slot_c", "pub_c", [captures.table(fingerprint=str(self.number))])
        self.source.store.publish_tables("c", self.source.token, self.source.xid)
        self.chunk = None


# in the first three a row changes between its reading and storing, also in a transaction with a lower id
@pytest.mark.parametrize("seed", [8, 14, 20, *seeds(40)])
def test_in_any_course_the_live_streams_are_the_table(source: captures.Source, seed: int) -> None:
    random = Random(seed)
    lives = Lives(source, random)
    often, steps = [lives.begin] * 2 + [lives.commit] * 2, [lives.truncate, lives.store, lives.emit, lives.read]
    for _ in range(random.randint(20, 150)):
        random.choice([*often, *steps, lives.write, lives.lose, lives.finish, lives.declare])()
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
    query: LiteralString = (
        "select decider_id, event, data from event_store.events where decider_id <> '[]' order by \"offset\""
    )
    for key, event, data in rows(source.store.connection, query):
        if event == "deleted":
            live.pop(key, None)
        elif "unavailable" not in data:
            live[key] = data["record"]["v"]
        else:
            live.setdefault(key, "in no event")
    assert live == {captures.decider_id(key): found for key, found in lives.rows.items()}
    query = """
        select e.decider_id, e.version
        from event_store.events e
        join event_store.events b on (b.decider_id, b.decider, b.version) = (e.decider_id, e.decider, e.version - 1)
        where e.event = 'backfilled' and b.event <> 'deleted' and not b.data ? 'unavailable'
          and e.data -> 'record' = b.data -> 'record'
    """
    doubled = rows(source.store.connection, query)
    assert doubled == []
    assert value(source.store.connection, "select count(*) from event_store.unchanged_rows") == 0
    PlatformStore(source.store.connection).sequence_events()
    assert_log_holds_every_event_once(source.store.connection)


@pytest.mark.parametrize("seed", seeds(10))
def test_in_any_course_each_stream_has_all_its_changes_in_order(source: captures.Source, seed: int) -> None:
    random = Random(seed)
    stored: dict[str, list[UUID]] = {}
    for _ in range(40):
        kinds = [captures.faulty if random.random() < 0.1 else captures.updated for _ in range(random.randint(1, 6))]
        for change in source.commit(*[kind(random.randint(0, 3)) for kind in kinds]):
            stored.setdefault(str(change.decider_id), []).append(UUID(change.event_id))
        if random.random() < 0.5:
            source.emit(random.randint(1, 20))
        if random.random() < 0.5 and (there := source.store.quarantined_changes("c")):
            which = random.choice(there)
            source.store.repair_change(which.quarantine_id, str(which.decider_id), '{"record": null}')
        if random.random() < 0.5:
            source.store.requeue_changes("c", *random.choice([(), (captures.T,), (captures.T, "[1]")]))
    source.emit_all()
    found: dict[str, list[UUID]] = {}
    query: LiteralString = 'select decider_id, event_id from event_store.events order by "offset"'
    for key, event_id in rows(source.store.connection, query):
        found.setdefault(key, []).append(event_id)
    for left in source.store.quarantined_changes("c", limit=1000):
        found.setdefault(str(left.decider_id), []).append(left.event_id)
    assert found == stored
