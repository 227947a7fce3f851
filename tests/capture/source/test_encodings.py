"""Sources in encodings other than UTF-8: a value that is invalid in its encoding is a fault of its change."""

from collections.abc import Callable

import psycopg
import pytest

from millrace.capture import backfill as backfilling
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.encodings import codec_of, recoded_message
from millrace.capture.decoding.pgoutput import Insert, Relation, Type, decode
from millrace.capture.quarantine import requeue
from millrace.capture.store import CaptureStore
from millrace.capture.verify import verify
from tests.support.capturing.captured import Captured, did
from tests.support.capturing.sources import Source

# values that are invalid in their encoding, or have no equivalent in UTF-8
BYTES = {"SQL_ASCII": rb"\xc3e9", "WIN1252": rb"\x81", "EUC_TW": rb"\x8ea7a1a1"}


@pytest.mark.parametrize("encoding", BYTES)
def test_a_value_that_is_no_text_is_a_fault_of_its_change(
    new_source: Callable[[str], Source], dsn: str, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    bad = f"convert_from('{BYTES[encoding].decode()}'::bytea, getdatabaseencoding())"
    monkeypatch.setattr(backfilling, "FIRST_CHUNK", 2)
    source = new_source(encoding)
    source.run("create table items (id text primary key, name text)", "create table other (id int primary key)")
    capture = Capture("shop", lambda: source.dsn, (CapturedTable("items"), CapturedTable("other")))
    source.run("insert into items values ('a', 'read'), ('b', 'read'), ('z', 'read'), ('z2', 'read')")
    source.run(f"insert into items values ('c', {bad}), ({bad} || '1', 'key'), ({bad} || '2', '')")
    with psycopg.connect(dsn, autocommit=True) as store:
        captured = Captured(source, capture, dsn, store)
        captured.drain()
        assert verify(dsn, capture, CapturedTable("items")).nameless == 2
        # also the rows behind it in the order of the key
        assert [c["record_pk"] for c in captured.changes()] == ['["a"]', '["b"]', '["z"]', '["z2"]']
        source.run(
            f"insert into items values ('d', 'before'), ('e', {bad}), ({bad}, 'key'); insert into other values (1)"
        )
        source.run("update items set name = 'mended' where id in ('c', 'e')", "insert into items values ('f', 'after')")
        captured.drain()
        assert did(captured) == [("inserted", '["d"]'), ("inserted", "[1]"), ("inserted", '["f"]')]
        faults = [change.fault for change in CaptureStore(store).quarantined_changes("shop")]
        assert [fault for fault in faults if fault and "is no text of its database's encoding" not in fault] == []
        assert len(faults) == 7
        # a stored change is the same when the slot gives it again
        assert captured.drain().quarantined == 0
        for change in CaptureStore(store).quarantined_changes("shop"):
            if change.fault:
                CaptureStore(store).discard_change(change.quarantine_id, "nobody can read it")
        requeue(CaptureStore(store), capture, "mended")
        source.run("delete from items where id collate \"C\" > '~' or id ~ '[12]$' and id <> 'z2'")
        left = {c["id"]: c["name"] for c in captured.replayed() if "name" in c}
        there: dict[str, str] = dict(source.connection.execute("select id, name from items").fetchall())
        assert left == there


def test_text_beside_such_a_value_is_the_same_as_without_it(new_source: Callable[[str], Source], dsn: str) -> None:
    source = new_source("WIN1252")
    source.run('create table "prix€" (id int primary key, "été" text)')
    source.run("""insert into "prix€" values (1, 'œuvre €'), (2, convert_from('\\x81', 'WIN1252'))""")
    capture = Capture("shop", lambda: source.dsn, (CapturedTable("prix€"),))
    with psycopg.connect(dsn, autocommit=True) as store:
        captured = Captured(source, capture, dsn, store)
        captured.drain()
        source.run("""insert into "prix€" values (3, 'naïve')""")
        captured.drain()
        source.run("""insert into "prix€" values (4, 'naïve'), (5, convert_from('\\x81', 'WIN1252'))""")
        captured.drain()
        assert captured.replayed() == [
            {"id": 1, "été": "œuvre €"}, {"id": 3, "été": "naïve"}, {"id": 4, "été": "naïve"}
        ]  # fmt: skip


def test_messages_are_recoded_value_by_value() -> None:
    one = b"I\0\0\0\1N\0\3n" + b"t\0\0\0\2\xe9a" + b"t\0\0\0\1\x81"
    assert decode(recoded_message(one, "cp1252")) == Insert(1, (None, "éa".encode(), b"\xff\0\x81"))
    relation = b"R\0\0\0\1p\xe9\0t\xe9\0d\0\1\1c\xe9\0\0\0\0\x17\xff\xff\xff\xff"
    found = decode(recoded_message(relation, "cp1252"))
    assert isinstance(found, Relation)
    assert (found.schema, found.table, found.columns[0].name) == ("pé", "té", "cé")
    assert found.columns[0].type_modifier == -1
    assert decode(recoded_message(b"Y\0\0\0\1p\xe9\0t\xe9\0", "cp1252")) == Type(1, "pé", "té")


@pytest.mark.parametrize(
    "message", [b"I\0\0\0\1N\0\1t\0\0\0\5\xe9", b"I\0\0\0\1N\0\1t\0", b"R\0\0\0\1p\xe9", b"M\xe9", b"\xe9"]
)
def test_a_message_that_is_cut_off_is_left_as_it_is(message: bytes) -> None:
    assert recoded_message(message, "cp1252") == message


def test_every_encoding_of_a_server_has_a_codec(new_source: Callable[[], Source]) -> None:
    known = new_source().connection.execute(
        "select pg_encoding_to_char(n) from generate_series(0, 34) n where pg_encoding_to_char(n) <> ''"
    )
    for (encoding,) in known:
        "a".encode(codec_of(encoding))
