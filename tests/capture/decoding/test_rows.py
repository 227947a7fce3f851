"""Many rows decoded together: the same changes as message by message."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.changed_rows import RowChange, TableRows
from millrace.capture.decoding.changes import ChangeDecoder
from millrace.capture.decoding.pgoutput import (
    UNCHANGED,
    Delete,
    Insert,
    Relation,
    RelationColumn,
    Truncate,
    Update,
    Value,
    decode,
    relation_of_one_row,
    values_of_one_row,
)
from tests.support.capturing import pgoutput_bytes
from tests.support.capturing.decoded_changes import annotated
from tests.support.capturing.pgoutput_bytes import BOOL, INT4, JSON, JSONB, TABLE, TEXT, begin, commit, encode, insert

TYPES = (BOOL, INT4, pgoutput_bytes.NUMERIC, pgoutput_bytes.FLOAT8, TEXT, JSON, JSONB, 1184)
NAMES = ("id", "note", "100%", "%s", 'a"b', "ü")
TEXTS = (
    b"", b"t", b"7", b"-1.50", b"NaN", b"null", b'"a"', b'{"a": "%s"}', b"%d", b'a"\\\n', "ü🙂".encode(), b"\xff",
    b"a\0", b"7\n8", b"a\\u0000", b"\xc3", b"\xbc",
)  # fmt: skip


def told(rows: TableRows, raw: bytes) -> RowChange:
    """Return the change of one message, decoded alone."""
    match decode(raw):
        case Insert() as message:
            return rows.inserted(message)
        case Update() as message:
            (change,) = rows.updated(message)
            return change
        case Delete() as message:
            return rows.deleted(message)
        case other:
            raise AssertionError(other)


def told_together(rows: TableRows, raw: Sequence[bytes], width: int) -> list[RowChange]:
    """Return the changes of messages of one action, decoded together."""
    values = [values_of_one_row(message, width) for message in raw]
    whole = [row for row in values if row is not None]
    assert len(whole) == len(raw)
    deletes = raw[0][:1] == b"D"
    found = rows.endings(whole) if deletes else rows.images(whole)
    action = {b"I": "inserted", b"U": "updated", b"D": "deleted"}[raw[0][:1]]
    return [RowChange(action, *each) for each in zip(*found, strict=True)]


def message(kind: str, values: tuple[Value, ...]) -> bytes:
    match kind:
        case "I":
            return encode(Insert(TABLE, values))
        case "U":
            return encode(Update(TABLE, None, None, values))
        case _:
            return encode(Delete(TABLE, "K", values))


@st.composite
def described_tables(draw: st.DrawFn) -> Relation:
    columns = tuple(
        RelationColumn(name, draw(st.sampled_from(TYPES)), -1, draw(st.booleans()))
        for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    )
    return Relation(TABLE, "public", "t", draw(st.sampled_from("dnfi")), columns)


def declared_tables() -> st.SearchStrategy[CapturedTable]:
    key = st.none() | st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple)
    mask = st.lists(st.sampled_from(NAMES), max_size=1).map(tuple)
    return st.builds(lambda key, mask: CapturedTable("t", key=key, mask=mask), key, mask)


def values_of(relation: Relation, whole: bool) -> st.SearchStrategy[tuple[Value, ...]]:
    one: st.SearchStrategy[Value] = st.none() | st.sampled_from(TEXTS) | st.binary(max_size=4)
    width = len(relation.columns)
    if whole:
        return st.lists(one, min_size=width, max_size=width).map(tuple)
    lacking = one | st.just(UNCHANGED)
    return st.sampled_from((width, width, width, width - 1, width + 1)).flatmap(
        lambda number: st.lists(lacking, min_size=number, max_size=number).map(tuple)
    )


@given(st.data())
def test_rows_that_are_read_together_are_told_as_each_by_itself(data: st.DataObject) -> None:
    relation = data.draw(described_tables())
    kind = data.draw(st.sampled_from("IUD"))
    rows = TableRows(data.draw(declared_tables()), relation)
    if rows.keyless and kind == "U":
        return
    raw = data.draw(st.lists(values_of(relation, whole=True).map(lambda v: message(kind, v)), min_size=1, max_size=5))
    assert told_together(rows, raw, rows.width) == [told(rows, each) for each in raw]


@given(st.data())
def test_messages_that_are_fed_together_are_the_same_changes(data: st.DataObject) -> None:
    tables = [replace(data.draw(described_tables()), relation_id=TABLE + n, table=f"t{n}") for n in range(2)]
    declared = [replace(data.draw(declared_tables()), table=each.table) for each in tables]
    messages = [begin(100)]
    described: list[Relation] = []
    for _ in range(data.draw(st.integers(0, 12))):
        relation = data.draw(st.sampled_from(tables))
        step = data.draw(st.sampled_from([*"IIUUDD", "old", "describe", "annotate", "truncate", "next"]))
        if step == "describe" or relation not in described:
            messages.append(encode(relation))
            described.append(relation)
        elif step == "annotate":
            messages.append(annotated(data.draw(st.sampled_from((b'{"a": 1}', b"null")))))
        elif step == "truncate":
            messages.append(encode(Truncate((relation.relation_id,), cascade=False, restart_identity=False)))
        elif step == "next":
            messages += [commit(100), begin(100)]
        else:
            values = data.draw(values_of(relation, whole=False))
            if step == "old":
                old = data.draw(values_of(relation, whole=False))
                raw = encode(Update(relation.relation_id, data.draw(st.sampled_from("KO")), old, values))
            else:
                raw = message(step, values)
                raw = raw[:1] + relation.relation_id.to_bytes(4, "big") + raw[5:]
            # one message in four is cut off
            messages.append(raw[: data.draw(st.sampled_from((len(raw), len(raw), len(raw), len(raw) - 1)))])
    by_itself, together = (ChangeDecoder(declared, "shop", 3, 900) for _ in range(2))
    expected = [change for each in messages for change in by_itself.feed(each)]
    found: list[Change] = []
    while messages:
        number = data.draw(st.integers(1, len(messages)))
        found += together.feed_all(messages[:number])
        messages = messages[number:]
    assert found == expected


def test_a_message_that_is_cut_off_or_too_long_holds_no_row() -> None:
    for kind in "IUD":
        whole = message(kind, (b"7", b"abc"))
        assert (relation_of_one_row(whole), values_of_one_row(whole, 2)) == (TABLE, [b"7", b"abc"])
        for broken in (whole[:-1], whole + b"x", whole[:7] + b"\3" + whole[8:], whole[:9]):
            assert values_of_one_row(broken, 2) is None


def test_a_row_that_nothing_names_is_inserted_and_has_no_other_change() -> None:
    columns = (RelationColumn("id", INT4, -1, True), RelationColumn("note", TEXT, -1, False))
    rows = TableRows(CapturedTable("t", key=()), Relation(TABLE, "public", "t", "d", columns))
    inserted = RowChange("inserted", None, '{"record": {"id": null, "note": "a"}', None)
    assert told_together(rows, [insert(None, b"a")], 2) == [inserted]
    assert rows.inserted(Insert(TABLE, (None, b"a"))) == inserted
    assert rows.inserted(Insert(TABLE, (b"7",))).fault == "the row has 1 columns, its table 2"
    (updated,) = rows.updated(Update(TABLE, None, None, (b"7", b"a")))
    assert (updated.body, updated.fault) == (None, "nothing names the rows of its table")
