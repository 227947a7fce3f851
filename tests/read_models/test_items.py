"""Elements of arrays as rows: the same as Postgres' `jsonb_array_elements` and `#>>` of the same texts."""

import json
import re
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace import carried, count, read_model, sum_
from millrace.event_store.platform import PlatformStore
from millrace.ops import ReadModel
from millrace.read_models.declared.items import _BYTES, ITEM_ORDER, PLACES, Items
from tests.archive.test_json_fields import PATHS, documents
from tests.support.building.drains import drain, rows_of
from tests.support.factories import rows
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ITEMS = Items("data.lines", {".".join(["item", *path]): tuple(path) for path in ([], *PATHS)})


def events(*texts: str | None, **others: str) -> pa.Table:
    columns = {name: [value] * len(texts) for name, value in others.items()}
    return pa.table({"offset": pa.array(range(len(texts)), pa.int64()), "data.lines": pa.array(texts), **columns})


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(documents, max_size=4), min_size=1, max_size=3))
def test_of_each_element_there_is_what_postgres_says(store: PlatformStore, arrays: list[list[str]]) -> None:
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


@read_model(view="stock", deciders=["shelf"], key=["shop"], each="data.lines")
class Stock:
    """One row per shop, of all shelves that are in it."""

    shop = carried("data.shop")
    lines = count()
    pieces = sum_("item.pieces")


# together they outgrow bigint
FULL: list[tuple[str, dict[str, Any]]] = [
    ("a", {"shop": "full", "lines": [{"pieces": 2**63 - 1}]}),
    ("b", {"shop": "full", "lines": [{"pieces": -5}, {"pieces": 2**63 - 1}]}),
]


@pytest.mark.parametrize("at_once", [True, False])
def test_an_unfit_line_holds_its_event(store: PlatformStore, dsn: str, spark: "SparkSession", at_once: bool) -> None:
    store.register_decider_event("shelf", "filled", "")
    model = cast("ReadModel", Stock)
    odd: list[tuple[str, dict[str, Any]]] = [("e", {"shop": "odd", "lines": [{"pieces": 1}]}), ("f", {"shop": "odd"})]
    odd += [("f", {"lines": [{"pieces": 4}, {"pieces": 0.5}, {"pieces": "x"}]}), ("e", {"lines": [{"pieces": 2}, {}]})]
    events = [BatchEvent("shelf", shelf, "filled", data=data) for shelf, data in FULL + odd]
    for some in [events] if at_once else [events[:4], events[4:]]:
        append_events(store, some)
        drain(dsn, spark, model)
    ((waiting, why),) = rows(store.connection, "select decider_id, last_error from event_store.stream_locks")
    assert (waiting, bool(re.search("item.pieces is '(0.5|x)', which is not exactly a bigint", why))) == ("f", True)
    assert rows_of(store.connection, model) == [("full", 3, 2**64 - 7), ("odd", 3, 3)]


def test_many_elements_of_a_large_event_are_never_all_held_at_once() -> None:
    lines = f"[{', '.join(['1'] * 100)}]"
    tables = [*Items("data.lines", {}).apart(events(lines, "no array", lines, note="n" * 500_000))]
    assert [len(table) for table in tables[:-1]] == [1 + _BYTES // 500_064] * (len(tables) - 1)
    assert max(table.nbytes for table in tables) < 2 * _BYTES
    order = [place for table in tables for place in table.column(ITEM_ORDER).to_pylist()]
    assert order == [*range(100), PLACES, *range(2 * PLACES, 2 * PLACES + 100)]
    assert [told for table in tables for told in table.column("data.lines").to_pylist() if told] == ["no array"]
