"""Bytes to messages: handwritten, from the server, and random."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.capture.decoding.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Lsn,
    Message,
    Origin,
    PgoutputError,
    Relation,
    RelationColumn,
    Truncate,
    Type,
    Update,
    changed_relation,
    decode,
)
from tests.support.capturing.pgoutput_bytes import INT4, TEXT, encode
from tests.support.capturing.sources import Source

LSN = Lsn.parse("16/B374D848")
EXAMPLES: list[tuple[bytes, Message]] = [
    (
        b"B" + bytes.fromhex("00000016B374D848 0000000000000001 FFFFFFFF"),
        Begin(LSN, datetime(2000, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 2**32 - 1),
    ),
    (
        b"C" + bytes.fromhex("00 00000016B374D848 00000016B374D850 FFFFFFFFFFFFFFFF"),
        Commit(LSN, Lsn(LSN + 8), datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ),
    (b"O" + bytes.fromhex("00000016B374D848") + b"far\0", Origin(LSN, "far")),
    (
        b"R" + bytes.fromhex("00004010") + b"public\0t\0d" + bytes.fromhex("0002")
        + b"\x01id\0" + bytes.fromhex("00000017FFFFFFFF") + b"\0\xc3\xbc\0" + bytes.fromhex("0000001900000005"),
        Relation(16400, "public", "t", "d", (RelationColumn("id", INT4, -1, True), RelationColumn("ü", TEXT, 5, False))),
    ),
    (b"R" + bytes.fromhex("00004010") + b"\0t\0f" + bytes.fromhex("0000"), Relation(16400, "pg_catalog", "t", "f", ())),
    (b"Y" + bytes.fromhex("00004011") + b"public\0mood\0", Type(16401, "public", "mood")),
    (
        b"I" + bytes.fromhex("00004010") + b"N" + bytes.fromhex("0003") + b"t\0\0\0\x02ab" + b"n" + b"u",
        Insert(16400, (b"ab", None, UNCHANGED)),
    ),
    (b"U" + bytes.fromhex("00004010") + b"N" + b"\0\x01t\0\0\0\0", Update(16400, None, None, (b"",))),
    (
        b"U" + bytes.fromhex("00004010") + b"K" + b"\0\x01t\0\0\0\x011" + b"N" + b"\0\x01u",
        Update(16400, "K", (b"1",), (UNCHANGED,)),
    ),
    (
        b"U" + bytes.fromhex("00004010") + b"O" + b"\0\x01n" + b"N" + b"\0\x01t\0\0\0\x011",
        Update(16400, "O", (None,), (b"1",)),
    ),
    (b"D" + bytes.fromhex("00004010") + b"K" + b"\0\x01t\0\0\0\x011", Delete(16400, "K", (b"1",))),
    (b"D" + bytes.fromhex("00004010") + b"O" + b"\0\x00", Delete(16400, "O", ())),
    (b"T" + bytes.fromhex("00000002 03 00004010 00004011"), Truncate((16400, 16401), True, True)),
    (b"T" + bytes.fromhex("00000000 00"), Truncate((), False, False)),
    (
        b"M" + bytes.fromhex("01 00000016B374D848") + b"who\0" + bytes.fromhex("00000003") + b"\0\xff{",
        LogicalMessage(True, LSN, "who", b"\0\xff{"),
    ),
]  # fmt: skip


def test_each_kind_of_message_is_decoded_and_refused_if_cut_or_too_long() -> None:
    for data, message in EXAMPLES:
        assert decode(data) == message
        assert encode(message) == data
        for end in range(len(data)):
            with pytest.raises(PgoutputError):
                decode(data[:end])
        with pytest.raises(PgoutputError, match="says"):
            decode(data + b"\0") if data[:1] != b"T" else decode(EXAMPLES[0][0] + b"\0")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "no bytes"), (b"Z", "unknown kind b'Z'"),
        (b"S\0\0\0\1\1", "unknown kind b'S'"),  # streams are protocol version 2
        (b"I\0\0@\x10K\0\0", "an insert with a row of the unknown kind b'K'"),
        (b"U\0\0@\x10X\0\0", "an update with a row of the unknown kind b'X'"),
        (b"U\0\0@\x10K\0\0K\0\0", "an update with a row of the unknown kind b'K'"),
        (b"D\0\0@\x10N\0\0", "a delete with a row of the unknown kind b'N'"),
        (b"I\0\0@\x10N\0\1b\0\0\0\1x", "a value of the unknown kind b'b'"),
        (b"I\0\0@\x10N\0\1t\xff\xff\xff\xffx", "says"),
        (b"R\0\0@\x10public\0t\0x\0\0", "unknown replica identity 'x'"),
        (b"R\0\0@\x10public\0t\0d\0\1\2id\0\0\0\0\0\0\0\0\0", "unknown flags 2"),
        (b"R\0\0@\x10public\0\xff\0d\0\0", "not UTF-8"), (b"C\1" + bytes(24), "unknown flags 1"),
        (b"M\2" + bytes(8) + b"p\0" + bytes(4), "unknown flags 2"), (b"T\0\0\0\0\4", "unknown options 4"),
        (b"T\xff\xff\xff\xff\0", "4294967295 tables"),
        (b"B" + bytes(8) + b"\x7f" + b"\xff" * 7 + bytes(4), "no date"),
    ],
)  # fmt: skip
def test_what_the_protocol_does_not_have_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(PgoutputError, match=fault):
        decode(data)


def test_an_lsn_is_written_and_read_as_postgres_does() -> None:
    assert str(LSN) == "16/B374D848"
    assert str(Lsn(0)) == "0/0"
    assert repr(Lsn(1)) == "Lsn('0/1')"
    assert Lsn.parse("ffffffff/ffffffff") == 2**64 - 1
    for text in ("", "0", "0/", "/0", "0/0/0", "0/123456789", " 0/0", "0/G", "-1/0"):
        with pytest.raises(ValueError, match="no LSN"):
            Lsn.parse(text)


@pytest.mark.parametrize(
    ("data", "relation_id"),
    [(b"I\0\0@\x10", 16400), (b"U\0\0@\x10N?", 16400), (b"D\0\0@\x10", 16400), (b"D\0\0@", None), (b"T\0\0@\x10", None), (b"", None)],
)  # fmt: skip
def test_the_table_of_a_change_is_told_even_where_the_rest_is_broken(data: bytes, relation_id: int | None) -> None:
    assert changed_relation(data) == relation_id


uint32s, uint64s = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
lsns = st.builds(Lsn, uint64s)
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
schemas = names.filter(bool)
tuples = st.lists(st.binary(max_size=20) | st.none() | st.just(UNCHANGED), max_size=8).map(tuple)
table_columns = st.builds(RelationColumn, names, uint32s, st.integers(-(2**31), 2**31 - 1), st.booleans())
messages = st.one_of(
    st.builds(Begin, lsns, times, uint32s),
    st.builds(Commit, lsns, lsns, times),
    st.builds(Origin, lsns, names),
    st.builds(
        Relation, uint32s, schemas, names, st.sampled_from("dnfi"), st.lists(table_columns, max_size=5).map(tuple)
    ),
    st.builds(Type, uint32s, schemas, names),
    st.builds(Insert, uint32s, tuples),
    st.builds(Update, uint32s, st.none(), st.none(), tuples),
    st.builds(Update, uint32s, st.sampled_from("KO"), tuples, tuples),
    st.builds(Delete, uint32s, st.sampled_from("KO"), tuples),
    st.builds(Truncate, st.lists(uint32s, max_size=5).map(tuple), st.booleans(), st.booleans()),
    st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=50)),
)


@given(messages)
def test_what_was_made_is_what_is_decoded(message: Message) -> None:
    assert decode(encode(message)) == message


def decodes_or_is_refused(data: bytes) -> None:
    try:
        message = decode(data)
    except PgoutputError:
        return
    # nothing was skipped: all bytes are in the message
    assert encode(message) == data


@given(st.sampled_from([b"", *(bytes([kind]) for kind in b"BCORYIUDTM")]), st.binary(max_size=60))
def test_any_bytes_also_behind_a_known_kind_are_decoded_or_refused(kind: bytes, rest: bytes) -> None:
    decodes_or_is_refused(kind + rest)


@given(messages, st.data())
def test_a_damaged_message_is_decoded_or_refused(message: Message, data: st.DataObject) -> None:
    whole = bytearray(encode(message))
    at = data.draw(st.integers(0, len(whole) - 1))
    match data.draw(st.sampled_from(["change", "remove", "insert", "cut"])):
        case "change":
            whole[at] = data.draw(st.integers(0, 255))
        case "remove":
            del whole[at]
        case "insert":
            whole.insert(at, data.draw(st.integers(0, 255)))
        case _:
            del whole[at:]
    decodes_or_is_refused(bytes(whole))


def test_the_server_says_begin_relation_rows_and_commit(source: Source) -> None:
    source.run("create table t (id int primary key, note text, at date)")
    source.listen()
    source.run("insert into t values (1, 'ä', null); update t set note = 'b'; update t set id = 2; delete from t")
    begun, relation, *changes, committed = source.messages()
    assert isinstance(begun, Begin)
    assert isinstance(committed, Commit)
    assert isinstance(relation, Relation)
    assert committed == Commit(begun.final_lsn, committed.end_lsn, begun.committed_at)
    assert begun.final_lsn < committed.end_lsn
    assert relation == Relation(
        relation.relation_id,
        "public",
        "t",
        "d",
        (
            RelationColumn("id", INT4, -1, True),
            RelationColumn("note", TEXT, -1, False),
            RelationColumn("at", 1082, -1, False),
        ),
    )
    assert changes == [
        Insert(relation.relation_id, (b"1", "ä".encode(), None)),
        Update(relation.relation_id, None, None, (b"1", b"b", None)),
        Update(relation.relation_id, "K", (b"1", None, None), (b"2", b"b", None)),
        Delete(relation.relation_id, "K", (b"2", None, None)),
    ]


def test_the_server_sends_old_rows_as_the_replica_identity_says(source: Source) -> None:
    source.run(
        "create table f (id int primary key, note text)",
        "alter table f replica identity full",
        "create table i (id int primary key, code text not null unique)",
        "alter table i replica identity using index i_code_key",
    )
    source.listen()
    source.run("insert into f values (1, 'a'); update f set note = 'b'; delete from f")
    source.run("insert into i values (1, 'a'); update i set id = 2; update i set code = 'b'; delete from i")
    found = source.messages()
    f, i = [message for message in found if isinstance(message, Relation)]
    assert ([column.is_key for column in f.columns], f.identity) == ([True, True], "f")
    assert ([column.is_key for column in i.columns], i.identity) == ([False, True], "i")
    assert [message for message in found if isinstance(message, Update | Delete)] == [
        Update(f.relation_id, "O", (b"1", b"a"), (b"1", b"b")), Delete(f.relation_id, "O", (b"1", b"b")),
        Update(i.relation_id, None, None, (b"2", b"a")), Update(i.relation_id, "K", (None, b"a"), (b"2", b"b")),
        Delete(i.relation_id, "K", (None, b"b")),
    ]  # fmt: skip


def test_the_server_names_types_truncated_tables_and_origins(source: Source) -> None:
    source.run(
        "create type mood as enum ('sad'); create domain amount as numeric check (value > 0)",
        "create table t (id int primary key, mood mood, amount amount)",
        "create table a (id serial primary key); create table b (id int primary key references a)",
        "select pg_replication_origin_create('far')",
    )
    source.listen()
    source.run("insert into t values (1, 'sad', 2.50)", "truncate b, a restart identity", "truncate a cascade")
    try:
        source.run("select pg_replication_origin_session_setup('far')", "insert into t values (2)")
    finally:
        source.run("select pg_replication_origin_session_reset()", "select pg_replication_origin_drop('far')")
    found = source.messages()
    # user-defined types, and the base type of a domain
    types = [message for message in found if isinstance(message, Type)][:2]
    assert [(message.schema, message.name) for message in types] == [("public", "mood"), ("pg_catalog", "numeric")]
    tables = {message.table: message for message in found if isinstance(message, Relation)}
    assert [column.type_oid for column in tables["t"].columns] == [INT4, *[message.type_oid for message in types]]
    first, _ = [message for message in found if isinstance(message, Insert)]
    assert first == Insert(tables["t"].relation_id, (b"1", b"sad", b"2.50"))
    # one message truncates several tables
    a, b = tables["a"].relation_id, tables["b"].relation_id
    assert [message for message in found if isinstance(message, Truncate)] == [
        Truncate((b, a), False, True),
        Truncate((a, b), True, False),
    ]
    assert [message.name for message in found if isinstance(message, Origin)] == ["far"]
