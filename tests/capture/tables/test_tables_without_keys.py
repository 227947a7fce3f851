"""A table without a key: each inserted row is a stream, named by its place in the log."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.quarantine import requeue
from millrace.capture.store import CaptureStore
from millrace.errors import DeciderCaptured, MillraceError
from tests.support.capturing.captured import Captured

CLICKS = CapturedTable("clicks", key=())
INSERTS = ("insert", "truncate")


@pytest.fixture
def clicks(captured: Captured) -> Captured:
    """Make a table without a key, with two rows in it, beside one that has a key."""
    captured.run("create table clicks (page text, at int)", "insert into clicks values ('before', 0), ('before', 0)")
    tables = (CLICKS, CapturedTable("items"))
    return replace(captured, capture=Capture("shop", lambda: captured.source.dsn, tables, INSERTS))


def clicked(captured: Captured) -> list[tuple[str, int]]:
    """Return the table's rows that the captured history leaves."""
    return sorted((row["page"], row["at"]) for row in captured.replayed() if "page" in row)


def streams(captured: Captured) -> Counter[str]:
    return Counter(c["record_pk"] for c in captured.changes() if c["source_table_name"] == "clicks")


def test_equal_rows_are_streams_of_their_own_and_old_ones_are_not_read(clicks: Captured) -> None:
    clicks.drain()
    clicks.run("insert into clicks values ('a', 1), ('a', 1), (null, null)", "insert into items values (1, 'x', 1)")
    report = clicks.drain()
    assert report.emitted == 4
    found = [c for c in clicks.changes() if c["source_table_name"] == "clicks"]
    assert [(c["record"]["page"], c["record"]["at"]) for c in found] == [("a", 1), ("a", 1), (None, None)]
    for change in found:
        generation, lsn, idx = json.loads(change["record_pk"])
        assert (generation, lsn, idx) == (change["source_generation"], change["commit_lsn"], change["commit_idx"])
    assert set(streams(clicks).values()) == {1}
    assert clicks.drain().emitted == 0
    with pytest.raises(MillraceError, match=r"nothing names the rows of public\.clicks"):
        clicks.verify(CLICKS)
    (info,) = CaptureStore(clicks.store).capture_info("shop")
    assert (info.tables_to_backfill, info.tables_stopped) == (0, 0)


def test_a_truncate_ends_each_of_its_streams(clicks: Captured) -> None:
    clicks.drain()
    clicks.run("insert into clicks select 'a', n from generate_series(1, 20) n")
    clicks.drain()
    # a primary key names no rows of a table that is declared without a key
    clicks.run(
        "truncate clicks",
        "alter table clicks add column id serial primary key",
        "insert into clicks values ('after', 1)",
    )
    clicks.drain()
    assert clicked(clicks) == [("after", 1)]
    assert streams(clicks)["[]"] == 1
    assert {len(json.loads(stream)) for stream in streams(clicks) if stream not in ("[]", "schema")} == {3}


def test_what_changes_its_columns_or_begins_anew_reads_and_ends_nothing(clicks: Captured) -> None:
    clicks.drain()
    clicks.run("insert into clicks values ('a', 1)")
    clicks.drain()
    clicks.run("alter table clicks add column more text default 'x'", "insert into clicks values ('b', 2, 'y')")
    clicks.drain()
    # the table cannot be captured for a while
    clicks.run("alter table clicks rename to clicks_away")
    clicks.drain()
    assert CaptureStore(clicks.store).capture_info("shop")[0].tables_stopped == 1
    clicks.run("alter table clicks_away rename to clicks")
    clicks.drain()
    assert CaptureStore(clicks.store).capture_info("shop")[0].tables_to_backfill == 0
    clicks.restart("a test")
    clicks.run("insert into clicks values ('c', 3, 'z')")
    report = clicks.drain()
    assert report.backfilled == 0
    assert clicked(clicks) == [("a", 1), ("b", 2), ("c", 3)]
    assert Counter(c["action"] for c in clicks.changes()) == {"inserted": 3, "schema_changed": 1}
    assert streams(clicks)["schema"] == 1


def test_what_it_did_under_another_name_is_its_own(clicks: Captured) -> None:
    clicks.drain()
    clicks.run(
        "alter table clicks rename to away", "insert into away values ('a', 1)", "alter table away rename to clicks"
    )
    replace(clicks, capture=replace(clicks.capture, tables=(replace(CLICKS, where="at > 0"),))).drain()
    assert clicked(clicks) == [("a", 1)]


def test_a_masked_column_that_has_another_name_now_is_not_told(clicks: Captured) -> None:
    masked = replace(clicks, capture=replace(clicks.capture, tables=(replace(CLICKS, mask=("page",)),)))
    masked.drain()
    clicks.run("insert into clicks values ('secret', 1)", "alter table clicks rename page to site")
    clicks.run("insert into clicks values ('secret', 2)", "alter table clicks rename site to page")
    assert masked.drain().quarantined == 1
    assert "secret" not in str(clicks.changes())


def test_a_row_that_cannot_be_decoded_waits_alone(clicks: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    clicks.drain()
    with monkeypatch.context() as patch:
        patch.setattr("millrace.capture.decoding.changes.MAX_DATA_CHARACTERS", 2_000)
        clicks.run(f"insert into clicks values ('a', 1), ('{'x' * 3000}', 2), ('c', 3)")
        assert clicks.drain().quarantined == 1
    assert clicked(clicks) == [("a", 1), ("c", 3)]
    store = CaptureStore(clicks.store)
    (waiting,) = store.quarantined_changes("shop")
    assert json.loads(waiting.decider_id or "")[2] == 1
    assert requeue(store, clicks.capture, "a test").requeued == 1
    assert clicked(clicks) == [("a", 1), ("c", 3), ("x" * 3000, 2)]


def test_a_table_that_a_key_named_before_needs_another_decider(clicks: Captured) -> None:
    clicks.run("insert into items values (1, 'x')")
    clicks.drain()
    otherwise = replace(clicks.capture, tables=(CLICKS, CapturedTable("items", key=())))
    with pytest.raises(DeciderCaptured, match=r"table:public\.items has live streams, such as \[1\] of rows"):
        replace(clicks, capture=otherwise).drain()
    apart = replace(clicks.capture, tables=(CLICKS, CapturedTable("items", key=(), decider="items_log")))
    clicks.run("insert into items values (2, 'y')")
    replace(clicks, capture=apart).drain()
    clicks.run("insert into items values (3, 'z')")
    replace(clicks, capture=apart).drain()
    deciders = "select decider_id from event_store.events where decider = 'items_log'"
    assert ["0/" in decider_id for (decider_id,) in clicks.rows(deciders)] == [True, True]
