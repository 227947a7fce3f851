"""What somebody changes on the source while a capture runs, and changes back: it is told, and a restart heals it."""

import pytest

from millrace.resources.capture.decoding.changes import KeyChanged
from millrace.resources.capture.setup import GapOpen, restart
from millrace.resources.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, captured, new_source
from tests.support.factories import value

__all__ = ["captured", "new_source"]


def test_a_replica_identity_that_was_another_one_for_a_while_leaves_no_other_streams(captured: Captured) -> None:
    captured.source.run("alter table items alter name set not null", "create unique index items_name on items (name)")
    captured.source.run("insert into items values (1, 'a')")
    with captured.process() as process:
        process.drain(budget_s=60, idle_s=0)
        captured.source.run(
            "alter table items replica identity using index items_name",
            "update items set amount = 1 where id = 1",
            "alter table items replica identity default",
        )
        with pytest.raises(KeyChanged):
            process.drain(budget_s=60, idle_s=0)
    with pytest.raises(KeyChanged, match="millrace capture restart shop"):
        captured.drain()
    restart(captured.dsn, captured.capture, "items had another replica identity for a while")
    captured.source.run("update items set amount = 2 where id = 1")
    captured.drain()
    assert captured.replayed() == captured.table()
    assert {change["record_pk"] for change in captured.changes()} == {"[1]"}


def test_a_replica_identity_that_stays_another_one_is_followed_by_the_next_run(captured: Captured) -> None:
    captured.source.run("alter table items alter name set not null", "create unique index items_name on items (name)")
    captured.source.run("insert into items values (1, 'a')")
    with captured.process() as process:
        process.drain(budget_s=60, idle_s=0)
        captured.source.run("update items set amount = 1 where id = 1")
        captured.source.run("alter table items replica identity using index items_name")
        captured.source.run("update items set amount = 2 where id = 1")
        with pytest.raises(KeyChanged):
            process.drain(budget_s=60, idle_s=0)
    captured.drain()
    assert captured.replayed() == captured.table()
    assert CaptureStore(captured.store).capture_gaps("shop") == []


def test_a_publication_that_was_changed_and_changed_back_within_a_run_is_a_gap(captured: Captured) -> None:
    captured.source.run("insert into items values (1)")
    with captured.process() as process:
        process.drain(budget_s=60, idle_s=0)
        name = str(value(captured.source.connection, "select pubname from pg_publication"))
        for change, done in (("drop table items", "insert into items values (2)"), ("add table only items", "")):
            captured.source.connection.execute(f"alter publication {name} {change}; {done}".encode())
        captured.source.run("insert into items values (3)")
        process.drain(budget_s=60, idle_s=0)
    assert captured.replayed() != captured.table()
    for _ in range(2):
        with pytest.raises(GapOpen, match=r"somebody else: public\.items"):
            captured.drain()
    restart(captured.dsn, captured.capture, "publication repaired")
    captured.drain()
    assert captured.replayed() == captured.table()
