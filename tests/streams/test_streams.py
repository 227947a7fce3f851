"""Streams and views over HTTP, and what is refused."""

from collections.abc import Callable

import httpx
import psycopg
import pytest

from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.streams import app
from millrace.streams.followers import Followers
from tests.streams.support import client_of
from tests.support.factories import purge, start
from tests.support.patience import wait_until

STREAM = "/streams/order/o-1"


@pytest.fixture
def stream(orders: PlatformStore) -> PlatformStore:
    orders.append("order", "o-1", NewEvent("placed", {"total": 1.10}), NewEvent("paid"), metadata={"by": "ada"})
    return orders


def sequenced(store: PlatformStore) -> None:
    store.sequence_events()
    store.announce_positions([])


def test_a_stream_is_read_from_a_version(stream: PlatformStore, client: httpx.Client) -> None:
    found = client.get(STREAM)
    assert [(each["version"], each["event"]) for each in found.json()] == [(1, "placed"), (2, "paid")]
    assert '"data":{"total": 1.1},"metadata":{"by": "ada"' in found.text
    assert (found.headers["content-type"], found.headers["cache-control"]) == ("application/json", "no-store")
    offset = found.headers["stream-next-offset"]
    stream.append("order", "o-1", NewEvent("shipped"))
    assert [each["event"] for each in client.get(f"{STREAM}?offset={offset}").json()] == ["shipped"]


def test_head_says_where_a_stream_ends(stream: PlatformStore, client: httpx.Client) -> None:
    head, found = client.head(STREAM), client.get(STREAM)
    assert (head.status_code, head.text) == (200, "")
    assert head.headers["stream-next-offset"] == found.headers["stream-next-offset"]
    assert client.head("/streams/order/none").status_code == 404
    assert stream.head("order", "none") is None


def test_pages_of_a_long_stream_leave_none_out(stream: PlatformStore, client: httpx.Client) -> None:
    stream.append("order", "long", *(NewEvent("paid", {"n": n}) for n in range(1200)))
    found, offset, sizes = [], "-1", []
    while True:
        page = client.get(f"/streams/order/long?offset={offset}")
        found += [each["data"]["n"] for each in page.json()]
        sizes.append(len(page.json()))
        offset = page.headers["stream-next-offset"]
        if page.headers.get("stream-up-to-date"):
            break
    assert (found, sizes) == ([*range(1200)], [500, 500, 200])


def test_a_long_poll_waits_for_an_event(stream: PlatformStore, client: httpx.Client, followers: Followers) -> None:
    offset = client.get(STREAM).headers["stream-next-offset"]
    reads = followers.reads
    asked = start(lambda: client.get(f"{STREAM}?offset={offset}&live=long-poll"))
    wait_until(lambda: followers.reads >= reads + 2, "it looked, and found nothing")
    stream.append("order", "o-1", NewEvent("shipped"))
    sequenced(stream)
    assert [each["event"] for each in asked.result().json()] == ["shipped"]
    assert asked.result().headers["stream-cursor"].isdecimal()


def test_a_long_poll_without_an_event_ends(
    stream: PlatformStore, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WATCH_S", 0)
    assert stream.head("order", "o-1")
    ended = client.get(f"{STREAM}?offset=now&live=long-poll&cursor=99999999")
    assert (ended.status_code, ended.text, ended.headers["stream-up-to-date"]) == (204, "", "true")
    # a cursor of a client is always behind
    assert int(ended.headers["stream-cursor"]) > 99999999


def test_what_did_not_change_is_not_sent_again(stream: PlatformStore, client: httpx.Client) -> None:
    tag = client.get(STREAM).headers["etag"]
    assert client.get(STREAM, headers={"If-None-Match": tag}).status_code == 304
    stream.append("order", "o-1", NewEvent("shipped"))
    assert client.get(STREAM, headers={"If-None-Match": tag}).status_code == 200


def test_a_view_gives_the_events_that_it_wants(stream: PlatformStore, client: httpx.Client) -> None:
    stream.register_view("paying", "-infinity", mode="bulk", deciders=["order"], events=["paid"])
    stream.append("order", "o-2", NewEvent("placed"), NewEvent("paid"))
    stream.append("invoice", "i-1", NewEvent("paid"))
    sequenced(stream)
    found = client.get("/views/paying?offset=-1")
    assert [(each["decider_id"], each["event"]) for each in found.json()] == [("o-1", "paid"), ("o-2", "paid")]
    offset = found.headers["stream-next-offset"]
    assert client.head("/views/paying").headers["stream-next-offset"] == offset
    stream.append("order", "o-1", NewEvent("paid"))
    sequenced(stream)
    assert [each["version"] for each in client.get(f"/views/paying?offset={offset}").json()] == [3]
    assert client.get("/views/none").status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        "offset=",
        "offset=1",
        "offset=-2",
        "offset=0,0",
        "offset=' or 1=1",
        "offset=" + "9" * 5000,
        "offset=-1&offset=now",
        "live=sse",
        "live=long-poll",
        "offset=-1&live=ever",
        "offset=now&live=",
    ],
)
def test_a_query_that_says_nothing_is_refused(query: str, stream: PlatformStore, client: httpx.Client) -> None:
    assert stream.head("order", "o-1")
    refused = client.get(f"{STREAM}?{query}")
    assert refused.status_code == 400
    assert refused.text.endswith(".\n")


@pytest.mark.parametrize("path", ["/streams/order/%00", "/streams/order/%FF", "/streams/order/o-1%27", "/views/a%00"])
def test_a_path_of_odd_characters_names_nothing(path: str, stream: PlatformStore, client: httpx.Client) -> None:
    assert stream.head("order", "o-1")
    assert client.get(path).status_code in {400, 404}


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
def test_nothing_is_written(method: str, client: httpx.Client) -> None:
    for path in (STREAM, "/models/m", "/models/m/k", "/views/v"):
        assert client.request(method, path, json={}).status_code == 405


def test_an_offset_of_another_store_is_gone(
    stream: PlatformStore, client: httpx.Client, spares: Callable[[], str], postgres: EmbeddedPostgres
) -> None:
    assert stream.head("order", "o-1")
    offset = client.get(STREAM).headers["stream-next-offset"]
    # a copy of the database has the same events
    copy = spares()
    with client_of(Followers(postgres.dsn(copy))) as other:
        with psycopg.connect(postgres.dsn(copy), autocommit=True) as connection:
            store = PlatformStore(connection)
            store.register_decider_event("order", "paid", "")
            store.append("order", "o-1", NewEvent("paid"), NewEvent("paid"))
        gone = other.get(f"{STREAM}?offset={offset}")
    assert (gone.status_code, "another store" in gone.text) == (410, True)


def test_versions_below_what_is_kept_are_gone(stream: PlatformStore, client: httpx.Client) -> None:
    offset = client.get(STREAM).headers["stream-next-offset"]
    stream.append("order", "o-1", NewEvent("paid"), NewEvent("shipped"))
    sequenced(stream)
    (place,) = [each for each in stream.available_offset_range() if each.high_water_mark]
    purge(stream, place.partition, 3)
    assert client.get(f"{STREAM}?offset={offset}").status_code == 410
    assert [each["version"] for each in client.get(STREAM).json()] == [4]
