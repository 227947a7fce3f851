"""A read model over HTTP: rows, then every change, once."""

import httpx
import pyarrow as pa
import pytest

from millrace import last, lookup, read_model, stream_id
from millrace.drain.commit import transaction
from millrace.read_models.stored.merge import merge_rows
from millrace.read_models.stored.versions import ensure_version
from millrace.streams import snapshot
from millrace.streams.followers import Followers
from tests.streams.support import BY_DAY, Rows, Table, texts
from tests.support.factories import purge, start
from tests.support.patience import wait_until


def get(client: httpx.Client, offset: str, more: str = "") -> httpx.Response:
    answer = client.get(f"/models/by_day?offset={offset}{more}")
    assert answer.status_code == 200, answer.text
    return answer


def test_rows_come_first_and_then_what_changed(rows: Rows, client: httpx.Client) -> None:
    rows.merge("mon", "tue")
    rows.sequence()
    table, first = Table(client), get(client, "-1")
    table.take(texts(first.text))
    assert table.rows == rows.present()
    assert first.headers["stream-up-to-date"] == "true"
    rows.merge("tue", "wed")
    rows.sequence()
    later = get(client, first.headers["stream-next-offset"])
    assert [(each["key"], each["headers"]["operation"]) for each in texts(later.text)] == [
        ("tue", "update"),
        ("wed", "insert"),
    ]
    table.take(texts(later.text))
    assert table.rows == rows.present()
    assert later.headers["stream-next-offset"] > first.headers["stream-next-offset"]


def test_a_change_that_the_rows_have_is_told_no_second_time(
    rows: Rows, client: httpx.Client, followers: Followers
) -> None:
    rows.merge("mon")
    asked = start(lambda: get(client, "-1"))
    # the rows, and what follows them: nothing, as no position is given
    wait_until(lambda: followers.reads >= 3, "the rows are read")
    rows.merge("mon", "tue")
    rows.sequence()
    changes = texts(asked.result().text)
    assert [(each["key"], each["headers"]["operation"]) for each in changes] == [
        ("sun", "insert"),
        ("mon", "insert"),
        ("mon", "update"),
        ("tue", "insert"),
    ]
    assert get(client, asked.result().headers["stream-next-offset"]).text == "[]"


def test_changes_that_follow_no_row_are_an_array(rows: Rows, client: httpx.Client, followers: Followers) -> None:
    rows.merge("mon")
    rows.connection.execute("delete from read_models.by_day_state")
    asked = start(lambda: get(client, "-1"))
    wait_until(lambda: followers.reads >= 3, "the rows are read")
    rows.merge("tue")
    rows.sequence()
    assert [each["key"] for each in asked.result().json()] == ["tue"]


def test_rows_that_were_replaced_come_anew_on_the_same_connection(rows: Rows, client: httpx.Client) -> None:
    table, steps = Table(client), iter([rows.replace, lambda: rows.merge("mon"), rows.replace])

    def enough() -> bool:
        assert table.rows == rows.present()
        step = next(steps, None)
        if step is not None:
            step()
            rows.sequence()
        return step is None

    table.follow(enough)
    assert (table.resets, table.rows) == (2, rows.present())
    assert '"last": "replaced"' in table.rows["mon"]


def test_an_offset_of_rows_that_were_replaced_gives_the_rows(rows: Rows, client: httpx.Client) -> None:
    offset = get(client, "-1").headers["stream-next-offset"]
    rows.merge("mon")
    rows.replace()
    rows.merge("tue")
    rows.sequence()
    table, answer = Table(client), get(client, offset)
    table.rows["fri"] = "of before"
    table.take(texts(answer.text))
    assert (table.resets, table.rows) == (1, rows.present())
    assert answer.headers["stream-next-offset"] > offset


def test_now_begins_behind_the_rows(rows: Rows, client: httpx.Client) -> None:
    now = get(client, "now")
    assert (now.text, now.headers["stream-up-to-date"]) == ("[]", "true")
    asked = start(lambda: get(client, now.headers["stream-next-offset"], "&live=long-poll"))
    rows.merge("mon")
    rows.sequence()
    assert [each["key"] for each in texts(asked.result().text)] == ["mon"]


def test_one_key_is_a_stream(rows: Rows, client: httpx.Client) -> None:
    rows.merge("a/b c")
    answer = client.get("/models/by_day/a%2Fb%20c")
    assert [each["data"]["after"]["day"] for each in answer.json()] == ["a/b c"]
    assert answer.headers["stream-next-offset"].endswith("000000000001")
    # another version has one column less, and rights are asked for the others
    rows.connection.execute("update read_models.feeds set columns = array_remove(columns, 'cents')")
    assert client.get("/models/by_day/a%2Fb%20c").json() == []


def test_more_rows_than_a_snapshot_may_have_name_the_table(
    rows: Rows, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST_ROWS", 1)
    rows.merge("mon")
    refused = client.get("/models/by_day?offset=-1")
    assert (refused.status_code, "read the table read_models.by_day" in refused.text) == (413, True)


def test_a_model_without_a_feed_is_refused(rows: Rows, client: httpx.Client) -> None:
    rows.connection.execute("select event_store_platform.end_feed('by_day')")
    found = {model: client.get(f"/models/{model}").status_code for model in ("by_day", "declarations", "no_such")}
    assert found == dict.fromkeys(found, 403)


def test_an_offset_below_what_is_kept_is_gone(rows: Rows, client: httpx.Client) -> None:
    offset = get(client, "-1").headers["stream-next-offset"]
    rows.merge("mon", "tue")
    rows.sequence()
    for each in rows.store.available_offset_range():
        purge(rows.store, each.partition, each.high_water_mark)
    gone = client.get(f"/models/by_day?offset={offset}")
    assert (gone.status_code, "were purged" in gone.text) == (410, True)
    # the rows are all there
    assert {each["key"] for each in texts(get(client, "-1").text)} == {"sun", "mon", "tue"}


def test_columns_of_another_model_are_neither_told_nor_given(rows: Rows, client: httpx.Client) -> None:
    columns = {"order_id": stream_id(), "day": last("data.day"), "of_day": lookup(BY_DAY, on="day", column="cents")}
    declared = type("Orders", (), {"__doc__": "One row per order.", **columns})
    orders = read_model(view="orders", deciders=["order"], key=["order_id"], feed=True)(declared)
    ensure_version(rows.connection, orders)
    for number in (1, 2):
        with transaction(rows.store, orders):
            row = {"partition": [1], "order_id": [f"o-{number}"], "day": ["sun"], "day_offset": [number]}
            merge_rows(rows.connection, orders, pa.table(row))
    rows.sequence()
    assert client.get("/models/orders").json() == [
        {
            "type": "orders",
            "key": f"o-{number}",
            "headers": {"operation": "insert"},
            "value": {"day": "sun", "order_id": f"o-{number}"},
        }
        for number in (1, 2)
    ]
    (told,) = client.get("/models/orders/o-2").json()
    assert told["data"]["after"] == {"day": "sun", "order_id": "o-2"}
