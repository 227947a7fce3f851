"""Messages to changes: what each does to a row, in which transaction, and what cannot be decoded.

Belongs here: `millrace.resources.capture.decoding.changes`, with messages made by hand and of the server. Not here: single values
(test_change_values).
"""

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding.changes import (
    MAX_DATA_CHARACTERS,
    Change,
    ChangeDecoder,
    TableRenamed,
    derived_id,
    whole_xid,
)
from millrace.resources.capture.decoding.pgoutput import (
    UNCHANGED,
    Delete,
    Insert,
    LogicalMessage,
    Lsn,
    Message,
    PgoutputError,
    Relation,
    Truncate,
    Type,
    Update,
)
from tests.support.pgoutput_bytes import (
    BOOL,
    COMMITTED_AT,
    FLOAT8,
    INT4,
    JSON,
    JSONB,
    NUMERIC,
    TABLE,
    TEXT,
    begin,
    commit,
    encode,
    insert,
    relation,
)
from tests.support.sources import Source, new_source, source

__all__ = ["new_source", "source"]

T = relation(("id", INT4), ("note", TEXT))
FULL = relation(("id", INT4), ("note", TEXT), identity="f")


def decoder(*tables: CapturedTable) -> ChangeDecoder:
    return ChangeDecoder(tables or (CapturedTable("t"),), "shop", 3, 1000)


def decoded(*raw: bytes, tables: Iterable[CapturedTable] = ()) -> list[Change]:
    """The changes of one transaction, whose messages these are."""
    to_changes = decoder(*tables)
    return [change for message in (begin(), *raw, commit()) for change in to_changes.feed(message)]


def streamed(source: Source, *tables: CapturedTable) -> list[Change]:
    to_changes = decoder(*tables)
    return [change for message in source.take() for change in to_changes.feed(message)]


def annotated(content: bytes, prefix: str = "millrace.annotations", *, transactional: bool = True) -> bytes:
    return encode(LogicalMessage(transactional, Lsn(1), prefix, content))


def data(change: Change) -> dict[str, Any]:
    assert change.data is not None
    assert (change.fault, change.raw, change.relation) == (None, None, None)
    found: dict[str, Any] = json.loads(change.data)
    return found


def body(change: Change) -> dict[str, Any]:
    """The data without what every change's data has."""
    shared = {"commit_lsn", "commit_idx", "xid", "committed_at", "source"}
    found = data(change)
    assert shared <= found.keys()
    return {key: value for key, value in found.items() if key not in shared}


def moves(changes: Iterable[Change]) -> list[tuple[str, str | None, dict[str, Any]]]:
    return [(change.action, change.decider_id, body(change)) for change in changes]


def test_a_change_says_where_it_is_from() -> None:
    first, second = decoded(encode(T), insert(b"7", b"a"), insert(b"8", None))
    assert first == Change(
        commit_lsn=Lsn(100),
        commit_idx=0,
        xid=900,
        committed_at=COMMITTED_AT,
        decider="table:public.t",
        decider_id="[7]",
        action="inserted",
        event_id=derived_id("3/0/64/0"),
        command_id=derived_id("3/0/64"),
        data=first.data,
    )
    assert data(first) == {
        "record": {"id": 7, "note": "a"},
        "commit_lsn": "0/64",
        "commit_idx": 0,
        "xid": 900,
        "committed_at": "2026-02-03T04:05:06.000789Z",
        "source": {"capture": "shop", "generation": 3, "schema": "public", "table": "t", "oid": TABLE},
    }
    assert (second.commit_idx, second.decider_id, body(second)) == (1, "[8]", {"record": {"id": 8, "note": None}})


def test_ids_are_uuids_of_version_5_and_the_transaction_s_changes_share_a_command() -> None:
    first, second = decoded(encode(T), insert(b"7", b"a"), insert(b"7", b"a"))
    assert first.event_id != second.event_id
    assert first.command_id == second.command_id
    assert {change.version for change in (first.event_id, first.command_id)} == {5}
    # they name events for ever
    assert first.event_id == UUID("25a4c6ac-17e3-57dc-8c2e-60596e0775ba")
    again = decoded(encode(T), insert(b"7", b"a"), insert(b"7", b"a"))
    assert again == [first, second]


def test_another_generation_has_other_ids() -> None:
    other = ChangeDecoder([CapturedTable("t")], "shop", 4, 1000)
    (change,) = [change for raw in (begin(), encode(T), insert(b"7", b"a")) for change in other.feed(raw)]
    assert change.event_id not in {found.event_id for found in decoded(encode(T), insert(b"7", b"a"))}


def test_two_updates_of_a_row_in_one_transaction_are_two_changes_with_right_images(source: Source) -> None:
    source.run(
        "create table t (id int primary key, n int)",
        "alter table t replica identity full",
        "insert into t values (1, 0)",
    )
    source.listen()
    source.run("update t set n = 1; update t set n = 2")
    first, second = streamed(source, CapturedTable("t", key=("id",)))
    assert (first.commit_lsn, first.commit_idx, second.commit_idx) == (second.commit_lsn, 0, 1)
    assert moves([first, second]) == [
        ("updated", "[1]", {"record": {"id": 1, "n": 1}, "changes": {"n": 0}}),
        ("updated", "[1]", {"record": {"id": 1, "n": 2}, "changes": {"n": 1}}),
    ]


def test_without_the_old_row_an_update_does_not_say_what_changed() -> None:
    assert moves(decoded(encode(T), encode(Update(TABLE, None, None, (b"7", b"b"))))) == [
        ("updated", "[7]", {"record": {"id": 7, "note": "b"}})
    ]


def test_an_update_that_changes_nothing_says_so() -> None:
    assert moves(
        decoded(
            encode(FULL),
            encode(Update(TABLE, "O", (b"7", b"b"), (b"7", b"b"))),
            tables=[CapturedTable("t", key=("id",))],
        )
    ) == [("updated", "[7]", {"record": {"id": 7, "note": "b"}, "changes": {}})]


def test_a_delete_has_the_key_only_and_names_what_the_log_does_not_hold(source: Source) -> None:
    source.run("create table t (id int primary key, note text, n int)", "insert into t values (1, 'a', 2)")
    source.listen()
    source.run("delete from t")
    assert moves(streamed(source)) == [("deleted", "[1]", {"record": {"id": 1}, "unavailable": ["note", "n"]})]


def test_a_delete_under_full_has_the_whole_row() -> None:
    assert moves(
        decoded(encode(FULL), encode(Delete(TABLE, "O", (b"7", None))), tables=[CapturedTable("t", key=("id",))])
    ) == [("deleted", "[7]", {"record": {"id": 7, "note": None}})]


def test_a_delete_of_a_table_that_is_all_key_lacks_nothing() -> None:
    only = relation(("id", INT4), ("note", TEXT), key=("id", "note"))
    assert moves(decoded(encode(only), encode(Delete(TABLE, "K", (b"7", b"a"))))) == [
        ("deleted", '[7,"a"]', {"record": {"id": 7, "note": "a"}})
    ]


def test_a_large_value_that_did_not_change_is_unavailable_or_from_the_old_row(source: Source) -> None:
    source.run(
        "create table t (id int primary key, large text, n int)",
        "create table f (id int primary key, large text, n int)",
        "alter table t alter large set storage external",
        "alter table f alter large set storage external",
        "alter table f replica identity full",
        "insert into t values (1, repeat('x', 9000), 1), (2, 'unchanged_toast', 1)",
        "insert into f values (1, repeat('x', 9000), 1)",
    )
    source.listen()
    source.run("update t set n = 2", "update f set n = 2")
    assert moves(streamed(source, CapturedTable("t"), CapturedTable("f", key=("id",)))) == [
        ("updated", "[1]", {"record": {"id": 1, "n": 2}, "unavailable": ["large"]}),
        ("updated", "[2]", {"record": {"id": 2, "large": "unchanged_toast", "n": 2}}),
        ("updated", "[1]", {"record": {"id": 1, "large": "x" * 9000, "n": 2}, "changes": {"n": 1}}),
    ]


def test_a_large_key_that_did_not_change_is_known_from_the_old_key(source: Source) -> None:
    source.run(
        "create table t (id text primary key, n int)",
        "alter table t alter id set storage external",
        "insert into t values (repeat('x', 2500), 1)",
    )
    source.listen()
    source.run("update t set n = 2")
    key = "x" * 2500
    assert moves(streamed(source)) == [("updated", f'["{key}"]', {"record": {"id": key, "n": 2}})]


def test_a_changed_key_ends_one_row_and_goes_on_as_another() -> None:
    moved = encode(Update(TABLE, "K", (b"7", None), (b"8", b"a")))
    changes = decoded(encode(T), insert(b"7", b"a"), moved, insert(b"9", b"b"))
    assert [change.commit_idx for change in changes] == [0, 1, 2, 3]
    assert moves(changes[1:3]) == [
        ("deleted", "[7]", {"record": {"id": 7}, "unavailable": ["note"], "new_key": [8]}),
        ("updated", "[8]", {"record": {"id": 8, "note": "a"}, "old_key": [7]}),
    ]
    assert changes[1].event_id == derived_id("3/0/64/1")
    assert changes[2].event_id == derived_id("3/0/64/2")


def test_a_changed_key_under_full_has_both_rows_whole() -> None:
    moved = encode(Update(TABLE, "O", (b"7", b"a"), (b"8", UNCHANGED)))
    assert moves(decoded(encode(FULL), moved, tables=[CapturedTable("t", key=("id",))])) == [
        ("deleted", "[7]", {"record": {"id": 7, "note": "a"}, "new_key": [8]}),
        ("updated", "[8]", {"record": {"id": 8, "note": "a"}, "changes": {"id": 7}, "old_key": [7]}),
    ]


def test_keys_are_unambiguous_and_in_the_order_of_the_columns() -> None:
    both = relation(("b", TEXT), ("n", INT4), ("a", TEXT), key=("a", "b"))
    keys = [
        change.decider_id
        for change in decoded(
            encode(both),
            insert(b"a,b", b"1", b'c"d'),
            insert(b"a", b"1", b'b,c"d'),
            insert(b"\\/", b"1", "ü\n".encode()),
        )
    ]
    assert keys == ['["a,b","c\\"d"]', '["a","b,c\\"d"]', '["\\\\/","ü\\n"]']


@pytest.mark.parametrize("identity", ["f", "n", "d"])
def test_without_a_key_in_the_replica_identity_the_declared_one_counts(identity: str) -> None:
    table = relation(("id", INT4), ("a", TEXT), ("b", TEXT), identity=identity, key=())
    declared = CapturedTable("t", key=("b", "a"))
    assert [change.decider_id for change in decoded(encode(table), insert(b"1", b"x", b"y"), tables=[declared])] == [
        '["x","y"]'
    ]


def test_the_replica_identity_is_the_key_even_if_another_is_declared() -> None:
    assert [
        change.decider_id
        for change in decoded(encode(T), insert(b"7", b"a"), tables=[CapturedTable("t", key=("note",))])
    ] == ["[7]"]


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
    changes = decoded(
        encode(T), encode(other), insert(b"1", oid=5), insert(b"7", b"a"), b"I\0\0\0\5", insert(b"8", b"b")
    )
    assert [(change.commit_idx, change.decider_id) for change in changes] == [(0, "[7]"), (1, "[8]")]


@pytest.mark.parametrize("raw", [insert(b"7", b"a"), encode(Truncate((TABLE,), False, False)), b"I\0\0@\x10"])
def test_a_captured_table_that_changes_under_a_name_that_is_not_declared_is_refused(raw: bytes) -> None:
    renamed = relation(("id", INT4), ("note", TEXT), table="u")
    to_changes = ChangeDecoder([CapturedTable("t")], "shop", 3, 1000, {TABLE: ("public.t", Lsn(200))})
    # what the backfill to come will see
    for message in (begin(199), encode(renamed), raw, commit(199)):
        assert list(to_changes.feed(message)) == []
    to_changes.feed(begin(200))
    with pytest.raises(TableRenamed, match=r"(?s)public\.t .*public\.u.*millrace capture restart shop"):
        to_changes.feed(raw)


def test_a_captured_table_that_is_renamed_and_has_its_name_again_is_refused_only_for_what_it_did_meanwhile() -> None:
    renamed = relation(("id", INT4), ("note", TEXT), table="u")
    to_changes = ChangeDecoder([CapturedTable("t")], "shop", 3, 1000, {TABLE: ("public.t", Lsn(0))})
    for message in (begin(), encode(renamed), encode(T)):
        assert list(to_changes.feed(message)) == []
    (change,) = to_changes.feed(insert(b"7", b"a"))
    assert change.decider_id == "[7]"


def test_each_change_has_the_columns_of_its_time(source: Source) -> None:
    source.run("create table t (id int primary key, a int)")
    source.listen()
    source.run(
        "insert into t values (1, 1)",
        "alter table t add b text default 'new'",
        "insert into t values (2, 2, 'x')",
        "alter table t rename a to c",
        "begin; insert into t values (3, 3, 'y'); alter table t drop c; insert into t values (4, 'z'); commit",
        "alter table t alter id type bigint",
        "insert into t values (5, 'z')",
        "drop table t",
    )
    assert [body(change)["record"] for change in streamed(source)] == [
        {"id": 1, "a": 1},
        {"id": 2, "a": 2, "b": "x"},
        {"id": 3, "c": 3, "b": "y"},
        {"id": 4, "b": "z"},
        {"id": 5, "b": "z"},
    ]


def test_rolled_back_transactions_and_savepoints_leave_nothing_not_even_numbers(source: Source) -> None:
    source.run("create table t (id int primary key)")
    source.listen()
    source.run(
        "begin; insert into t values (1); rollback",
        "begin; insert into t values (2); savepoint a; insert into t values (3); rollback to a; insert into t values (4); commit",
    )
    assert [(change.commit_idx, change.decider_id) for change in streamed(source)] == [(0, "[2]"), (1, "[4]")]


def test_interleaved_transactions_come_whole_in_the_order_of_their_commits(source: Source) -> None:
    source.run("create table t (id int primary key)")
    source.listen()
    with Source(source.dsn, source.slot).connection as other:
        other.execute("begin")
        for n in range(3):
            other.execute("insert into t values (%s)", (10 + n,))
            source.connection.execute("insert into t values (%s)", (n,))
        other.execute("commit")
    changes = streamed(source)
    assert [change.decider_id for change in changes] == ["[0]", "[1]", "[2]", "[10]", "[11]", "[12]"]
    assert sorted(changes, key=lambda change: (change.commit_lsn, change.commit_idx)) == changes


def test_values_are_json_by_their_type() -> None:
    table = relation(
        ("id", INT4), ("b", BOOL), ("n", NUMERIC), ("f", FLOAT8), ("j", JSON), ("k", JSONB), ("o", 17), key=("id",)
    )
    change, special = decoded(
        encode(table),
        insert(b"-5", b"f", b"12345678901234567890.10", b"1e-05", b'{"a" :1.50}', b"[null]", b"\\x00ff"),
        insert(b"6", b"t", b"NaN", b"-Infinity", b'"x"', b"1", None),
    )
    assert change.data is not None
    record = '{"id": -5, "b": false, "n": 12345678901234567890.10, "f": 1e-05, "j": {"a" :1.50}, "k": [null], "o": "\\\\x00ff"}'
    assert change.data.startswith(f'{{"record": {record}, "commit_lsn"')
    assert body(special)["record"] == {"id": 6, "b": True, "n": "NaN", "f": "-Infinity", "j": "x", "k": 1, "o": None}


def test_annotations_hold_for_what_follows_in_their_transaction(source: Source) -> None:
    source.run("create table t (id int primary key)")
    source.listen()
    source.run(
        """
        begin;
        insert into t values (1);
        select pg_logical_emit_message(true, 'millrace.annotations', '{"who": "ann"}');
        insert into t values (2);
        savepoint a;
        select pg_logical_emit_message(true, 'millrace.annotations', '{"who": "nobody"}');
        rollback to a;
        insert into t values (3);
        select pg_logical_emit_message(true, 'other', '{"who": "else"}');
        select pg_logical_emit_message(false, 'millrace.annotations', '{"who": "else"}');
        insert into t values (4);
        select pg_logical_emit_message(true, 'millrace.annotations', 'not json');
        insert into t values (5);
        select pg_logical_emit_message(true, 'millrace.annotations', '');
        insert into t values (6);
        commit
        """,
        "insert into t values (7)",
    )
    assert [body(change).get("annotations") for change in streamed(source)] == [
        None, {"who": "ann"}, {"who": "ann"}, {"who": "ann"}, "not json", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b" [1] ", [1]),
        (b"1.50", 1.5),
        (b"false", False),
        (b"null", None),
        (b" \n", None),
        (b"\xff{", "\\xff{"),
        (b'"\xff"', '"\\xff"'),
        (b"a\0b", "a\\x00b"),
        (rb'"\u0000"', r'"\u0000"'),
        (rb'"\ud800"', r'"\ud800"'),
    ],
)
def test_annotations_are_json_that_jsonb_takes_or_a_text(content: bytes, kept: object) -> None:
    (change,) = decoded(encode(T), annotated(b"{}"), annotated(content), insert(b"7", b"a"))
    assert body(change).get("annotations") == kept
    assert ("annotations" in body(change)) is (kept is not None)


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
        (b"U\0\0@\x10", "updated", None, "cut off"),
        (b"D\0\0@\x10N", "deleted", None, "unknown kind b'N'"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_is_a_change_with_its_fault_and_the_rest_goes_on(
    raw: bytes, action: str, decider_id: str | None, fault: str
) -> None:
    before, bad, after = decoded(encode(T), insert(b"1", b"a"), raw, insert(b"2", b"b"))
    assert bad.fault is not None
    assert fault in bad.fault
    assert (bad.action, bad.decider, bad.decider_id, bad.commit_idx) == (action, "table:public.t", decider_id, 1)
    assert (bad.data, bad.raw, bad.relation) == (None, raw, encode(T))
    assert bad.event_id == derived_id("3/0/64/1")
    assert [(change.decider_id, change.commit_idx) for change in (before, after)] == [("[1]", 0), ("[2]", 2)]


def test_a_changed_key_whose_new_row_cannot_be_decoded_still_ends_the_old_row() -> None:
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


def test_a_decoder_knows_how_far_it_is() -> None:
    to_changes = decoder()
    assert to_changes.end_lsn is None
    to_changes.feed(begin(100))
    assert to_changes.end_lsn is None
    to_changes.feed(commit(100))
    assert to_changes.end_lsn == 108
    to_changes.feed(annotated(b"{}", transactional=False))
    to_changes.feed(encode(Type(16500, "public", "mood")))
    to_changes.feed(begin(200))
    assert to_changes.end_lsn == 108


def test_annotations_of_a_transaction_end_with_it() -> None:
    to_changes = decoder()
    for raw in (begin(100), encode(T), annotated(b"1"), commit(100), begin(200)):
        to_changes.feed(raw)
    (change,) = to_changes.feed(insert(b"7", b"a"))
    assert "annotations" not in body(change)
    assert (change.commit_lsn, change.commit_idx) == (200, 0)


@pytest.mark.parametrize(
    "raw",
    [
        [b"?"],
        [b""],
        [encode(T)[:-1]],
        [begin(), b"I\0\0"],
        [begin(), b"T\0"],
        [begin(), insert(b"7", b"a")],
        [begin(), encode(Truncate((TABLE,), False, False))],
        [begin(), b"D\0\0@\x10"],
        [encode(T), insert(b"7", b"a")],
        [encode(T), b"I\0\0@\x10"],
        [annotated(b"{}")],
        [commit()],
        [begin(), begin()],
        [begin(100), commit(200)],
    ],
)
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
def test_any_row_is_a_change_with_data_or_a_fault(table: Relation, message: Message, cut: int | None) -> None:
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


@pytest.mark.parametrize(
    ("xid", "reference", "whole"),
    [
        (900, 1000, 900),
        (1000, 1000, 1000),
        (1100, 1000, 1100),  # it began after we asked
        (900, 2**32 + 1000, 2**32 + 900),
        (2**32 - 5, 2**32 + 1000, 2**32 - 5),
        (3, 2**32 - 5, 2**32 + 3),
        (2**32 - 5, 5 * 2**32 + 1000, 5 * 2**32 - 5),
        (2**31 + 999, 1000, 2**31 + 999),
        (2**31 + 1001, 1000, 2**31 + 1001),  # nothing is below 0
    ],
)
def test_a_transaction_s_id_is_made_whole(xid: int, reference: int, whole: int) -> None:
    assert whole_xid(xid, reference) == whole


def test_the_server_s_ids_are_made_whole(source: Source) -> None:
    source.run("create table t (id int primary key, x text)")
    source.listen()
    source.run("insert into t select 1, pg_current_xact_id()::text")
    (change,) = streamed(source)
    assert str(change.xid) == body(change)["record"]["x"]
