"""For any key of a table and any changes, its streams end with the table's rows."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from millrace.capture import backfill
from millrace.capture.declaration import CapturedTable
from tests.support.capturing.captured import Captured, declared
from tests.support.capturing.odd_types import CASELESS

_numbers = count()

VALUES: dict[str, tuple[str, ...]] = {
    "int": ("-1", "0", "7", "100"), "text": ("", "a", "B", "Ä", 'q"\\'),
    "extensions.caseless": ("a", "A", "b", "C", "D"), "nick": ("a", "b", "C", "D"), "mood": ("sad", "ok", "happy", "Z"),
    "state": ("sad", "ok", "happy", "Z"), "numeric": ("0.0", "1.50", "1e3", "-2"),
    "float8": ("0.1", "123.5", "NaN", "-Infinity"),
    "timestamptz": ("2024-01-01 00:00+00", "infinity", "2024-01-01 00:00:00.5+00"),
    "text[]": ("{}", "{a,NULL}", "{a,b}", '{"a b"}'), "character(2)": ("a", "b ", "B", ""),
    "boolean": ("false", "true"),
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A table's column types, its key columns in order, and the changes to it.

    `full`: whether its replica identity is full. A change inserts, deletes or replaces a row.
    """

    types: tuple[str, ...]
    key: tuple[int, ...]
    full: bool
    before: list[tuple[str, ...]]
    changes: list[tuple[str, tuple[str, ...], tuple[str, ...]]]


@st.composite
def tables(draw: st.DrawFn) -> Drawn:
    types = tuple(draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4)))
    key = draw(st.permutations(range(len(types))))[: draw(st.integers(1, len(types)))]
    row = st.tuples(*(st.sampled_from(VALUES[each]) for each in types))
    changes = st.tuples(st.sampled_from(("insert", "update", "delete")), row, row)
    return Drawn(
        types, tuple(key), draw(st.booleans()), draw(st.lists(row, min_size=3, max_size=12)),
        draw(st.lists(changes, max_size=8)),
    )  # fmt: skip


@pytest.fixture
def typed(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Create the types, and read few rows at a time."""
    captured.run(
        *CASELESS, "create domain nick as extensions.caseless", "create type mood as enum ('sad', 'ok', 'happy', 'Z')",
        "create domain state as mood", "set timezone = 'UTC'",
    )  # fmt: skip
    monkeypatch.setattr(backfill, "CHUNK", 2)
    return captured


# an example takes a second: a failing one is not shrunk
@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(drawn=Drawn(("nick",), (0,), full=False, before=[(letter,) for letter in "abCDe"], changes=[]))
@given(drawn=tables())
def test_the_streams_of_a_table_end_as_it_is(typed: Captured, drawn: Drawn) -> None:
    name = f"drawn_{next(_numbers)}"
    columns = [f"c{n}" for n in range(len(drawn.types))]

    def do(statement: str, *values: str) -> None:
        # another row has that key
        with suppress(psycopg.errors.UniqueViolation):
            typed.source.connection.execute(statement.encode(), values)

    def change(action: str, row: tuple[str, ...], other: tuple[str, ...]) -> None:
        same = " and ".join(f"{c}::text = %s::{kind}::text" for c, kind in zip(columns, drawn.types, strict=True))
        given = ", ".join(f"%s::{kind}" for kind in drawn.types)
        if action == "insert":
            do(f"insert into {name} values ({given})", *row)
        elif action == "delete":
            do(f"delete from {name} where {same}", *row)
        else:
            do(f"update {name} set ({', '.join(columns)}) = row({given}) where {same}", *other, *row)

    made = ", ".join(f"{column} {kind}" for column, kind in zip(columns, drawn.types, strict=True))
    do(f"create table {name} ({made}, primary key ({', '.join(columns[at] for at in drawn.key)}))")
    if drawn.full:
        do(f"alter table {name} replica identity full")
    for row in drawn.before:
        change("insert", row, row)
    captured = declared(typed, CapturedTable(name))
    captured.drain()
    assert_as_it_is(captured, name, columns)
    # half of the changes hit existing rows
    for number, (action, row, other) in enumerate(drawn.changes):
        change(action, drawn.before[number % len(drawn.before)] if number % 2 else row, other)
    captured.drain()
    assert_as_it_is(captured, name, columns)


def assert_as_it_is(captured: Captured, name: str, columns: list[str]) -> None:
    """Compare the rows of a table, as texts, with the last events of its live streams, and with `verify`'s result."""
    texts = ", ".join(f"{column}::text" for column in columns)
    there = captured.source.connection.execute(f"select {texts} from {name}".encode()).fetchall()
    told = captured.rows(
        """
        select array(select e.value from jsonb_each_text(data -> 'record') e order by e.key) from (
          select distinct on (decider_id) event, data from event_store.events
          where decider = %s and decider_id <> 'schema' order by decider_id, "offset" desc
        ) newest
        where event <> 'deleted'
        """,
        f"table:public.{name}",
    )
    # as text, a value of type character has no trailing blanks
    assert sorted(tuple(value.rstrip(" ") for value in values) for (values,) in told) == sorted(there)
    found = captured.verify(captured.capture.tables[0])
    assert (found.rows, found.unchanged, found.differing) == (len(there), len(there), 0)
