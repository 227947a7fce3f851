"""Whatever names the rows of a table, each is captured once, and is as the table has it.

Belongs here: types of keys, their operators and their names, through the whole capture. Not here: tables without keys
(test_tables_without_keys), what a key may not be (test_readiness).
"""

import pytest

from millrace.resources.capture import backfill
from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.rereads.reading import compare
from tests.support.capturing.captured import Captured, assert_left, declared
from tests.support.capturing.odd_types import CASELESS


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read few rows at a time: what is wrong with a key shows between two chunks."""
    monkeypatch.setattr(backfill, "CHUNK", 2)


def test_a_key_that_is_compared_by_operators_off_the_search_path(captured: Captured) -> None:
    captured.source.run(
        *CASELESS,
        "create table items2 (name extensions.caseless primary key, n int)",
        "insert into items2 select c, ascii(c) from unnest(string_to_array('a,B,c,D,e,F,g,H,i', ',')) c",
        "create table pairs (tenant int, name extensions.caseless, n int, primary key (tenant, name, n))",
        "insert into pairs select t, c, n from generate_series(1, 3) t, unnest(string_to_array('a,B,c,D,e', ',')) c, generate_series(1, 2) n",
    )
    captured = declared(captured, CapturedTable("items2"), CapturedTable("pairs"))
    captured.drain()
    assert_left(captured, "items2", "pairs")
    captured.source.run("update items2 set name = 'b' where name = 'B'", "delete from pairs where name = 'D'")
    for table in captured.capture.tables:
        assert compare(captured.dsn, captured.capture, table, repairs="a test").differing == 0
    assert_left(captured, "items2", "pairs")
