"""Values to JSON: jsonb accepts every text, as Postgres itself confirms."""

import json
from collections.abc import Callable
from itertools import product

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.capture.decoding.values import Undecodable, embedded, encoded_column, encoder_of, quoted
from tests.support.capturing.pgoutput_bytes import BOOL, FLOAT8, INT4, JSON, JSONB, NUMERIC, TEXT
from tests.support.capturing.sources import Source


@pytest.mark.parametrize(
    ("type_oid", "value", "text"),
    [
        (BOOL, b"t", "true"), (BOOL, b"f", "false"), (21, b"-32768", "-32768"), (INT4, b"0", "0"),
        (20, b"9223372036854775807", "9223372036854775807"), (26, b"4294967295", "4294967295"),
        (NUMERIC, b"1.10", "1.10"), (NUMERIC, b"-0.000", "-0.000"), (NUMERIC, b"NaN", '"NaN"'),
        (700, b"1e+20", "1e+20"), (FLOAT8, b"-Infinity", '"-Infinity"'), (FLOAT8, b"-0", "-0"),
        (TEXT, b'a"\\\n\x01', '"a\\"\\\\\\n\\u0001"'), (TEXT, "ü€🙂".encode(), '"ü€🙂"'),
        (TEXT, rb"\u0000", r'"\\u0000"'), (1114, b"infinity", '"infinity"'), (17, b"\\xff", '"\\\\xff"'),
        (1007, b"{1,2}", '"{1,2}"'), (JSON, b' {"a" : 1.50} ', ' {"a" : 1.50} '),
        (JSONB, rb'"\\u0000"', r'"\\u0000"'), (JSON, rb'"\ud83d\ude42"', r'"\ud83d\ude42"'),
    ],
)  # fmt: skip
def test_each_type_has_its_form(type_oid: int, value: bytes, text: str) -> None:
    assert encoder_of(type_oid)(value) == text


@pytest.mark.parametrize(
    ("type_oid", "value", "fault"),
    [
        (BOOL, b"true", "neither true nor false"),
        *[
            (INT4, value, "not a number")
            for value in (b"", b"01", b"+1", b"1.", b".5", b"1 ", b"0x1", b"1\n", b"\xd9\xa1")
        ],
        (FLOAT8, b"nan", "not a number"), (TEXT, b"\xff", "not UTF-8"), (TEXT, b"\xed\xa0\x80", "not UTF-8"),
        (TEXT, b"a\0", "NUL"), (JSON, b"", "not JSON"), (JSON, b"\xff", "not UTF-8"), (JSON, b"{", "not JSON"),
        (JSON, b"NaN", "NaN is no number"), (JSON, b'"\n"', "not JSON"), (JSON, rb'{"a": "\u0000"}', "NUL"),
        (JSON, rb'{"\u0000": 1}', "NUL"), (JSON, rb'"\ud800"', "surrogate"), (JSON, rb'{"\udc00": 1}', "surrogate"),
        (JSON, b"1e131072", "numeric does not hold"), (JSON, b"1e-16384", "numeric does not hold"),
        (JSON, b"1e99999999999999999999", "numeric does not hold|not JSON"),
        (JSON, b"9" * 131073, "numeric does not hold"), (JSON, b"[" * 100000 + b"]" * 100000, "nested too deeply"),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused(type_oid: int, value: bytes, fault: str) -> None:
    with pytest.raises(Undecodable, match=fault):
        encoder_of(type_oid)(value)


TEXTS = (
    r'"\u0000"', r'"\\u0000"', r'"\\\u0000"', r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude42"', r'"\u00e4"', "1e131071",
    "1e131072", "-1e131071", "1e-16383", "1e-16384", "9" * 131072, "9" * 131073, "1." + "1" * 16383, "1." + "1" * 16384,
    "1e400", "-0", "NaN", "01", "[1,]", "", " 1 ", '"\t"', '{"a":1,"a":2}', "'a'", "\ufeff1", "\u00a01", "nul", "1e5000000000",
)  # fmt: skip


def test_jsonb_takes_what_is_embedded_and_no_more(source: Source) -> None:
    def passes(text: str) -> bool:
        try:
            return embedded(text) == text
        except Undecodable:
            return False

    def taken(text: str) -> bool:
        try:
            source.connection.execute("select %s::text::jsonb", (text,))
        except psycopg.DataError:
            return False
        return True

    assert [text for text in TEXTS if passes(text) != taken(text)] == []


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=4),
    max_leaves=10,
)


@given(documents, st.booleans())
def test_what_is_embedded_or_quoted_is_read_again_as_it_was(document: object, ascii_only: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only)
    try:
        assert embedded(text) == text
    except Undecodable:
        # NaN and infinities, NUL, halves of surrogate pairs
        assert any(mark in text for mark in ("NaN", "Infinity", "\\u0000", "\\ud", "\\uD")) or not text.isascii()
    if "\0" not in text:
        assert json.loads(quoted(text)) == text


@given(st.binary(max_size=50), st.sampled_from([BOOL, INT4, NUMERIC, TEXT, JSON, JSONB, 1114]))
def test_any_bytes_become_json_or_are_refused(value: bytes, type_oid: int) -> None:
    try:
        text = encoder_of(type_oid)(value)
    except Undecodable:
        return
    json.loads(text)
    assert "\0" not in text


COLUMNS: tuple[list[bytes | None], ...] = (
    [], [None], [b"7"], [b"7", b"-1.5e3", None, b"0"], [b"7\n8"], [b"7", b""], [b"", b"7"], [b"7", b"07"],
    [b"NaN", b"7"], [b"t", None, b"f"], [b"a\0"], [b"a\0", b"b"], [b"a\\u0000"], [b'"\\\n\t\1', "ü🙂".encode(), b""],
    [b"\xc3", b"\xbc"], [b'{"a": 1}', b"[]", None],
)  # fmt: skip


def test_the_values_of_a_column_are_as_each_by_itself() -> None:
    def expected(encode: Callable[[bytes], str], values: list[bytes | None]) -> list[str] | None:
        try:
            return ["null" if value is None else encode(value) for value in values]
        except Undecodable:
            return None

    def found(encode: Callable[[bytes], str], values: list[bytes | None]) -> list[str] | None:
        try:
            return list(encoded_column(encode, values))
        except Undecodable:
            return None

    for type_oid, values in product((BOOL, INT4, NUMERIC, FLOAT8, TEXT, JSON, 1114), COLUMNS):
        encode = encoder_of(type_oid)
        assert found(encode, values) == expected(encode, values), (type_oid, values)
