"""The history of one stream on the command line: its events, the rows of read models, the progress of views."""

import json
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from millrace.archive.store import ArchiveStore
from millrace.assets.declarations import declared
from millrace.errors import EventNotRegistered, MillraceError
from millrace.event_store import NewEvent, StreamFailure
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli.show.history import rows_table
from millrace.read_models.shown.stream_rows import StreamRows, rows_of_stream
from millrace.read_models.stored.versions import ensure_version
from tests.support import command_line
from tests.support.command_line import ACTING
from tests.support.factories import Connect, register_shop_without_schemas, value
from tests.support.sql_calls import BatchEvent, append_events

MODELS = declared("millrace.examples.shop", ["read_models"]).models
ORDER = ("order_placed", "order_line_added", "order_confirmed")


def millrace(dsn: str, *arguments: str) -> str:
    return command_line.millrace("show", "history", *arguments, dsn=dsn, MILLRACE_DECLARATIONS="millrace.examples.shop")


def parsed(dsn: str, *arguments: str) -> dict[str, Any]:
    (line,) = millrace(dsn, *arguments, "--json").splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def view_of(found: dict[str, Any], view: str) -> dict[str, Any]:
    (one,) = (each for each in found["views"] if each["view"] == view)
    return dict(one)


@pytest.fixture
def shop(store: PlatformStore) -> PlatformStore:
    """Make a shop with an order of three events, and the tables and views of its read models."""
    register_shop_without_schemas(store)
    for model in MODELS.values():
        ensure_version(store.connection, model)
    add(store, "order-1", *ORDER)
    return store


def add(store: PlatformStore, decider_id: str, *events: str) -> None:
    data = {"customer_id": "customer-1", "amount": 5}
    append_events(store, [BatchEvent("order", decider_id, event, uuid4(), data, uuid4()) for event in events])
    store.sequence_events()


def put_row(connection: psycopg.Connection, decider_id: str, status: str, total: str) -> None:
    connection.execute(
        "insert into read_models.orders_state (partition, order_id, status, total, lines) select"
        " event_store.stream_partition(%s, (select count(*) from event_store.partitions)), %s, %s, %s, 1",
        (decider_id, decider_id, status, total),
    )


def commit(store: PlatformStore, view: str, failing: str | None = None) -> None:
    """Let a view commit all events, except those of a stream that fails."""
    leases = store.claim_batch(view, "me")
    with store.connection.transaction():
        for lease in leases:
            if any(event.decider_id == failing for event in store.read_batch(view, lease)):
                store.fail_streams(view, lease, [StreamFailure("order", str(failing), f"no {ACTING} customer")])
        store.commit_batch(view, leases)


def test_the_steps_of_a_process_are_read_as_sentences(store: PlatformStore, dsn: str) -> None:
    store.register_decider_event("process:checkout", "step", "")
    placed: dict[str, object] = {
        "heard": f"order_placed {uuid4()}",
        "did": ["timer pay", "command Ship for shipping o-1"],
    }
    paid: dict[str, object] = {"heard": "refused Ship", "did": [], "state": {}, "ended": True}
    for data in ({**placed, "state": {"letters": 1}, "ended": False}, paid, {"heard": "by another program"}):
        store.append("process:checkout", "o-1", NewEvent("step", data))
    lines = [" ".join(line.split()) for line in millrace(dsn, "process:checkout", "o-1").splitlines()]
    text = " ".join(lines).replace("-:- ", "")
    assert 'order_placed → timer pay, command Ship for shipping o-1 {"letters": 1}' in text
    assert "refused Ship → end" in text
    assert '{"heard": "by another ' in text


def test_events_rows_and_what_views_owe_stand_side_by_side(shop: PlatformStore, dsn: str) -> None:
    commit(shop, "orders")
    state = "select array_agg(c order by view, partition) from event_store.checkpoints c"
    before = value(shop.connection, state)
    put_row(shop.connection, "order-1", "order_confirmed", "12345678901234567.89")
    put_row(shop.connection, "order-2", "order_placed", "1.00")
    found = parsed(dsn, "order", "order-1")
    assert [event["event"] for event in found["events"]] == list(ORDER)
    assert (found["version"], found["final"]) == (3, False)
    rows = {each["model"]: each for each in found["read_models"]}
    assert set(rows) == {"orders", "customers"}
    (row,) = rows["orders"]["rows"]
    assert (row["order_id"], row["status"]) == ("order-1", "order_confirmed")
    assert list(row) == list(MODELS["orders"].public_columns())
    assert '"total":12345678901234567.89' in millrace(dsn, "order", "order-1", "--json")
    # a customer's row comes from several streams
    assert rows["customers"]["rows"] == []
    said = "its key is customer_id from (decider_id of customer, data.customer_id of order,"
    assert said in rows["customers"]["note"]
    assert (view_of(found, "orders")["owed"], view_of(found, "orders")["state"]) == (0, "has all that it wants")
    owing = view_of(found, "customers")
    assert (owing["owed"], owing["first_owed"]) == (3, found["events"][0]["offset"])
    assert {each["view"] for each in found["views"]} == {"orders", "customers"}
    text = millrace(dsn, "order", "order-1")
    words = ("order_line_added", "12345678901234567.89", "has all that it wants", "Not shown")
    assert [word for word in words if word not in text] == []
    assert "order-2" not in text
    # reading changes nothing
    assert value(shop.connection, state) == before


def test_a_dead_letter_a_retry_and_a_disabled_view_are_told(shop: PlatformStore, dsn: str) -> None:
    shop.register_view("orders", max_attempts=2)
    commit(shop, "orders", failing="order-1")
    state = view_of(parsed(dsn, "order", "order-1"), "orders")
    assert state["state"].startswith("waits for a retry after 1 failed attempts: no ")
    assert (state["owed"], state["parked_at"]) == (3, None)
    shop.register_view("orders", max_attempts=1)
    shop.retry_dead_letters("orders")
    shop.connection.execute("update event_store.stream_locks set locked_until = '-infinity'")
    commit(shop, "orders", failing="order-1")
    state = view_of(parsed(dsn, "order", "order-1"), "orders")
    assert state["state"].startswith("dead letter since ")
    shop.enable_view("customers", False)
    assert view_of(parsed(dsn, "order", "order-1"), "customers")["state"] == "disabled: is given no events"


def test_control_characters_of_others_do_not_reach_the_terminal(shop: PlatformStore, dsn: str) -> None:
    hostile = f"o{ACTING}"
    add(shop, hostile, "order_placed")
    commit(shop, "orders", failing=hostile)
    put_row(shop.connection, hostile, f"s{ACTING}", "1")
    assert not set(millrace(dsn, "order", hostile)) & set(ACTING)
    output = millrace(dsn, "order", hostile, "--json")
    assert not set(output) & set(ACTING)
    assert json.loads(output)["decider_id"] == hostile
    assert f"no {ACTING} customer" in view_of(json.loads(output), "orders")["last_error"]


@pytest.mark.usefixtures("shop")
def test_more_events_than_are_shown_are_told(dsn: str) -> None:
    assert [event["version"] for event in parsed(dsn, "order", "order-1", "--limit", "2")["events"]] == [2, 3]
    assert "The newest 2 events; --limit shows more." in millrace(dsn, "order", "order-1", "--limit", "2")
    assert "--limit" not in millrace(dsn, "order", "order-1")


def test_a_stream_whose_events_were_purged_says_so(store: PlatformStore, dsn: str) -> None:
    register_shop_without_schemas(store)
    add(store, "order-1", *ORDER)
    ((partition,),) = store.connection.execute("select partition from event_store.event_log limit 1").fetchall()
    archive = ArchiveStore(store.connection)
    archive.mark_archived(partition, 3)
    for up_to, said in ((2, "Events before version 3 were purged"), (3, "All of its events were purged")):
        archive.raise_low_water_mark(partition, up_to)
        archive.purge_events(partition)
        assert said in millrace(dsn, "order", "order-1")


def test_a_model_without_a_table_or_that_may_not_be_read_is_told(
    store: PlatformStore, dsn: str, connect: Connect
) -> None:
    register_shop_without_schemas(store)
    add(store, "order-1", *ORDER)
    said = "Read model orders: Not shown: it has no table yet. Its first drain makes it."
    assert said in millrace(dsn, "order", "order-1")
    for model in MODELS.values():
        ensure_version(connect(), model)
    assert "Read model orders: It has no row of this stream." in millrace(dsn, "order", "order-1")
    with connect() as other:
        other.execute("set role event_store_consumer")
        note = rows_of_stream(other, MODELS["orders"], "order", "order-1", 5).note
    assert note == "Not shown: this login may not read it."


def test_an_unknown_stream_and_an_unknown_decider_are_refused(shop: PlatformStore, dsn: str) -> None:
    with pytest.raises(MillraceError, match="There is no stream order order-99"):
        millrace(dsn, "order", "order-99")
    with pytest.raises(EventNotRegistered, match="Registered are: customer, order, payment, shipment"):
        millrace(dsn, "ordr", "order-1")
    assert shop.head("order", "order-99") is None


def test_numbers_keep_their_digits_and_their_kind_wherever_they_are() -> None:
    shown = rows_table(StreamRows("m", ('{"total": 1.10, "lines": [{"price": 2.50}, "3", null], "name": "4"}',)))
    assert [[str(cell) for cell in column.cells] for column in shown.columns] == [
        ["1.10"],
        ['[{"price": 2.50}, "3", null]'],
        ["4"],
    ]
