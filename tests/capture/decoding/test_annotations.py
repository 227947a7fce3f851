"""Logical messages that annotate the later changes of their transaction."""

import json

import pytest

from tests.support.capturing.captured import Captured, did
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
        (b"[" * 198 + b"]" * 198, json.loads("[" * 198 + "]" * 198)), (b"1e899", 1e899), (b'"[[1e999"', "[[1e999"),
    ],
)  # fmt: skip
def test_annotations_are_json_that_jsonb_takes_or_a_text(content: bytes, kept: object) -> None:
    (change,) = decoded(encode(T), annotated(b"{}"), annotated(content), insert(b"7", b"a"))
    assert body(change).get("annotations") == kept
    assert ("annotations" in body(change)) is (kept is not None)


TOO_LARGE = {
    b'{"user": "' + b"x" * 1_100_000 + b'"}': "has 1100013 bytes; at most 524288 are allowed",
    b"x" * 600_000: "has 600002 bytes; at most 524288 are allowed",
    # the size as jsonb prints the value, with a blank after each comma
    b"[" + b"1," * 200_000 + b"1]": "has 800004 bytes; at most 524288 are allowed",
    b"[" + b"1e800," * 1_000 + b"1]": "has 808004 bytes; at most 524288 are allowed",
    b'{"n": 1e900}': "has a number of 901 digits; at most 900 are allowed",
    b'{"n": -0.' + b"1" * 900 + b"}": "has a number of 901 digits; at most 900 are allowed",
    b'{"a": ' * 199 + b"1" + b"}" * 199: "is nested deeper than 198 levels",
}


@pytest.mark.parametrize("content", TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_of_an_annotation_that_no_event_may_hold_it_is_said_what_is_wrong(content: bytes) -> None:
    (change,) = decoded(encode(T), annotated(content), insert(b"7", b"a"))
    assert body(change)["annotations"] == f"Millrace left out an annotation that {TOO_LARGE[content]}"


def test_no_annotation_keeps_a_change_from_becoming_an_event(captured: Captured) -> None:
    captured.drain()
    kept = (
        b"[" * 198 + b"]" * 198, b'{"n": 1' + b"0" * 899 + b"}", b'"' + b"x" * 500_000 + b'"',
        b"[" + b"1e800," * 600 + b"1]",
    )  # fmt: skip
    for number, content in enumerate([*kept, *TOO_LARGE]):
        with captured.source.connection.transaction():
            annotate = "select pg_logical_emit_message(true, 'millrace.annotations', %s::bytea)"
            captured.source.connection.execute(annotate, (content,))
            captured.source.connection.execute("insert into items values (%s)", (number,))
    assert captured.drain().quarantined == 0
    assert did(captured) == [("inserted", f"[{number}]") for number in range(len(kept) + len(TOO_LARGE))]
