"""Messages to changes: the row, the action, the transaction and the id of each."""

from typing import Any
from uuid import RFC_4122, UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.fields import derived_id, packed_id, packed_ids
from millrace.capture.decoding.pgoutput import UNCHANGED, Delete, Lsn, Message, Relation, Truncate, Update
from millrace.capture.decoding.transactions import whole_xid
from tests.support.capturing import pgoutput_bytes
from tests.support.capturing.decoded_changes import FULL, T, body, data, decoded, moves, streamed
from tests.support.capturing.pgoutput_bytes import BOOL, INT4, JSON, JSONB, TABLE, TEXT, encode, insert, relation
from tests.support.capturing.sources import Source

NAMESPACE = UUID("5b2f6c1e-3f0a-4d57-9c58-1d5f0c6f7a42")


def test_a_change_says_where_it_is_from() -> None:
    first, second = decoded(encode(T), insert(b"7", b"a"), insert(b"8", None))
    assert first == Change(
        commit_lsn=Lsn(100), commit_idx=0, xid=900, committed_at=pgoutput_bytes.COMMITTED_AT, decider="table:public.t",
        decider_id="[7]", action="inserted", event_id=packed_id(packed_ids(100, generation=3), 0),
        command_id=derived_id("3/0/64"), data=first.data,
    )  # fmt: skip
    assert data(first) == {
        "record": {"id": 7, "note": "a"}, "commit_lsn": "0/64", "commit_idx": 0, "xid": 900,
        "committed_at": "2026-02-03T04:05:06.000789Z",
        "source": {"capture": "shop", "generation": 3, "schema": "public", "table": "t", "oid": TABLE},
    }  # fmt: skip
    assert (second.commit_idx, second.decider_id, body(second)) == (1, "[8]", {"record": {"id": 8, "note": None}})


def test_each_change_has_an_id_for_ever_and_a_transaction_one_command() -> None:
    first, second = decoded(encode(T), insert(b"7", b"a"), insert(b"7", b"a"))
    assert first.event_id != second.event_id
    assert first.command_id == second.command_id
    assert (first.event_id, first.command_id) == ("00000c00-0000-8000-8000-064000000000", derived_id("3/0/64"))
    assert {derived_id(f"{n}") for n in range(64)} == {str(uuid5(NAMESPACE, f"{n}")) for n in range(64)}
    again = decoded(encode(T), insert(b"7", b"a"), insert(b"7", b"a"))
    assert again == [first, second]


def test_a_change_has_what_the_log_holds_and_names_what_it_does_not(source: Source) -> None:
    source.run(
        "create table t (id int primary key, large text, n int)",
        "create table f (id int primary key, large text, n int)",
        "create table k (id text primary key, n int)",
        "create table x (id int primary key, xid text)",
        "alter table t alter large set storage external; alter table f alter large set storage external",
        "alter table k alter id set storage external; alter table f replica identity full",
        "insert into t values (1, repeat('x', 9000), 1), (2, 'unchanged_toast', 1)",
        "insert into f values (1, repeat('x', 9000), 1); insert into k values (repeat('x', 2500), 1)",
    )
    source.listen()
    source.run(
        "update t set n = 2", "update f set n = 2; update f set n = 3", "update k set n = 2", "delete from t where id = 1",
        "insert into x select 1, pg_current_xact_id()::text",
    )  # fmt: skip
    large, key = "x" * 9000, "x" * 2500
    *changes, last = streamed(source, *map(CapturedTable, "tkx"), CapturedTable("f", key=("id",)))
    assert moves(changes) == [
        # an unchanged large value is unavailable
        ("updated", "[1]", {"record": {"id": 1, "n": 2}, "unavailable": ["large"]}),
        ("updated", "[2]", {"record": {"id": 2, "large": "unchanged_toast", "n": 2}}),
        # or is taken from the old row; two updates in one transaction are two changes with the right images
        ("updated", "[1]", {"record": {"id": 1, "large": large, "n": 2}, "changes": {"n": 1}}),
        ("updated", "[1]", {"record": {"id": 1, "large": large, "n": 3}, "changes": {"n": 2}}),
        # a large key is taken from the old key
        ("updated", f'["{key}"]', {"record": {"id": key, "n": 2}}),
        # a delete has the key only
        ("deleted", "[1]", {"record": {"id": 1}, "unavailable": ["large", "n"]}),
    ]
    first, second = changes[2:4]
    assert (first.commit_lsn, first.commit_idx, second.commit_idx) == (second.commit_lsn, 0, 1)
    # 32-bit transaction ids become 64-bit ones
    assert str(last.xid) == body(last)["record"]["xid"]


ALL_KEY = relation(("id", INT4), ("note", TEXT), key=("id", "note"))
# a table, a message, and its changes: action, key, data
MOVES: tuple[tuple[Relation, Message, list[tuple[str, str, dict[str, Any]]]], ...] = (
    # without the old row the changed columns of an update are unknown
    (T, Update(TABLE, None, None, (b"7", b"b")), [("updated", "[7]", {"record": {"id": 7, "note": "b"}})]),
    (
        FULL, Update(TABLE, "O", (b"7", b"b"), (b"7", b"b")),
        [("updated", "[7]", {"record": {"id": 7, "note": "b"}, "changes": {}})],
    ),
    (FULL, Delete(TABLE, "O", (b"7", None)), [("deleted", "[7]", {"record": {"id": 7, "note": None}})]),
    (ALL_KEY, Delete(TABLE, "K", (b"7", b"a")), [("deleted", '[7,"a"]', {"record": {"id": 7, "note": "a"}})]),
    (
        FULL, Update(TABLE, "O", (b"7", b"a"), (b"8", UNCHANGED)),
        [
            ("deleted", "[7]", {"record": {"id": 7, "note": "a"}, "new_key": [8]}),
            ("updated", "[8]", {"record": {"id": 8, "note": "a"}, "changes": {"id": 7}, "old_key": [7]}),
        ],
    ),
    (
        T, Update(TABLE, "K", (b"7", None), (b"8", b"a")),
        [
            ("deleted", "[7]", {"record": {"id": 7}, "unavailable": ["note"], "new_key": [8]}),
            ("updated", "[8]", {"record": {"id": 8, "note": "a"}, "old_key": [7]}),
        ],
    ),
)  # fmt: skip


def test_a_change_has_what_the_log_holds_of_its_rows() -> None:
    for table, message, expected in MOVES:
        declared = [CapturedTable("t", key=("id",))] if table is FULL else []
        assert moves(decoded(encode(table), encode(message), tables=declared)) == expected


B_A = relation(("b", TEXT), ("n", INT4), ("a", TEXT), key=("a", "b"))
# a table, the declared key, a row, and its key
KEYS: tuple[tuple[Relation, tuple[str, ...] | None, tuple[bytes, ...], str], ...] = (
    # in the order of the columns; different values make different keys
    (B_A, None, (b"a,b", b"1", b'c"d'), '["a,b","c\\"d"]'),
    (B_A, None, (b"a", b"1", b'b,c"d'), '["a","b,c\\"d"]'),
    (B_A, None, (b"\\/", b"1", "ü\n".encode()), '["\\\\/","ü\\n"]'),
    # the declared key if the replica identity has none
    *[(relation(("b", TEXT), ("a", TEXT), key=(), identity=of), ("a", "b"), (b"y", b"x"), '["y","x"]') for of in "fnd"],
    (B_A, ("n",), (b"b", b"1", b"a"), '["b","a"]'),
)


def test_a_key_is_the_replica_identity_s_or_the_declared_one() -> None:
    for table, key, row, expected in KEYS:
        (change,) = decoded(encode(table), insert(*row), tables=[CapturedTable("t", key=key)])
        assert change.decider_id == expected


def test_a_truncate_is_a_change_for_each_captured_table_in_its_order() -> None:
    tables = [relation(("id", INT4), table=name, oid=oid) for name, oid in (("a", 1), ("b", 2), ("c", 3))]
    changes = decoded(
        *map(encode, tables),
        encode(Truncate((3, 2, 1), True, False)),
        tables=[CapturedTable("a"), CapturedTable("c", decider="sea")],
    )
    assert [(change.commit_idx, change.decider, change.action, change.decider_id) for change in changes] == [
        (0, "sea", "truncated", "[]"),
        (1, "table:public.a", "truncated", "[]"),
    ]
    assert body(changes[0]) == {"record": None}


def test_a_table_that_is_not_captured_is_passed_over_and_takes_no_number() -> None:
    other = relation(("id", INT4), table="other", oid=5)
    rows = insert(b"1", oid=5), insert(b"7", b"a"), b"I\0\0\0\5", insert(b"8", b"b")
    changes = decoded(encode(T), encode(other), *rows)
    assert [(change.commit_idx, change.decider_id) for change in changes] == [(0, "[7]"), (1, "[8]")]


def test_values_are_json_by_their_type() -> None:
    table = relation(
        ("id", INT4), ("b", BOOL), ("n", pgoutput_bytes.NUMERIC), ("f", pgoutput_bytes.FLOAT8), ("j", JSON),
        ("k", JSONB), ("o", 17), key=("id",),
    )  # fmt: skip
    change, special = decoded(
        encode(table),
        insert(b"-5", b"f", b"12345678901234567890.10", b"1e-05", b'{"a" :1.50}', b"[null]", b"\\x00ff"),
        insert(b"6", b"t", b"NaN", b"-Infinity", b'"x"', b"1", None),
    )
    assert change.data is not None
    record = '{"id": -5, "b": false, "n": 12345678901234567890.10, "f": 1e-05, "j": {"a" :1.50}, "k": [null], "o": "\\\\x00ff"}'
    assert change.data.startswith(f'{{"record": {record}, "source"')
    assert body(special)["record"] == {"id": 6, "b": True, "n": "NaN", "f": "-Infinity", "j": "x", "k": 1, "o": None}


@pytest.mark.parametrize(
    ("xid", "reference", "whole"),
    [
        (900, 1000, 900), (1000, 1000, 1000),
        (1100, 1000, 1100),  # the transaction began after the reference id was read
        (900, 2**32 + 1000, 2**32 + 900), (2**32 - 5, 2**32 + 1000, 2**32 - 5), (3, 2**32 - 5, 2**32 + 3),
        (2**32 - 5, 5 * 2**32 + 1000, 5 * 2**32 - 5), (2**31 + 999, 1000, 2**31 + 999),
        (2**31 + 1001, 1000, 2**31 + 1001),  # an id is never negative
    ],
)  # fmt: skip
def test_a_transaction_s_id_is_made_whole(xid: int, reference: int, whole: int) -> None:
    assert whole_xid(xid, reference) == whole


PLACES = st.tuples(st.booleans(), st.integers(0, 2**21 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**36 - 1))


def id_of(place: tuple[bool, int, int, int]) -> str:
    backfills, generation, at, number = place
    return packed_id(packed_ids(at, generation=generation, backfills=backfills), number)


@given(PLACES, PLACES)
def test_ids_are_in_the_order_of_places(one: tuple[bool, int, int, int], other: tuple[bool, int, int, int]) -> None:
    assert (id_of(one) < id_of(other)) == (one < other)
    assert (id_of(one) == id_of(other)) == (one == other)


@given(PLACES)
def test_an_id_is_a_uuid_of_version_8_as_postgres_writes_it(place: tuple[bool, int, int, int]) -> None:
    found = UUID(id_of(place))
    assert (found.version, found.variant, str(found)) == (8, RFC_4122, id_of(place))
