"""Given rollups of read models, when rows, declarations and versions change, then groups are those of the rows.

Belongs here: what keeps groups, who may be at work meanwhile, what a rollup refuses. Not here: groups beside DuckDB's
(`test_sql_oracle`).
"""

from dataclasses import replace
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest

from millrace import avg, count, last, read_model, rollup, row, stream_id, sum_
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.merge import merge_rows
from millrace.resources.read_models.rollups import Rollup
from millrace.resources.read_models.versions import ensure_version, reset_model, serve_if_caught_up
from tests.support.factories import rows


@read_model(view="orders", deciders=["order"], key=["order_id"])
class Orders:
    """One row per order."""

    order_id = stream_id()
    status = last("data.status")
    lines = count(events=["line added"])
    total = sum_("data.total", type="decimal(18,2)")


def by_status(**columns: object) -> Rollup:
    members: dict[str, Any] = {
        "status": row("status"),
        "orders": count(),
        "with_status": count("status"),
        "lines": sum_("lines"),
        "worth": sum_("total", type="decimal(18,2)"),
        "mean": avg("total"),
    }
    return rollup(of=Orders, key=["status"])(type("ByStatus", (), {"__doc__": "Orders by status.", **members, **columns}))


def orders(*rollups: Rollup) -> ReadModel:
    return replace(cast("ReadModel", Orders), rollups=rollups)


def merge(connection: psycopg.Connection, model: ReadModel, *found: tuple[int, str, str | None, int, str]) -> None:
    """Merge rows of a log partition, an order, its status since then, more lines and more worth."""
    (offset,) = rows(connection, "select nextval('read_models.batch_seq')")[0]
    partitions, ids, statuses, lines, totals = zip(*found, strict=True)
    fresh = {
        "partition": partitions, "order_id": ids, "status": statuses, "status_offset": [offset] * len(found),
        "lines": lines, "total": [pa.scalar(total).cast(pa.decimal128(38, 2)) for total in totals],
    }  # fmt: skip
    merge_rows(connection, model, pa.table(fresh))


@pytest.fixture
def built(store: EventStore) -> psycopg.Connection:
    model = ensure_version(store.connection, orders(by_status()))
    assert serve_if_caught_up(store.connection, model)
    merge(store.connection, model, (1, "o-1", "new", 2, "10.50"), (1, "o-2", "new", 1, "2.00"), (2, "o-3", None, 0, "0"))
    return store.connection


def shown(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    return rows(connection, "select status, orders, with_status, lines, worth::text, mean::float from read_models.by_status order by 1")


def test_a_row_that_changes_its_group_leaves_one_and_joins_another(built: psycopg.Connection) -> None:
    assert shown(built) == [("new", 2, 2, 3, "12.50", 6.25), (None, 1, 0, 0, "0.00", 0.0)]
    merge(built, Orders, (1, "o-1", "paid", 0, "-0.25"), (2, "o-3", "new", 5, "1.00"))
    assert shown(built) == [("new", 2, 2, 6, "3.00", 1.5), ("paid", 1, 1, 2, "10.25", 10.25)]
