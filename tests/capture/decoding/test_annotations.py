"""Messages of the source's sessions that annotate the changes behind them in their transaction."""

import pytest

from tests.support.capturing.decoded_changes import T, annotated, body, decoded, streamed
from tests.support.capturing.pgoutput_bytes import encode, insert
from tests.support.capturing.sources import Source


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
        select pg_logical_emit_message(true, 'millrace.annotations', '{"who": "last"}');
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
        (b" [1] ", [1]), (b"1.50", 1.5), (b"false", False), (b"null", None), (b" \n", None), (b"\xff{", "\\xff{"),
        (b'"\xff"', '"\\xff"'), (b"a\0b", "a\\x00b"), (rb'"\u0000"', r'"\u0000"'), (rb'"\ud800"', r'"\ud800"'),
    ],
)  # fmt: skip
def test_annotations_are_json_that_jsonb_takes_or_a_text(content: bytes, kept: object) -> None:
    (change,) = decoded(encode(T), annotated(b"{}"), annotated(content), insert(b"7", b"a"))
    assert body(change).get("annotations") == kept
    assert ("annotations" in body(change)) is (kept is not None)
