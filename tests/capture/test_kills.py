"""A capture that is killed at each step of each of its tasks: nothing is missing, and nothing comes twice."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from threading import Event
from typing import ClassVar, LiteralString

import pytest

from millrace.capture import backfill, drain
from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding import arriving
from millrace.capture.decoding import changes as captured_changes
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.prepare import remove
from millrace.capture.quarantine import requeue
from millrace.capture.setup import GapOpen
from millrace.capture.source.stream import SlotStream
from millrace.capture.store import CaptureStore
from millrace.errors import UnknownCapture
from tests.support.capturing import kill_steps
from tests.support.capturing.captured import Captured, assert_left, declared, dying, killed_at, schemas_told
from tests.support.capturing.kill_steps import Step
from tests.support.factories import Killed, rows, value

ITEMS = CapturedTable("items")
Did = list[tuple[str, str]]


class Scenario:
    """Rows of a table change; each turn has rows of its own."""

    steps: ClassVar[tuple[Step, ...]] = (*kill_steps.STORING, *kill_steps.EMITTING, *kill_steps.PURGING)

    def __init__(self, captured: Captured, patch: pytest.MonkeyPatch) -> None:
        self.captured, self.patch = captured, patch
        self.seen = 0
        self.make()

    def make(self) -> None:
        self.captured.run("insert into items values (1, 'read')")
        self.captured.drain()

    def happen(self, turn: int) -> None:
        """Change the source."""
        first = turn * 10
        self.captured.run(f"""
            insert into items values ({first}, 'a'), ({first + 1}, 'a'), ({first + 2}, 'a');
            update items set name = 'b' where id = {first};
            update items set id = {first + 5} where id = {first + 1}
            """)
        self.captured.run(f"delete from items where id = {first + 2}")

    def expected(self, turn: int) -> Did:
        """Return the changes of rows that become events by that."""
        new, moved, gone, there = (f"[{turn * 10 + n}]" for n in (0, 1, 2, 5))
        insertions = [("inserted", new), ("inserted", moved), ("inserted", gone)]
        return [*insertions, ("updated", new), ("deleted", moved), ("updated", there), ("deleted", gone)]

    def run(self) -> None:
        self.captured.drain()

    def look(self, turn: int) -> None:
        streamed = [c for c in self.captured.changes() if c["action"] != "backfilled"]
        assert [(c["action"], c["record_pk"]) for c in streamed[self.seen :]] == self.expected(turn)
        self.seen = len(streamed)
        assert_left(self.captured, "items")


class Replayed(Scenario):
    """The slot repeats changes that a killed run has stored."""

    steps = (*kill_steps.REPLAYING, Step(SlotStream, "advance"))

    def happen(self, turn: int) -> None:
        super().happen(turn)
        killed_at(self.captured, self.patch, SlotStream, "advance")


class Renamed(Scenario):
    """A table has another name for a while, and changes under it."""

    steps = kill_steps.STORING[3:]

    def happen(self, turn: int) -> None:
        self.captured.run("alter table items rename to things")
        self.captured.run(f"insert into things values ({turn * 10}, 'elsewhere')")
        self.captured.run("alter table things rename to items")

    def expected(self, turn: int) -> Did:
        return [("inserted", f"[{turn * 10}]")]


class Columns(Scenario):
    """The columns of a table change within one transaction and over several, back and forth."""

    steps = (
        *kill_steps.SCHEMAS, *kill_steps.STORING, *kill_steps.PUBLISHED, *kill_steps.REFRESHING,
        *kill_steps.EMITTING, *kill_steps.READING,
    )  # fmt: skip
    ways: tuple[LiteralString, ...] = (
        "insert into items (id) values (20); alter table items add a int default 1; insert into items (id) values (21);"
        " alter table items drop a; insert into items (id) values (22)",
        "alter table items add b int default 2",
        "update items set b = 3 where id = 20",
        "alter table items rename b to c",
        "update items set c = 4 where id = 21; truncate items; insert into items (id) values (30)",
        "alter table items drop c",
        "insert into items select n from generate_series(31, 40) n",
    )
    order = (
        "inserted", "schema_changed", "inserted", "schema_changed", "inserted", "schema_changed", "updated",
        "schema_changed", "updated", "truncated", "inserted", "schema_changed", *["inserted"] * 10,
    )  # fmt: skip

    def make(self) -> None:
        self.captured.run(
            "create table others (id int primary key)",
            "insert into items select n, 'read', 1.5 from generate_series(1, 10) n",
            "insert into others select generate_series(1, 10)",
        )
        self.captured = declared(self.captured, ITEMS, CapturedTable("others"))
        self.captured.drain()

    def happen(self, turn: int) -> None:
        assert turn
        self.captured.run(*self.ways)

    def look(self, turn: int) -> None:
        changes = [c for c in self.captured.changes() if c["source_table_name"] == "items"]
        # a truncation and a backfill remove rows, wherever the kill fell between them
        streamed = [c["action"] for c in changes if c["commit_lsn"] and c["action"] not in {"deleted", "backfilled"}]
        assert tuple(streamed[self.seen :]) == self.order
        self.seen = len(streamed)
        told = schemas_told(self.captured)
        assert [before["new"] for before in told[:-1]] == [after["old"] for after in told[1:]]
        added = [[c["name"] for c in each["new"]["columns"]][4:] for each in told]
        assert added == [["a"], [], ["b"], ["c"], []] * turn
        assert_left(self.captured, "items", "others")
        others = "select count(*) from event_store.events where decider = 'table:public.others'"
        assert self.captured.value(others) == 10


class Redeclared(Scenario):
    """A declaration has other columns than before, so its table is published and read again."""

    steps = (
        *kill_steps.PUBLISHING, *kill_steps.SKIPPING, *kill_steps.PUBLISHED, *kill_steps.PROBED, *kill_steps.READING,
    )  # fmt: skip

    def make(self) -> None:
        self.captured.run("insert into items select n, 'read', n from generate_series(1, 9) n")
        self.captured.drain()

    def happen(self, turn: int) -> None:
        super().happen(turn)
        self.columns = ("id", "amount") if turn % 2 else ("id", "name", "amount", "ok")
        self.captured = declared(self.captured, CapturedTable("items", columns=self.columns))

    def look(self, turn: int) -> None:
        assert turn
        last = {c["record_pk"]: c for c in self.captured.changes() if c["action"] != "schema_changed"}
        left = {key: c["record"] for key, c in last.items() if c["action"] != "deleted"}
        there = {f"[{row['id']}]": {name: row[name] for name in self.columns} for row in self.captured.table()}
        assert left == there


class Stopped(Scenario):
    """A table cannot be captured any more, and another one continues."""

    steps: ClassVar[tuple[Step, ...]] = (*kill_steps.PUBLISHING[:2], *kill_steps.SKIPPING, *kill_steps.PROBED)

    def make(self) -> None:
        self.captured.run("create table good (id int primary key, name text)", "insert into items values (1, 'read')")
        self.captured = declared(self.captured, ITEMS, CapturedTable("good"))
        self.captured.drain()

    def happen(self, turn: int) -> None:
        # a stored transaction of both tables comes again: without one table its changes have other numbers
        self.captured.run("update items set name = 'x'; update good set name = 'x'")
        killed_at(self.captured, self.patch, SlotStream, "advance")
        self.captured.run("alter table items rename to elsewhere")
        self.captured.run(f"insert into good values ({turn}, 'goes on')")

    def look(self, turn: int) -> None:
        assert_left(self.captured, "good", "elsewhere", without={"elsewhere": "items"})
        self.captured.run("alter table elsewhere rename to items")
        self.captured.run(f"insert into items values ({turn * 10})")
        self.captured.drain()
        assert_left(self.captured, "good", "items")
        (info,) = CaptureStore(self.captured.store).capture_info("shop")
        assert info.tables_stopped == 0


class Mended(Stopped):
    """A table that could not be captured for a while can be captured again."""

    steps = (*Stopped.steps, *kill_steps.PUBLISHED, *kill_steps.READING)

    def happen(self, turn: int) -> None:
        super().happen(turn)
        self.captured.drain()
        first = turn * 10
        self.captured.run(f"delete from elsewhere where id < {first - 10}; insert into elsewhere values ({first})")
        self.captured.run("alter table elsewhere rename to items")

    def look(self, turn: int) -> None:
        assert turn
        assert_left(self.captured, "good", "items")


class WithoutKey(Scenario):
    """Rows are inserted into a table without a key."""

    steps: ClassVar[tuple[Step, ...]] = (*kill_steps.STORING[3:], *kill_steps.EMITTING)

    def make(self) -> None:
        self.captured.run("create table clicks (page text, at int)")
        clicks = CapturedTable("clicks", key=())
        self.captured = declared(self.captured, clicks, actions=("insert", "truncate"))
        self.captured.drain()

    def happen(self, turn: int) -> None:
        insert = f"insert into clicks select 'a', {turn * 10} + n from generate_series(1, 4) n"
        self.captured.run(insert)

    def look(self, turn: int) -> None:
        changes = self.captured.changes()
        assert [c["record"] for c in changes] == [
            {"page": "a", "at": each * 10 + n} for each in range(1, turn + 1) for n in range(1, 5)
        ]
        assert set(Counter(c["record_pk"] for c in changes).values()) == {1}


class WithoutKeyAdded(WithoutKey):
    """A table without a key is added to the declaration: its existing rows are not read."""

    steps = (*kill_steps.PUBLISHING, *kill_steps.PUBLISHED, *kill_steps.PROBED)

    def happen(self, turn: int) -> None:
        assert turn
        declared(self.captured, ITEMS, actions=("insert", "truncate")).drain()

    def look(self, turn: int) -> None:
        super().happen(turn)
        self.captured.drain()
        super().look(turn)


class Lost(Scenario):
    """Another session drops the publication: a gap, whenever the capture finds it."""

    steps = (*kill_steps.LOSING, *kill_steps.PUBLISHING[:2])

    def happen(self, turn: int) -> None:
        name = value(self.captured.source.connection, "select pubname from pg_publication")
        self.captured.run(f"drop publication {name}")
        super().happen(turn)

    def run(self) -> None:
        with pytest.raises(GapOpen, match="another program"):
            self.captured.drain()

    def look(self, turn: int) -> None:
        self.run()
        self.captured.restart("the publication was dropped")
        self.captured.drain()
        assert_left(self.captured, "items")
        unresolved = "select count(*) from event_store.capture_gaps where resolved_by_generation is null"
        assert self.captured.value(unresolved) == 0
        assert turn <= self.captured.value("select count(*) from event_store.capture_gaps") <= turn * 3


class Restarted(Scenario):
    """A capture restarts, with rows that changed while no process captured them."""

    steps = (*kill_steps.PUBLISHING, *kill_steps.BEGINNING)

    def happen(self, turn: int) -> None:
        slot = self.captured.value("select slot from event_store.captures")
        self.captured.source.connection.execute("select pg_drop_replication_slot(%s)", (slot,))
        super().happen(turn)

    def run(self) -> None:
        self.captured.restart("the slot is gone")

    def look(self, turn: int) -> None:
        assert turn
        self.captured.drain()
        assert_left(self.captured, "items")


class Removed(Scenario):
    """A capture is removed: its events stay, and nothing is left on the source."""

    steps = kill_steps.REMOVING

    def happen(self, turn: int) -> None:
        super().happen(turn)
        self.captured.drain()
        self.events = self.captured.value("select count(*) from event_store.events")

    def run(self) -> None:
        with suppress(UnknownCapture):
            remove(self.captured.dsn, self.captured.capture, "not needed")

    def look(self, turn: int) -> None:
        assert turn
        assert rows(
            self.captured.source.connection,
            "select slot_name::text from pg_replication_slots where database = current_database()"
            " union all select pubname from pg_publication",
        ) == []  # fmt: skip
        with pytest.raises(UnknownCapture):
            remove(self.captured.dsn, self.captured.capture, "not needed")
        assert self.captured.value("select count(*) from event_store.events") == self.events


class Requeued(Scenario):
    """Changes that could not become events are retried, with those behind them."""

    steps = kill_steps.REQUEUEING

    def happen(self, turn: int) -> None:
        with self.patch.context() as patch:
            patch.setattr(captured_changes, "MAX_DATA_CHARACTERS", 900)
            insert = f"insert into items values ({turn * 10}, repeat('x', 1000)), ({turn * 10 + 1}, repeat('x', 1000))"
            self.captured.run(insert)
            self.captured.run("update items set name = 'x' where length(name) = 1000")
            self.captured.drain()

    def expected(self, turn: int) -> Did:
        return [(done, f"[{turn * 10 + n}]") for done in ("inserted", "updated") for n in (0, 1)]

    def run(self) -> None:
        requeue(CaptureStore(self.captured.store), self.captured.capture, "they can be decoded now")


class Repaired(Scenario):
    """A stream that differs from the table's row is repaired."""

    steps = kill_steps.VERIFYING

    def happen(self, turn: int) -> None:
        self.captured.store.execute("set session_replication_role = replica")
        self.captured.store.execute(
            "update event_store.events set data = jsonb_set(data, '{record,name}', '\"wrong\"')"
            ' where "offset" = (select max("offset") from event_store.events where decider_id = \'[1]\')'
        )
        self.captured.store.execute("reset session_replication_role")
        assert turn

    def run(self) -> None:
        self.captured.verify(ITEMS, repairs="the store was changed")

    def look(self, turn: int) -> None:
        assert_left(self.captured, "items")
        assert self.captured.value("select count(*) from event_store.events") == 1 + turn
        assert self.captured.value("select count(*) from event_store.unchanged_rows") == 0


SCENARIOS: tuple[type[Scenario], ...] = (
    Scenario, Replayed, Renamed, Columns, Redeclared, Stopped, Mended, WithoutKey, WithoutKeyAdded, Lost, Restarted,
    Removed, Requeued, Repaired,
)  # fmt: skip


def test_each_step_of_a_run_is_one_at_which_a_scenario_is_killed() -> None:
    taken = {step for scenario in SCENARIOS for step in scenario.steps}
    assert set(kill_steps.OF_RUNS) - taken == set()


def ends(scenario: Scenario) -> bool:
    try:
        scenario.run()
    except Killed:
        return False
    return True


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_each_step_nothing_is_missing_or_doubled(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, scenario: type[Scenario]
) -> None:
    # small, so that one run takes each step several times
    for place, name, size in (
        (drain, "MOST_CHANGES", 6), (drain, "PIECE", 3), (drain, "EMIT", 4), (backfill, "FIRST_CHUNK", 4),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, size)
    going_on = scenario(captured, monkeypatch)
    for turn, step in enumerate(going_on.steps, start=1):
        original = getattr(step.place, step.name)
        try:
            going_on.happen(turn)
            with monkeypatch.context() as patch:
                patch.setattr(step.place, step.name, dying(original, 1, after=step.after))
                with pytest.raises(Killed):
                    going_on.run()
                patch.setattr(step.place, step.name, dying(original, 2, after=step.after))
                ended = ends(going_on)
            # if a run takes the step only once, the second run has ended
            assert ended or ends(going_on)
            going_on.look(turn)
        except BaseException as error:
            error.add_note(f"killed {step}")
            raise
        ids = "select count(*) - count(distinct event_id) from event_store.events"
        assert captured.value(ids) == 0, step


def test_killed_at_each_message_nothing_is_lost_or_twice(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = SlotStream.messages
    left = 0

    def dying_messages(stream: SlotStream, until: Lsn, stop: Event) -> Iterator[bytes]:
        nonlocal left
        for message in messages(stream, until, stop):
            left -= 1
            if left == 0:
                raise Killed
            yield message

    monkeypatch.setattr(drain, "PIECE", 3)
    monkeypatch.setattr(arriving, "BATCH", 2)
    going_on = Scenario(captured, monkeypatch)
    for turn in count(1):
        going_on.happen(turn)
        with monkeypatch.context() as patch:
            patch.setattr(SlotStream, "messages", dying_messages)
            left = turn
            ended = ends(going_on)
        if not ended:
            going_on.run()
        going_on.look(turn)
        if ended:
            break
    # two transactions with seven messages, beside those that describe the table
    assert turn >= 12
