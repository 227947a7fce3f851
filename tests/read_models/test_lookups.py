"""Given a read model that looks up another, when either changes or goes, then readers see both consistently."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from psycopg import Connection

from millrace import count, field, fold, last, lookup, read_model, stream_id
from millrace.drain.report import DrainReport
from millrace.drain.serving import Serving
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored import versions
from millrace.read_models.stored.differences import Found, compare, diffs, take
from millrace.read_models.stored.merge import merge_rows
from millrace.read_models.stored.past import renamed
from millrace.read_models.stored.store import ReadModelStore
from millrace.read_models.stored.tables import DependentObjects, LookupFailed, create_view
from millrace.read_models.stored.versions import ensure_version, reset_model, serve_if_caught_up, with_upcasts
from millrace.rows import FoldEvent, State
from tests.support.factories import Connect, rows, start, wait_blocked
from tests.support.patience import patience


def customers(**columns: object) -> ReadModel:
    members = columns or {"name": last("data.name")}
    declared = type("Customers", (), {"__doc__": "One row.", "customer_id": stream_id(), **members})
    return read_model(view="customers", deciders=["customer"], key=["customer_id"])(declared)


def orders(looked_up: ReadModel, column: str = "name", name: str = "Orders") -> ReadModel:
    members: dict[str, Any] = {
        "order_id": stream_id(),
        "customer_id": last("data.customer_id"),
        "customer": lookup(looked_up, on="customer_id" if name == "Orders" else "order_id", column=column),
    }
    declared = type(name, (), {"__doc__": f"One row of {name}.", **members})
    return read_model(view=name.lower(), deciders=["order"], key=["order_id"])(declared)


CUSTOMERS = customers()
ORDERS = orders(CUSTOMERS)
NAMED = {"partition": [1], "customer_id": ["c-1"], "name": ["Ada"], "name_offset": [1]}
ORDERED = {"partition": [1, 2], "order_id": ["o-1", "o-2"], "customer_id": ["c-1", "c-2"], "customer_id_offset": [2, 3]}


@pytest.fixture
def built(store: PlatformStore) -> Connection:
    """Build both, with two orders, one of them with a customer."""
    for model in (CUSTOMERS, ORDERS):
        ensure_version(store.connection, model)
    merge_rows(store.connection, CUSTOMERS, pa.table(NAMED))
    merge_rows(store.connection, ORDERS, pa.table(ORDERED))
    return store.connection


def shown(connection: Connection) -> list[tuple[Any, ...]]:
    return rows(connection, "select order_id, customer_id, customer from read_models.orders order by 1")


def test_a_row_shows_what_the_other_model_has_now_or_null(built: Connection) -> None:
    assert shown(built) == [("o-1", "c-1", "Ada"), ("o-2", "c-2", None)]
    late = {"partition": [3, 1], "customer_id": ["c-2", "c-1"], "name": ["Bo", "Eve"], "name_offset": [4, 5]}
    merge_rows(built, CUSTOMERS, pa.table(late))
    assert shown(built) == [("o-1", "c-1", "Eve"), ("o-2", "c-2", "Bo")]
    # a plan without a usable index would still scan a table
    built.execute("set enable_seqscan = off")
    (plan,) = rows(built, "explain (format json) select * from read_models.orders where order_id = 'o-1'")[0]
    assert "Seq Scan" not in str(plan)


def test_a_new_version_of_the_other_model_leaves_views_above_as_they_were(built: Connection) -> None:
    ensure_version(built, orders(ORDERS, "customer", "Invoices"))
    built.execute("grant select (order_id) on read_models.orders to event_store_writer")
    granted = (
        "select attname, attacl::text from pg_attribute where attrelid = 'read_models.orders'::regclass and attnum > 0"
    )
    seen = "select relname, relacl::text, relowner, obj_description(oid) from pg_class where relname in ('orders', 'invoices')"
    before = [sorted(rows(built, query)) for query in (granted, seen)]
    new = ensure_version(built, customers(visits=count(), name=last("data.name", events=["named"])))
    assert serve_if_caught_up(built, new)
    assert [sorted(rows(built, query)) for query in (granted, seen)] == before
    assert shown(built) == [("o-1", "c-1", None), ("o-2", "c-2", None)]


@pytest.mark.parametrize(
    "changed",
    [customers(visits=count()), replace(CUSTOMERS, keys={"customer_id": field("data.number", type="bigint")})],
)
def test_a_new_version_without_what_others_look_up_does_not_serve(built: Connection, changed: ReadModel) -> None:
    new = ensure_version(built, changed)
    with pytest.raises(DependentObjects, match="Read model orders looks up a column that the new version") as refused:
        serve_if_caught_up(built, new)
    assert "Take that lookup out of orders" in str(refused.value.hint)
    assert shown(built)[0] == ("o-1", "c-1", "Ada")


def test_a_switch_above_is_not_undone(built: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PAUSE_S", patience())
    lower = ensure_version(built, customers(visits=count(), name=last("data.name")))
    above = ensure_version(built, replace(ORDERS, columns={**ORDERS.columns, "events": count()}))
    switching = connect()
    with built.transaction():
        # as a switch begins, before it reads the model below
        ReadModelStore(built).lock_model(above.name)
        switch = start(lambda: serve_if_caught_up(switching, lower))
        wait_blocked(connect(), switching.info.backend_pid)
        assert serve_if_caught_up(built, above)
    assert switch.result(patience())
    assert rows(built, "select order_id, customer_id, events, customer from read_models.orders") == []
    assert rows(built, "select customer_id, visits, name from read_models.customers") == []


def test_a_model_that_others_look_up_is_not_removed_before_them(built: Connection) -> None:
    with pytest.raises(DependentObjects, match="Read model customers cannot be removed: orders looks it up") as refused:
        reset_model(built, CUSTOMERS)
    assert "millrace view reset orders" in str(refused.value.hint)
    reset_model(built, ORDERS)
    reset_model(built, CUSTOMERS)


def test_a_model_that_looks_up_what_is_not_there_yet_says_so(store: PlatformStore) -> None:
    with pytest.raises(LookupFailed, match="Read model orders looks up customers, which does not show all") as refused:
        ensure_version(store.connection, ORDERS)
    assert (refused.value.detail, refused.value.hint) == (
        'relation "read_models.customers" does not exist',
        "The next drain tries again: drain customers first. In a test, build customers first: given(…).when(…).",
    )
    ensure_version(store.connection, CUSTOMERS)
    ensure_version(store.connection, ORDERS)


@pytest.mark.parametrize("before", [ORDERS, replace(ORDERS, lookups={})])
def test_a_diff_compares_no_row_of_the_other_model_which_may_move_on(built: Connection, before: ReadModel) -> None:
    create_view(built, before)
    declared = with_upcasts(built, ORDERS)
    diff = take(built, declared, None)
    merge_rows(built, CUSTOMERS, pa.table(NAMED | {"name": ["Eve"], "name_offset": [5]}))
    side = ensure_version(built, renamed(declared, diff.name))
    merge_rows(built, side, pa.table(ORDERED))
    compare(built, diff, side, [*declared.lookups], 0, timedelta(days=1))
    (compared,) = diffs(built, "orders")
    if before.lookups:
        assert compared.outcome == Found(2, 2, same_key=True, uncompared=["customer"])
    else:
        assert compared.outcome == Found(2, 2, same_key=True, added=["customer"])
    assert compared.outcome.differs == (not before.lookups)


def test_a_sample_is_of_the_model_alone_whatever_the_other_one_is_called(store: PlatformStore) -> None:
    declared = type("OrdersStates", (), {"__doc__": "One row.", "customer_id": stream_id(), "name": last("data.name")})
    states = read_model(view="states", deciders=["customer"], key=["customer_id"])(declared)
    looking_up = orders(states)
    for model in (states, looking_up):
        ensure_version(store.connection, model)
    merge_rows(store.connection, looking_up, pa.table(ORDERED))
    copy = take(store.connection, with_upcasts(store.connection, looking_up), None, 2)
    assert rows(store.connection, f"select order_id from read_models.{copy.name}_before") == [("o-2",)]


def test_a_new_version_that_looks_up_what_is_not_shown_yet_waits_for_it(built: Connection) -> None:
    visited = customers(visits=count(), name=last("data.name"))
    new, report = ensure_version(built, orders(visited, "visits")), DrainReport()
    Serving(new).begin(PlatformStore(built), report)
    assert isinstance(report.in_the_way, LookupFailed)
    assert shown(built)[0] == ("o-1", "c-1", "Ada")
    assert serve_if_caught_up(built, ensure_version(built, visited))
    later = DrainReport()
    Serving(new).begin(PlatformStore(built), later)
    assert (later.in_the_way, shown(built)) == (None, [])


def test_it_takes_any_model_with_a_key_of_one_column(store: PlatformStore) -> None:
    @fold(view="carts", deciders=["customer"], key="cart_id", columns={"items": "int"})
    def carts(state: State | None, event: FoldEvent) -> State | None:
        """One row per cart."""
        return state or {"items": event.offset}

    by_name = type("ByName", (), {"__doc__": "One row.", "name": field("data.name"), "n": count()})
    crossing = read_model(view="by_name", key=["name"])(by_name)
    for model in (carts, crossing):
        ensure_version(store.connection, model)
    members = {"o": stream_id(), "who": last("data.x"), "a": lookup(carts, on="o", column="items")}
    members["b"] = lookup(crossing, on="who", column="n")
    declared = type("Both", (), {"__doc__": "One row.", **members})
    both = read_model(view="both", key=["o"])(declared)
    ensure_version(store.connection, both)
    assert both.public_columns() == {"o": "text", "who": "text", "a": "int", "b": "bigint"}
    assert rows(store.connection, "select * from read_models.both") == []


def test_a_version_waits_while_what_it_looks_up_shows_the_one_before(built: Connection) -> None:
    alone = replace(ORDERS, lookups={})
    back = lookup(alone, on="customer_id", column="customer_id")
    # with one more column, which Postgres could append to the view, and with another first column
    for columns in {"name": last("data.name"), "order_of": back}, {"order_of": back, "name": last("data.name")}:
        new = ensure_version(built, customers(**columns))
        with pytest.raises(LookupFailed) as refused:
            serve_if_caught_up(built, new)
        assert str(refused.value).startswith("Read model customers looks up orders, whose view still shows what")
        assert shown(built)[0] == ("o-1", "c-1", "Ada")
    assert serve_if_caught_up(built, ensure_version(built, alone))
    assert serve_if_caught_up(built, new)
    assert rows(built, "select customer_id, order_of from read_models.customers") == []


def test_of_two_that_look_each_other_up_the_later_one_waits(built: Connection, connect: Connect) -> None:
    alone = replace(ORDERS, lookups={})
    assert serve_if_caught_up(built, ensure_version(built, alone))
    looking = ensure_version(built, ORDERS)
    new = ensure_version(built, customers(order_of=lookup(alone, on="customer_id", column="customer_id"), n=count()))
    other = connect()
    with built.transaction():
        create_view(built, looking)
        switch = start(lambda: serve_if_caught_up(other, new))
        wait_blocked(connect(), other.info.backend_pid)
    with pytest.raises(LookupFailed, match="Read model customers looks up orders, whose view still shows what"):
        switch.result(patience())
    assert shown(built) == []
