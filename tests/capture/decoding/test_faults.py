"""Messages and rows that cannot be decoded: a change with a fault if the table is known, else an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding import pgoutput
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.fields import MAX_DATA_CHARACTERS, packed_id, packed_ids
from millrace.capture.decoding.pgoutput import UNCHANGED, Delete, Insert, PgoutputError, Relation, Update
from tests.support.capturing.decoded_changes import FULL, T, annotated, decoded, decoder, moves
from tests.support.capturing.pgoutput_bytes import INT4, JSONB, TABLE, TEXT, begin, commit, encode, insert, relation


@pytest.mark.parametrize(
    ("raw", "action", "decider_id", "fault"),
    [
        (insert(b"7", b"\xff"), "inserted", "[7]", "column note is not UTF-8"),
        (insert(b"7", b"\0"), "inserted", "[7]", "column note contains a NUL"),
        (insert(b"seven", b"a"), "inserted", None, "column id is not a number: b'seven'"),
        (insert(b"7"), "inserted", None, "the row has 1 columns, its table 2"),
        (insert(b"7", b"a") + b"x", "inserted", None, "has 21 bytes and says 20"),
        (insert(None, b"a"), "inserted", None, "column id belongs to the key and is null"),
        (insert(UNCHANGED, b"a"), "inserted", None, "the log does not hold it"),
        (encode(Update(TABLE, None, None, (b"7", b"\xff"))), "updated", "[7]", "column note is not UTF-8"),
        (encode(Update(TABLE, None, None, (b"7",))), "updated", None, "1 columns"),
        (encode(Update(TABLE, "K", (b"7",), (b"8", b"a"))), "updated", None, "1 columns"),
        (encode(Update(TABLE, "K", (b"x", None), (b"8", b"a"))), "updated", None, "column id is not a number"),
        (encode(Update(TABLE, "O", (b"7", b"\xff"), (b"7", b"a"))), "updated", "[7]", "column note before the change is not"),
        (encode(Delete(TABLE, "K", (b"x", None))), "deleted", None, "column id is not a number"),
        (encode(Delete(TABLE, "O", (b"7", b"\xff"))), "deleted", "[7]", "column note is not UTF-8"),
        (b"U\0\0@\x10", "updated", None, "cut off"), (b"D\0\0@\x10N", "deleted", None, "unknown kind b'N'"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_is_a_faulty_change(raw: bytes, action: str, decider_id: str | None, fault: str) -> None:
    before, bad, after = decoded(encode(T), insert(b"1", b"a"), raw, insert(b"2", b"b"))
    assert bad.fault is not None
    assert fault in bad.fault
    assert (bad.action, bad.decider, bad.decider_id, bad.commit_idx) == (action, "table:public.t", decider_id, 1)
    assert (bad.data, bad.raw, bad.relation) == (None, raw, encode(T))
    assert bad.event_id == packed_id(packed_ids(100, generation=3), 1)
    assert [(change.decider_id, change.commit_idx) for change in (before, after)] == [("[1]", 0), ("[2]", 2)]


def test_a_changed_key_of_an_undecodable_row_ends_the_old_row() -> None:
    raw = encode(Update(TABLE, "K", (b"7", None), (b"8", b"\xff")))
    ended, bad, after = decoded(encode(T), raw, insert(b"9", b"b"))
    assert moves([ended]) == [("deleted", "[7]", {"record": {"id": 7}, "unavailable": ["note"], "new_key": [8]})]
    assert (bad.action, bad.decider_id, bad.commit_idx, bad.raw) == ("updated", "[8]", 1, raw)
    assert (after.decider_id, after.commit_idx) == ("[9]", 2)


@pytest.mark.parametrize("table", [FULL, relation(("id", INT4), ("note", TEXT), identity="n", key=())])
def test_without_any_key_every_change_is_a_fault(table: Relation) -> None:
    (bad,) = decoded(encode(table), insert(b"7", b"a"))
    assert bad.fault == "table public.t has no key: declare one, or give it a primary key"
    (bad,) = decoded(encode(table), insert(b"7", b"a"), tables=[CapturedTable("t", key=("id", "code"))])
    assert bad.fault == "table public.t has no column code, which its key names"


def test_data_that_is_too_large_for_a_document_is_a_fault() -> None:
    (bad,) = decoded(encode(T), insert(b"7", b"x" * MAX_DATA_CHARACTERS))
    assert bad.fault is not None
    assert "at most 33554432" in bad.fault
    assert (bad.decider_id, bad.data) == ("[7]", None)


def test_a_repaired_message_takes_its_place_again() -> None:
    raw = encode(Update(TABLE, "K", (b"7", None), (b"8", b"b")))
    *_, moved = good = decoded(encode(T), insert(b"1", b"a"), raw)
    for change in good:
        broken = Change(**{
            **{name: getattr(change, name) for name in Change.__slots__},
            "data": None, "fault": "it was", "raw": insert(b"1", b"a") if change is good[0] else raw, "relation": encode(T),
        })  # fmt: skip
        assert decoder().restore(broken) == change
    with pytest.raises(PgoutputError, match="was decoded"):
        decoder().restore(moved)
    with pytest.raises(PgoutputError, match="holds no change updated"):
        decoder(CapturedTable("other")).restore(broken)


@pytest.mark.parametrize(
    "raw",
    [
        [b"?"], [b""], [encode(T)[:-1]], [begin(), b"I\0\0"], [begin(), b"T\0"], [begin(), b"D\0\0@\x10"],
        [begin(), insert(b"7", b"a")], [begin(), encode(pgoutput.Truncate((TABLE,), False, False))],
        [encode(T), insert(b"7", b"a")], [encode(T), b"I\0\0@\x10"],
        [annotated(b"{}")], [commit()], [begin(), begin()], [begin(100), commit(200)],
    ],
)  # fmt: skip
def test_what_cannot_be_told_to_be_of_a_table_is_an_error(raw: list[bytes]) -> None:
    to_changes = decoder()
    *before, last = raw
    for message in before:
        to_changes.feed(message)
    with pytest.raises(PgoutputError):
        to_changes.feed(last)


TABLES = [
    relation(("id", INT4), ("note", TEXT), ("doc", JSONB), key=key, identity=identity)
    for key, identity in ((("id",), "d"), (("note",), "i"), ((), "f"), ((), "n"))
]


fields = (
    st.sampled_from([b"1", b"2", b"NaN", b"\xff", b"{}", b'"\\u0000"', b""])
    | st.binary(max_size=3)
    | st.none()
    | st.just(UNCHANGED)
)


table_rows = st.tuples(fields, fields, fields) | st.lists(fields, max_size=4).map(tuple)


row_messages = st.one_of(
    st.builds(Insert, st.just(TABLE), table_rows),
    st.builds(Update, st.just(TABLE), st.none(), st.none(), table_rows),
    st.builds(Update, st.just(TABLE), st.sampled_from("KO"), table_rows, table_rows),
    st.builds(Delete, st.just(TABLE), st.sampled_from("KO"), table_rows),
)


@given(st.sampled_from(TABLES), row_messages, st.none() | st.integers(6, 60))
def test_any_row_is_a_change_with_data_or_a_fault(table: Relation, message: pgoutput.Message, cut: int | None) -> None:
    raw = encode(message)[:cut]
    to_changes = decoder(CapturedTable("t", key=("id",)))
    for before in (begin(), encode(table)):
        to_changes.feed(before)
    changes = to_changes.feed(raw)
    assert 1 <= len(changes) <= 2
    for number, change in enumerate(changes):
        assert change.commit_idx == number
        assert (
            (change.data is None)
            is (change.fault is not None)
            is (change.raw == raw)
            is (change.relation == encode(table))
        )
        if change.data is not None:
            assert change.decider_id is not None
            assert isinstance(json.loads(change.data)["record"], dict)
            assert "\0" not in change.data.encode().decode()
        if change.decider_id is not None:
            assert isinstance(json.loads(change.decider_id), list)
    (following,) = to_changes.feed(encode(Insert(TABLE, (b"1", b"a", b"null"))))
    assert following.commit_idx == len(changes)


@given(st.binary(max_size=60), st.sampled_from([b"", b"I", b"U", b"D", b"R", b"M", b"I\0\0@\x10N", b"U\0\0@\x10O"]))
def test_any_bytes_are_a_change_or_refused(rest: bytes, kind: bytes) -> None:
    to_changes = decoder()
    for before in (begin(), encode(T)):
        to_changes.feed(before)
    try:
        changes = to_changes.feed(kind + rest)
    except PgoutputError:
        return
    assert all((change.data is None) is (change.fault is not None) for change in changes)
