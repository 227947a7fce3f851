"""Lost changes, until an operator restarts the capture: foreign slots, publications and replica identities."""

import pytest

from millrace.capture import facts
from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.changed_rows import TableUnfit
from millrace.capture.setup import GapOpen
from millrace.capture.source.slot import FilterFails
from millrace.capture.source.timelines import TimelinesUnknown
from millrace.capture.store import CaptureStore
from millrace.errors import ChangesDiffer
from tests.support.capturing.captured import Captured, declared, did
from tests.support.patience import patience


def test_a_lost_slot_is_a_gap_until_a_restart_which_finds_what_is_gone(captured: Captured) -> None:
    captured.run("insert into items values (1, 'stays'), (2, 'goes'), (3, 'changes')")
    captured.drain()
    slot = captured.value("select slot from event_store.captures")
    captured.source.connection.execute("select pg_drop_replication_slot(%s)", (slot,))
    captured.run("delete from items where id = 2", "update items set name = 'changed' where id = 3")
    for _ in range(2):
        with pytest.raises(GapOpen, match="no slot") as refused:
            captured.drain()
        assert "millrace capture restart shop" in str(refused.value)
    (problem, gap) = captured.problems()
    assert "no slot" in problem
    assert "lost" in gap
    captured.restart("the slot was dropped")
    captured.run("insert into items values (4, 'later')")
    captured.drain()
    assert captured.replayed() == captured.table()
    assert did(captured)[-1][0] in {"deleted", "inserted"}
    (known,) = CaptureStore(captured.store).capture_gaps("shop")
    assert known.resolved_by_generation == 2
    assert captured.problems() == []


def test_a_gap_is_said_where_no_history_of_the_log_is(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise TimelinesUnknown("It does not say so.")

    captured.drain()
    CaptureStore(captured.store).record_gap("shop", None, None, "a test")
    monkeypatch.setattr(facts, "read_timelines", unknown)
    with pytest.raises(GapOpen, match="a test"):
        captured.drain()
    with pytest.raises(TimelinesUnknown):
        captured.restart("a test")


def test_a_filter_that_fails_for_a_row_is_told_and_another_one_begins_anew(captured: Captured) -> None:
    captured.run("create table parts (id int primary key, n int)", "alter table parts replica identity full")
    failing = declared(captured, CapturedTable("items"), CapturedTable("parts", where="100 / n > 5"))
    failing.drain()
    captured.run("insert into parts values (1, 0), (2, 7)", "insert into items values (1, 'behind it')")
    for _ in range(2):
        with pytest.raises(FilterFails, match="a where fails for a row, of parts") as refused:
            failing.drain()
        assert "division by zero" in str(refused.value)
        assert "millrace capture restart" in str(refused.value)
    sound = CapturedTable("parts", where="case when n <> 0 then 100 / n > 5 end")
    mended = declared(captured, CapturedTable("items"), sound)
    mended.restart("another where")
    mended.drain()
    assert captured.replayed() == sorted([*captured.table(), {"id": 2, "n": 7}], key=str)


def test_another_replica_identity_for_a_while_leaves_no_other_streams(captured: Captured) -> None:
    captured.run(
        "alter table items alter name set not null; create unique index items_name on items (name)",
        "insert into items values (1, 'a')",
    )
    with captured.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        captured.run(
            "alter table items replica identity using index items_name",
            "update items set amount = 1 where id = 1",
            "alter table items replica identity default",
        )
        with pytest.raises(TableUnfit):
            process.drain(budget_s=patience(), idle_s=0)
    captured.run("update items set amount = 2 where id = 1")
    with captured.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        assert captured.replayed() == captured.table()
        assert {change["record_pk"] for change in captured.changes()} == {"[1]"}
        # the next run follows a table that stays
        captured.run("alter table items replica identity using index items_name; update items set amount = 3")
        with pytest.raises(TableUnfit):
            process.drain(budget_s=patience(), idle_s=0)
    captured.drain()
    assert captured.replayed() == captured.table()
    assert CaptureStore(captured.store).capture_gaps("shop") == []


def test_an_earlier_slot_changes_nothing_and_other_content_raises_an_alarm(captured: Captured) -> None:
    captured.drain()
    slot = str(captured.value("select slot from event_store.captures"))

    def set_back() -> None:
        captured.source.connection.execute("select pg_drop_replication_slot(%s)", (slot,))
        captured.source.connection.execute("select pg_copy_logical_replication_slot('rewound', %s)", (slot,))

    captured.source.connection.execute("select pg_copy_logical_replication_slot(%s, 'rewound')", (slot,))
    captured.run("insert into items values (1), (2)", "delete from items where id = 1")
    captured.drain()
    before = captured.changes()
    set_back()
    report = captured.drain()
    assert (report.stored, report.replayed, report.emitted) == (0, 3, 0)
    assert captured.changes() == before
    captured.store.execute("update event_store.wal_events set data = jsonb_set(data, '{record,name}', '\"forged\"')")
    set_back()
    with pytest.raises(ChangesDiffer, match="another data"):
        captured.drain()
    assert captured.changes() == before
