"""Random data and moves: SQL and Python make the same text of them, byte for byte, and neither fails.

Belongs here: what a move means, and that both mean the same. Not here: who registers which moves (test_upcasts).
"""

import json
import random
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.resources.event_store import EventStore
from millrace.resources.events.moves import cast, drop, moved, rename, scale
from tests.support.factories import rows

NUMBERS = [
    *("0", "1", "-1", "12", "12.50", "12.0", "-0.00", "0.1234567890123456789012345", "1e-7", "1E+5", "1e300", "1e-300"),
    *("123456789012345678901234567890.10", "100", "0.001", "1" + "0" * 98, "1" + "0" * 100, "9" * 990 + ".5"),
    *("7" * 999, "7" * 1000, "7" * 1001, "-" + "7" * 1000, "0." + "7" * 998, "0." + "7" * 999),
]
TEXTS = [
    *("", "open", "placed", "true", "false", "null", "12", "-12.50", "12.0", "-0", "-0.0", "01", "1.", ".5", "1e5"),
    *("--1", "+1", "1-", " 1", "1\n", "٣", "1" + "0" * 99, "1" + "0" * 100, "0." + "7" * 100, "0." + "7" * 101, "NaN"),
    *(
        'qu"o',
        "\\",
        "a\\u0041",
        "\n\x01\x7f\u2028",
        "ü",
        "🌊",
        "x" * 300,
        "{",
        '{"a": 1}',
        "-" + "9" * 100 + "." + "9" * 100,
    ),
]
KEYS = ["a", "b", "c", "aa", "ü", "0", "-1", "", 'qu"o', "\\", "\n", "🌊", "a.b", "zz"]
keys = st.sampled_from(KEYS[:4] * 4 + KEYS)
numbers = st.sampled_from(NUMBERS)
texts = st.sampled_from(TEXTS)
scalars = numbers | texts.map(json.dumps) | st.sampled_from(["true", "false", "null"])


def _object(members: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {member}" for key, member in members.items()) + "}"


values_ = st.recursive(
    scalars,
    lambda inner: (
        st.dictionaries(keys, inner, max_size=4).map(_object)
        | st.dictionaries(keys, inner, max_size=3).map(_object)
        | st.lists(inner, max_size=2).map(lambda each: f"[{', '.join(each)}]")
    ),
    max_leaves=8,
)
documents = st.dictionaries(keys, values_, max_size=5).map(_object) | values_
paths = st.lists(keys, min_size=1, max_size=3)
read = values_.map(lambda text: json.loads(text, parse_float=Decimal))
moves = st.one_of(
    st.builds(lambda a, b: [rename(a, b)] if b[: len(a)] != a else [], paths, paths),
    st.builds(lambda path, value: [{"move": "default", "path": path, "value": value}], paths, read),
    paths.map(lambda path: [drop(path)]),
    st.builds(lambda a, b: [cast(a, b)], paths, st.sampled_from(["string", "number", "integer", "boolean"])),
    st.builds(
        lambda path, into: [{"move": "values", "path": path, "values": into}],
        paths,
        st.dictionaries(texts, scalars.map(lambda text: json.loads(text, parse_float=Decimal)), min_size=1, max_size=4),
    ),
    st.builds(lambda a, b: [scale(a, b)], paths, st.sampled_from([-18, -3, -1, 1, 2, 18])),
)
chains = st.lists(
    st.lists(moves, max_size=4).map(lambda each: [move for some in each for move in some]), min_size=1, max_size=3
)


def sql_text(value: object) -> str:
    """Return JSON with the digits that numbers have."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return _object({key: sql_text(each) for key, each in value.items()})
    return f"[{', '.join(map(sql_text, value))}]" if isinstance(value, list) else json.dumps(value)


def by_postgres(
    store: EventStore, found: list[str], version: int, upcasts: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return the texts as jsonb prints them, and as it prints them moved."""
    return rows(
        store.connection,
        "select d::jsonb::text, event_store_platform.moved(d::jsonb, %s, %s::jsonb)::text"
        " from unnest(%s::text[]) with ordinality t(d, n) order by n",
        version,
        sql_text(upcasts),
        found,
    )


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    found=st.lists(documents, min_size=1, max_size=12),
    chain=chains,
    version=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_sql_and_python_move_any_data_alike(
    store: EventStore, found: list[str], chain: list[list[Any]], version: int, order: random.Random
) -> None:
    upcasts = [{"to_version": n, "moves": each} for n, each in enumerate(chain, 2)]
    order.shuffle(upcasts)
    expected = by_postgres(store, found, version, upcasts)
    assert [moved(text, version, upcasts) for text, _ in expected] == [text for _, text in expected]
