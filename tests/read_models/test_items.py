"""Elements of arrays as rows: what Postgres' `jsonb_array_elements` and `#>>` say of the same texts."""

import json

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declared.items import _BYTES, ITEM_ORDER, PLACES, Items
from tests.archive.test_json_fields import PATHS, documents
from tests.support.factories import rows

ITEMS = Items("data.lines", {".".join(["item", *path]): tuple(path) for path in ([], *PATHS)})


def events(*texts: str | None, **others: str) -> pa.Table:
    """Events of rising offsets, with these texts as their array."""
    columns = {name: [value] * len(texts) for name, value in others.items()}
    return pa.table({"offset": pa.array(range(len(texts)), pa.int64()), "data.lines": pa.array(texts), **columns})


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(documents, max_size=4), min_size=1, max_size=3))
def test_of_each_element_there_is_what_postgres_says(store: EventStore, arrays: list[list[str]]) -> None:
    written = [f"[{','.join(array)}]" for array in arrays]
    wanted = rows(
        store.connection,
        "select (t.n - 1) * %s + i.n - 1, array(select i.item #>> array(select jsonb_array_elements_text(p.path))"
        " from jsonb_array_elements(%s::jsonb) with ordinality p(path, n) order by n)"
        " from unnest(%s::text[]) with ordinality t(d, n), jsonb_array_elements(t.d::jsonb) with ordinality i(item, n)"
        " order by 1",
        PLACES,
        json.dumps([list(path) for path in ITEMS.paths.values()]),
        written,
    )
    printed = [text for (text,) in rows(store.connection, "select unnest(%s::text[])::jsonb::text", written)]
    found = [row for table in ITEMS.apart(events(*printed, None)) for row in table.to_pylist()]
    assert [(row[ITEM_ORDER], [row[source] for source in ITEMS.paths]) for row in found] == wanted
    assert {row["data.lines"] for row in found} <= {None}


def test_many_elements_of_a_large_event_are_never_all_held_at_once() -> None:
    lines = f"[{', '.join(['1'] * 100)}]"
    tables = [*Items("data.lines", {}).apart(events(lines, "no array", lines, note="n" * 500_000))]
    assert [len(table) for table in tables[:-1]] == [1 + _BYTES // 500_064] * (len(tables) - 1)
    assert max(table.nbytes for table in tables) < 2 * _BYTES
    order = [place for table in tables for place in table.column(ITEM_ORDER).to_pylist()]
    assert order == [*range(100), PLACES, *range(2 * PLACES, 2 * PLACES + 100)]
    assert [told for table in tables for told in table.column("data.lines").to_pylist() if told] == ["no array"]
