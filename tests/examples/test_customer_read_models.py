"""The read models of a captured table: given changes, when built, then the rows of the source; and end to end."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from millrace.assets.declarations import declared
from millrace.examples.shop.captures.crm import CRM
from millrace.examples.shop.customers import SCHEMA
from millrace.read_models.declared.declaration import ReadModel
from millrace.testing import given
from tests.support.capturing.captured import Captured, new_source
from tests.support.capturing.sources import Source
from tests.support.factories import Connect, rows
from tests.support.sql_calls import BatchEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["new_source"]

SHOP = declared("millrace.examples.shop", ["read_models"]).models
CUSTOMERS, HISTORY = SHOP["crm_customers"], SHOP["crm_customer_history"]
DECIDER = "table:public.customers"
MOMENT = "2026-01-05 12:00:00.123+00"


@pytest.fixture
def crm(new_source: Callable[[], Source], dsn: str, connect: Connect) -> Captured:
    source = new_source()
    source.connection.execute(SCHEMA)
    return Captured(source, replace(CRM, source=lambda: source.dsn), dsn, connect())


def in_source(crm: Captured) -> list[tuple[Any, ...]]:
    return crm.source.connection.execute(
        "select '[' || customer_id || ']', customer_id, name, email, city, newsletter, updated_at"
        """ from customers order by '[' || customer_id || ']' collate "C" """
    ).fetchall()


def built(crm: Captured, model: ReadModel, spark: "SparkSession") -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in given(dsn=crm.dsn, spark=spark).when(model, batch_events=1000).rows]


def changes(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    """Return each captured change in the store, in the form that the history should have."""
    query = """
        select
          record_pk, seq, action, committed_at, (record ->> 'customer_id')::bigint, record ->> 'name', record ->> 'email',
          record ->> 'city', (record ->> 'newsletter')::boolean
        from event_store.change_events order by record_pk collate "C", seq
    """
    return rows(connection, query)


def change(key: int, action: str, record: dict[str, object] | None, **data: object) -> BatchEvent:
    return BatchEvent(DECIDER, f"[{key}]", action, uuid4(), {"record": record, **data}, uuid4())


def customer(key: int, **columns: object) -> dict[str, object]:
    known = {"customer_id": key, "name": "Ada", "email": None, "city": "Graz", "newsletter": False}
    return {**known, "updated_at": MOMENT, **columns}


def test_the_last_change_of_a_customer_decides(dsn: str, spark: "SparkSession") -> None:
    changed = given(
        change(1, "inserted", customer(1)).alone,
        change(1, "updated", customer(1, city="Porto")).alone,
        change(2, "backfilled", customer(2)).alone,
        change(2, "deleted", customer(2)).alone,
        # inserted again after an older delete
        change(3, "inserted", customer(3, email="old")).alone,
        change(3, "deleted", {"customer_id": 3}, unavailable=["name", "email"]).alone,
        change(3, "inserted", customer(3)).alone,
        # a column that an update lacks stays, and a dropped column goes
        change(4, "inserted", customer(4, email="long", shoe_size=38)).alone,
        change(4, "updated", {"customer_id": 4, "name": "Bram", "newsletter": True}, unavailable=["email", "updated_at"]).alone,
        # moved to another key
        change(5, "inserted", customer(5)).alone,
        change(5, "deleted", customer(5), new_key=[6]).alone,
        change(6, "updated", customer(6), old_key=[5]).alone,
        change(7, "inserted", customer(7)).alone,
        BatchEvent(DECIDER, "[]", "truncated", uuid4(), {"record": None}, uuid4()).alone,
        BatchEvent(DECIDER, "schema", "schema_changed", uuid4(), {"record": None}, uuid4()).alone,
        change(7, "deleted", None, truncated=True).alone,
        dsn=dsn, spark=spark,
    )  # fmt: skip
    customers = changed.when(CUSTOMERS)
    assert [tuple(row.values())[:-1] for row in customers.rows] == [
        ("[1]", 1, "Ada", None, "Porto", False),
        ("[3]", 3, "Ada", None, "Graz", False),
        ("[4]", 4, "Bram", "long", None, True),
        ("[6]", 6, "Ada", None, "Graz", False),
    ]
    assert len({row["updated_at"] for row in customers.rows}) == 1
    every = changed.when(HISTORY).rows
    assert [row["action"] for row in every if row["record_key"] == "[3]"] == ["inserted", "deleted", "inserted"]
    assert len(every) == 16


def test_the_whole_way_leads_to_the_rows_of_the_source(crm: Captured, spark: "SparkSession") -> None:
    crm.source.connection.execute(
        "alter table customers replica identity default; alter table customers alter email set storage external"
    )
    crm.source.run("insert into customers (name, email) select 'Ada', repeat('e', 5000) from generate_series(1, 20)")
    crm.drain()
    crm.source.run(
        # the mail is too long: an update of another column does not log it again
        "update customers set city = 'Turku' where customer_id <= 10",
        "update customers set email = null where customer_id = 2; update customers set name = 'Elif' where customer_id = 2",
        "delete from customers where customer_id in (3, 4, 5)",
        "insert into customers (customer_id, name) values (3, 'again')",
        "update customers set customer_id = 103, email = 'short' where customer_id = 6",
        "insert into customers (name, city) values (E'a \"quote\", a \\\\ and ü', 'Lyon')",
    )
    crm.drain()
    assert built(crm, CUSTOMERS, spark) == in_source(crm)
    assert built(crm, HISTORY, spark) == changes(crm.store)
    crm.source.run("truncate customers", "insert into customers (customer_id, name) values (1, 'after'), (900, 'new')")
    crm.drain()
    assert built(crm, CUSTOMERS, spark) == in_source(crm)
    assert len(in_source(crm)) == 2
    assert built(crm, HISTORY, spark) == changes(crm.store)
