"""Fields of many texts at once: the same values as Postgres' `#>>`, mostly without parsing."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.archive.json_fields import PlainTexts, field, fields
from millrace.event_store.platform import PlatformStore
from tests.support.factories import rows

# values of JSON, as jsonb prints them
ODD: list[Any] = [
    {}, [], None, True, False, 0, -0.0, "", "null", "1", '{"a": 1}', " \u007f\u2028\U0001f600\b\f\n\r\t\"\\/\u0001\u001f",
    {"a": None}, {"a": {"b": None}}, {"a": {"b": [1, {"c": "d"}, None]}}, {"a": '{"b": 1}'}, {"a": [[1, 2], [3]]}, {"a": "1"},
    {"1": "key"}, {"a": {"1": "key", "-1": "k"}}, [{"a": 1}], [1, "two", [3]], {"": "empty"}, {"a": {"": {"b": ""}}},
    {"b": {"z": 1, "aa": 2, "B": [True, False, None]}}, {"a": 1e300}, {"a": 10**400},
]  # fmt: skip
NUMBERS = ["12.50", "0.1234567890123456789012345", "-0.00", "1E+5", "1e-7", "123456789012345678901234567890.10"]
PATHS = [
    ["a"], ["a", "b"], ["a", "b", "1", "c"], ["a", "b", "-1"], ["a", "b", "-2", "c"], ["a", "0"], ["a", "0", "1"], ["a", "1", "5"],
    ["1"], ["a", "1"], ["a", "-1"], ["0"], ["0", "a"], ["2", "0"], [" 1"], ["+1"], ["01"], ["1 "], ["1.0"], ["-9"], [""], ["a", "", "b"],
    ["b"], ["b", "B", "2"], ["b", "B"], ["missing", "a"],
]  # fmt: skip

# texts that look like the text around a value, and the characters of JSON
PIECES = [
    '"', "\\", "{", "}", "[", "]", ",", ":", " ", '"a": ', ', "a": 1', '{"a": ', "a", "b", "ü", "\U0001f600", "\n", "null",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=3).map("".join)
keys = st.sampled_from(
    ["a", "b"] * 6 + ["0", "aa", "", "ü", "a b", '"', '"a', "{a", "}a", ",", "]", "customer_id", "customer_ie"]
)
numbers = st.sampled_from([*NUMBERS, "0", "-1", "1e400", "7" * 500, "7" * 5000 + ".50"])
scalars = st.one_of(texts.map(json.dumps), numbers, st.sampled_from(["true", "false", "null"]))


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {member}" for key, member in dict(members).items()) + "}"


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(keys, inner), max_size=3)
    lists = st.lists(inner, max_size=2).map(lambda each: f"[{', '.join(each)}]")
    return members.map(_object) | members.map(_object) | lists


# JSON texts, with numbers that no float prints
anything = st.recursive(scalars, _nested, max_leaves=5)
documents = st.lists(st.tuples(keys, anything), max_size=3).map(_object) | anything


Values = list[list[str | None]]


def by_postgres(store: PlatformStore, found: list[str], paths: list[list[str]]) -> tuple[list[str], Values]:
    """Return the texts as jsonb prints them, and for each path the value in each."""
    stored = rows(
        store.connection,
        "select d::jsonb::text, array(select d::jsonb #>> array(select jsonb_array_elements_text(p.path))"
        " from jsonb_array_elements(%s::jsonb) with ordinality p(path, n) order by n)"
        " from unnest(%s::text[]) with ordinality t(d, n) order by t.n",
        json.dumps(paths),
        found,
    )
    return [text for text, _ in stored], [[values[n] for _, values in stored] for n in range(len(paths))]


def unparsed(found: list[str], path: list[str]) -> list[bool]:
    """Return for each text whether the value is known without parsing."""
    _, unknown = PlainTexts(pa.array(found, pa.string())).values(path)
    return [not each for each in unknown.tolist()]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=st.lists(documents, min_size=1, max_size=20),
    paths=st.lists(st.lists(keys, min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_any_texts_are_as_postgres_has_them(store: PlatformStore, found: list[str], paths: list[list[str]]) -> None:
    stored, expected = by_postgres(store, found, paths)
    assert [values.to_pylist() for values in fields(pa.array(stored, pa.string()), paths)] == expected
    # values known without parsing are right too, each taken alone
    for path, values in zip(paths, expected, strict=True):
        plain, unknown = PlainTexts(pa.array(stored, pa.string())).values(path)
        known = [(a, b) for a, b, c in zip(plain.to_pylist(), values, unknown.tolist(), strict=True) if not c]
        assert [a for a, _ in known] == [b for _, b in known]


def test_odd_texts_are_as_postgres_has_them(store: PlatformStore) -> None:
    found = [json.dumps(each) for each in ODD] + [f'{{"a": {n}, "b": [{n}]}}' for n in NUMBERS]
    stored, expected = by_postgres(store, found, PATHS)
    assert [[field(text, path) for text in stored] for path in PATHS] == expected
    array = pa.array([*stored, None, "{}", *stored * 300], pa.string())
    here = slice(3, len(stored) + 9)
    wanted = [[*values, None, None, *values[:7]][3:] for values in expected]
    assert [values.to_pylist() for values in fields(array[here], PATHS)] == wanted
    assert [values.to_pylist()[-len(stored) :] for values in fields(array, PATHS)] == expected
    assert all(values.to_pylist() == [] for values in fields(array[:0], PATHS))


def test_fields_of_deep_texts_are_what_postgres_says(store: PlatformStore) -> None:
    found = []
    for depth in (400, 1500, 4000):
        deep = "[" * depth + "]" * depth
        objects = '{"b": ' * depth + "1" + "}" * depth
        found += [f'{{"a": {deep}}}', f'{{"a": {{"x": {deep}}}, "bb": 1}}', f'{{"a": {objects}}}']
    paths = [["a"], ["bb"], ["a", "x"], ["a", "0"], ["a", "b", "b"]]
    stored, expected = by_postgres(store, found, paths)
    assert [values.to_pylist() for values in fields(pa.array(stored), paths)] == expected


def test_fields_of_flat_objects_are_found_without_parsing() -> None:
    flat: list[dict[str, Any]] = [
        {"amount": 1.5, "customer_id": f"customer-{n}", "channel": "wéb", "final": True, "none": None, "tags": ["x", 1]}
        for n in range(100)
    ]
    found = [json.dumps(each, ensure_ascii=False) for each in flat] + ["{}"]
    for key in ("amount", "customer_id", "channel", "final", "none", "not there"):
        assert all(unparsed(found, [key])), key
    for path in (["customer_id", "deeper"], ["not there", "deeper"]):
        assert all(unparsed(found, path)), path


# a text, a path, and whether the value is known without parsing
PLAIN: list[tuple[str, list[str], bool]] = [
    ('{"a": 1, "b": {"a": 2}}', ["a"], True),
    ('{"b": {"a": 2}, "cc": 1}', ["cc"], False),  # after another object
    ('{"b": {"c": 2.50}}', ["b", "c"], True),
    ('{"b": {"c": {"d": "x"}}}', ["b", "c", "d"], True),
    ('{"b": {}, "c": {"d": 1}}', ["b", "d"], False),  # the key is another object's
    ('{"b": {"x": 1}, "c": 2}', ["b", "c"], False),
    ('{"a": "x", ": ": 1}', [", "], False),  # looks like a key, from the end of one string to the beginning of another
    ('{"b": {"c": 2}}', ["b"], False),  # a value that is an object
    ('{"b": "x\\"y"}', ["b"], False),
    ('{"b": "x", "c": "\\n"}', ["b"], True),  # a backslash behind it
    ('{"b": "{", "c": 1}', ["c"], False),
    ('{"b": [1, 2]}', ["b", "0"], False),
    ('[{"b": 1}]', ["b"], False),
    ('{"}b": 1}', ["}b"], False),  # not a plain key
]


def test_what_is_told_without_parsing() -> None:
    assert [(text, path, *unparsed([text], path)) for text, path, _ in PLAIN] == PLAIN
    for text, path, _ in PLAIN:
        assert fields(pa.array([text]), [path])[0].to_pylist() == [field(text, path)]
