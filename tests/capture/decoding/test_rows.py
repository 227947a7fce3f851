"""Rows without an old one, read from their bytes at once: the same changes as of the decoded message.

Belongs here: `TableRows.plain` beside `inserted` and `updated`. Not here: what these say (test_changes).
"""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding.pgoutput import (
    UNCHANGED,
    Insert,
    PgoutputError,
    Relation,
    RelationColumn,
    Update,
    Value,
    decode,
)
from millrace.resources.capture.decoding.rows import RowChange, TableRows
from tests.support.capturing.pgoutput_bytes import BOOL, FLOAT8, INT4, JSON, JSONB, NUMERIC, TABLE, TEXT, encode, insert

TYPES = (BOOL, INT4, NUMERIC, FLOAT8, TEXT, JSON, JSONB, 1184)
NAMES = ("id", "note", "100%", "%s", 'a"b', "ü")
TEXTS = (
    b"",
    b"t",
    b"7",
    b"-1.50",
    b"NaN",
    b"null",
    b'"a"',
    b'{"a": "%s"}',
    b"%d",
    b'a"\\\n',
    "ü🙂".encode(),
    b"\xff",
    b"a\0",
)


def decoded(rows: TableRows, raw: bytes) -> RowChange:
    match decode(raw):
        case Insert() as message:
            return rows.inserted(message)
        case Update() as message:
            (change,) = rows.updated(message)
            return change
        case other:
            raise AssertionError(other)


@st.composite
def described_rows(draw: st.DrawFn) -> tuple[TableRows, bytes]:
    """Draw a table of some columns and key, and a message that mostly is of a row of it."""
    columns = tuple(
        RelationColumn(name, draw(st.sampled_from(TYPES)), -1, draw(st.booleans()))
        for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    )
    identity = draw(st.sampled_from("dnfi"))
    declared = draw(st.none() | st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple))
    rows = TableRows(CapturedTable("t", key=declared), Relation(TABLE, "public", "t", identity, columns))
    one: st.SearchStrategy[Value] = st.none() | st.just(UNCHANGED) | st.sampled_from(TEXTS) | st.binary(max_size=4)
    number = len(columns) + draw(st.sampled_from((0, 0, 0, 0, -1, 1)))
    values = tuple(draw(st.lists(one, min_size=number, max_size=number)))
    return rows, encode(Insert(TABLE, values) if draw(st.booleans()) else Update(TABLE, None, None, values))


@given(described_rows())
def test_a_plain_row_is_what_its_message_says_and_nothing_else_is_plain(row: tuple[TableRows, bytes]) -> None:
    rows, raw = row
    expected = decoded(rows, raw)
    ordinary = (
        expected.fault is None
        and ', "unavailable": ' not in str(expected.body)
        and None not in json.loads(expected.decider_id or "[]")  # JSON's null as a key
    )
    assert rows.plain(expected.action, raw) == (expected if ordinary else None)


@given(described_rows(), st.integers(0, 40), st.binary(max_size=3))
def test_bytes_that_are_no_message_are_not_plain(row: tuple[TableRows, bytes], at: int, other: bytes) -> None:
    rows, whole = row
    raw = whole[: 6 + at] + other
    try:
        expected: RowChange | None = decoded(rows, raw)
    except PgoutputError:
        expected = None
    if expected is None:
        assert rows.plain("inserted", raw) is None


def test_a_row_of_the_table_is_plain() -> None:
    columns = (RelationColumn("id", INT4, -1, True), RelationColumn("50%", TEXT, -1, False))
    rows = TableRows(CapturedTable("t"), Relation(TABLE, "public", "t", "d", columns))
    assert rows.plain("inserted", insert(b"7", b"%s")) == RowChange(
        "inserted", "[7]", '{"record": {"id": 7, "50%": "%s"}', None
    )


@pytest.mark.parametrize("values", [(None, b"a"), (UNCHANGED, b"a"), (b"7", UNCHANGED), (b"7", b"\xff"), (b"7",), ()])
def test_a_row_out_of_the_ordinary_is_not_plain(values: tuple[Value, ...]) -> None:
    columns = (RelationColumn("id", INT4, -1, True), RelationColumn("note", TEXT, -1, False))
    rows = TableRows(CapturedTable("t"), Relation(TABLE, "public", "t", "d", columns))
    assert rows.plain("inserted", insert(*values)) is None


def test_a_row_that_nothing_names_is_inserted_and_has_no_other_change() -> None:
    columns = (RelationColumn("id", INT4, -1, True), RelationColumn("note", TEXT, -1, False))
    rows = TableRows(CapturedTable("t", key=()), Relation(TABLE, "public", "t", "d", columns))
    inserted = RowChange("inserted", None, '{"record": {"id": null, "note": "a"}', None)
    assert rows.plain("inserted", insert(None, b"a")) == inserted
    assert rows.inserted(Insert(TABLE, (None, b"a"))) == inserted
    assert rows.inserted(Insert(TABLE, (b"7",))).fault == "the row has 1 columns, its table 2"
    assert rows.plain("updated", encode(Update(TABLE, None, None, (b"7", b"a")))) is None
    (updated,) = rows.updated(Update(TABLE, None, None, (b"7", b"a")))
    assert (updated.body, updated.fault) == (None, "nothing names the rows of its table")


@pytest.mark.parametrize(
    "change", [lambda m: m[:-1], lambda m: m + b"x", lambda m: m[:7] + b"\3" + m[8:], lambda m: m[:9]]
)
def test_a_message_that_is_cut_off_or_too_long_or_counts_otherwise_is_not_plain(
    change: Callable[[bytes], bytes],
) -> None:
    columns = (RelationColumn("id", INT4, -1, True), RelationColumn("note", TEXT, -1, False))
    rows = TableRows(CapturedTable("t"), Relation(TABLE, "public", "t", "d", columns))
    whole = insert(b"7", b"abc")
    assert rows.plain("inserted", whole) is not None
    assert rows.plain("inserted", change(whole)) is None
