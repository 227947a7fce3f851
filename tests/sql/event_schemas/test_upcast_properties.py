"""Random data and moves: SQL and Python produce the same text, byte for byte, and neither fails."""

import json
import random
from decimal import Decimal
from typing import Any, LiteralString

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from millrace.event_schemas.moves import Move, cast, default, drop, moved, rename, scale
from millrace.event_store.platform import PlatformStore
from millrace.spark.log_source.pulled import NotPulled, pulled
from tests.support.factories import rows

NUMBERS = [
    *("0", "1", "-1", "12", "12.50", "12.0", "-0.00", "0.1234567890123456789012345", "1e-7", "1E+5", "1e300", "1e-300"),
    *("123456789012345678901234567890.10", "100", "0.001", "1" + "0" * 98, "1" + "0" * 100, "9" * 990 + ".5"),
    *("7" * 999, "7" * 1000, "7" * 1001, "-" + "7" * 1000, "0." + "7" * 998, "0." + "7" * 999),
]
TEXTS = [
    *("", "open", "placed", "true", "false", "null", "12", "-12.50", "12.0", "-0", "-0.0", "01", "1.", ".5", "1e5"),
    *("--1", "+1", "1-", " 1", "1\n", "٣", "1" + "0" * 99, "1" + "0" * 100, "0." + "7" * 100, "0." + "7" * 101, "NaN"),
    *('qu"o', "\\", "a\\u0041", "\n\x01\x7f\u2028", "ü", "🌊", "x" * 300, "{", '{"a": 1}'),
    "-" + "9" * 100 + "." + "9" * 100,
]
KEYS = ["a", "b", "c", "aa", "ü", "0", "-1", "", 'qu"o', "\\", "\n", "🌊", "a.b", "zz"]
numbers = st.sampled_from(NUMBERS)
texts = st.sampled_from(TEXTS)
scalars = numbers | texts.map(json.dumps) | st.sampled_from(["true", "false", "null"])


def _object(members: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {member}" for key, member in members.items()) + "}"


Drawn = tuple[st.SearchStrategy[str], st.SearchStrategy[list[str]], st.SearchStrategy[list[list[Any]]]]


def drawn(keys: st.SearchStrategy[str]) -> Drawn:
    """Return documents, paths, and moves by version, with these keys."""
    values = st.recursive(
        scalars,
        lambda inner: (
            st.dictionaries(keys, inner, max_size=4).map(_object)
            | st.dictionaries(keys, inner, max_size=3).map(_object)
            | st.lists(inner, max_size=2).map(lambda each: f"[{', '.join(each)}]")
        ),
        max_leaves=8,
    )
    paths = st.lists(keys, min_size=1, max_size=3)
    read = values.map(lambda text: json.loads(text, parse_float=Decimal))
    into = st.dictionaries(
        texts, scalars.map(lambda text: json.loads(text, parse_float=Decimal)), min_size=1, max_size=4
    )
    moves = st.one_of(
        st.builds(lambda a, b: [rename(a, b)] if b[: len(a)] != a else [], paths, paths),
        st.builds(lambda path, value: [{"move": "default", "path": path, "value": value}], paths, read),
        paths.map(lambda path: [drop(path)]),
        st.builds(lambda a, b: [cast(a, b)], paths, st.sampled_from(["string", "number", "integer", "boolean"])),
        st.builds(lambda path, values: [{"move": "values", "path": path, "values": values}], paths, into),
        st.builds(lambda a, b: [scale(a, b)], paths, st.sampled_from([-18, -3, -1, 1, 2, 18])),
    )
    some = st.lists(moves, max_size=4).map(lambda each: [move for one in each for move in one])
    return (
        st.dictionaries(keys, values, max_size=5).map(_object) | values,
        paths,
        st.lists(some, min_size=1, max_size=3),
    )


documents, _, chains = drawn(st.sampled_from(KEYS[:4] * 4 + KEYS))
# so few keys that moves, documents and the field often meet
dense_documents, dense_paths, dense_chains = drawn(st.sampled_from(["a", "b", "a", "b", "a", "b", "0"]))


def sql_text(value: object) -> str:
    """Return JSON with all digits of its numbers."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return _object({key: sql_text(each) for key, each in value.items()})
    return f"[{', '.join(map(sql_text, value))}]" if isinstance(value, list) else json.dumps(value)


def by_postgres(
    store: PlatformStore, found: list[str], version: int, upcasts: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return the texts as jsonb prints them, before and after the moves."""
    both: LiteralString = """
        select d::jsonb::text, event_store_platform.moved(d::jsonb, %s, %s::jsonb)::text
        from unnest(%s::text[]) with ordinality t(d, n) order by n
    """
    return rows(store.connection, both, version, sql_text(upcasts), found)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    found=st.lists(documents, min_size=1, max_size=12),
    chain=chains,
    version=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_sql_and_python_move_any_data_alike(
    store: PlatformStore, found: list[str], chain: list[list[Any]], version: int, order: random.Random
) -> None:
    upcasts = [{"to_version": n, "moves": each} for n, each in enumerate(chain, 2)]
    order.shuffle(upcasts)
    expected = by_postgres(store, found, version, upcasts)
    assert [moved(text, version, upcasts) for text, _ in expected] == [text for _, text in expected]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    found=st.lists(dense_documents.filter(lambda text: text.startswith("{")), min_size=1, max_size=12),
    chain=dense_chains,
    path=dense_paths.map(tuple),
)
def test_a_field_that_is_read_where_it_was_is_that_of_the_moved_data(
    store: PlatformStore, found: list[str], chain: list[list[Any]], path: tuple[str, ...]
) -> None:
    upcasts = [{"to_version": n, "moves": each} for n, each in enumerate(chain, 2)]
    # as the source reads them
    known = json.loads(sql_text([move for each in chain for move in each]), parse_float=Decimal)
    try:
        field = pulled(path, known)
    except NotPulled:
        return
    statement = sql.SQL(
        "select ({}) #>> '{{}}', event_store_platform.moved(e.data, 1, {}::jsonb) #>> {}::text[]"
        " from (select d::jsonb as data from unnest({}::text[]) d) e"
    ).format(field, sql_text(upcasts), list(path), found)
    read = store.connection.execute(statement).fetchall()
    assert [one for one, _ in read] == [two for _, two in read]


def test_a_field_of_which_its_place_does_not_tell_is_not_read_there(store: PlatformStore) -> None:
    """Cases that random tests rarely meet."""
    told: dict[tuple[str, ...], tuple[str, list[Move], str | None]] = {
        # the default has the key, and the existing value does not
        ("a", "b"): ('{"a": {}}', [default("a", {"b": 1})], None)
    }
    not_told: list[tuple[tuple[str, ...], list[Move]]] = [
        (("a",), [rename("a.b", "c")]),
        (("a",), [rename("c", "a.b")]),
        (("a",), [default("a.b", 1)]),
        (("a",), [drop("a.b")]),
        (("a",), [scale("a.b", 1)]),
        # an element of an array: no move enters arrays
        (("a", "0"), [drop("b")]),
        (("c",), [rename(["a", " +1"], "c")]),
        # from too many places to be worth it
        (("k",), [rename(f"k.{key}", "k") for key in "ab" * 50]),
    ]
    # with any number of moves elsewhere
    assert pulled(("a", "b"), [drop("c"), rename("d", "e")] * 2_000) == pulled(("a", "b"), [])
    for path, (data, moves, value) in told.items():
        statement = sql.SQL("select ({}) #>> '{{}}' from (select {}::jsonb as data) e").format(
            pulled(path, moves), data
        )
        assert store.connection.execute(statement).fetchone() == (value,)
    for path, moves in not_told:
        with pytest.raises(NotPulled):
            pulled(path, moves)
