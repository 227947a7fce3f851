"""A read model's feed: the events of its rows' changes, whose fold is the rows."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest

from millrace import bucket, count, field, last, read_model, stream_id, sum_
from millrace.drain.commit import transaction
from millrace.errors import InvalidReadModel
from millrace.event_store import Event, NewEvent, StreamEvents, on
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored import feed
from millrace.read_models.stored.merge import merge_rows
from millrace.read_models.stored.store import ReadModelStore
from millrace.read_models.stored.tables import state_schema
from millrace.read_models.stored.versions import ensure_version, reset_model
from tests.support.building.killed_drains import kill_at, victim
from tests.support.building.lab import Lab
from tests.support.building.read_models import Fed
from tests.support.factories import Connect, at_once

ROUNDS = 100


@read_model(view="sums", deciders=["cart"], key=["cart_id"], deletes=["emptied"], feed=True)
class Sums:
    """One row per cart."""

    cart_id = stream_id()
    cents = sum_("data.cents")


@read_model(view="by_day", deciders=["cart"], key=["day"], feed=True)
class ByDay:
    """One row per day, of all carts."""

    day = field("data.day")
    cents = sum_("data.cents")
    last = last("data.cents")


SUMS, BY_DAY = cast("ReadModel", Sums), cast("ReadModel", ByDay)


def told(carts: Lab, model: str) -> list[Event]:
    return [*reversed(carts.latest_events(10_000, f"model:{model}"))]


def folded(events: list[Event], start: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the rows that the changes give, in the order of the log, each with what it was before."""
    rows = dict(start or {})
    for each in events:
        if each.event != "replaced":
            assert rows.pop(each.decider_id, None) == each.data["before"]
            if each.data["after"] is not None:
                rows[each.decider_id] = each.data["after"]
    return rows


def rows(carts: Lab, model: str) -> list[dict[str, Any]]:
    return [row for (row,) in carts.rows(f"select to_jsonb(r) from read_models.{model} r")]


def added(cart: str, cents: int, day: str = "mon") -> StreamEvents:
    return on("cart", cart, NewEvent("added", {"cents": cents, "day": day}))


def drain(carts: Lab, *events: StreamEvents, models: Sequence[ReadModel] = (SUMS,)) -> None:
    carts.append_all(events)
    for model in models:
        carts.drain(model)


@pytest.fixture
def carts(lab: Lab) -> Lab:
    for name in ("added", "emptied"):
        lab.register_decider_event("cart", name, "")
    return lab


def test_a_row_that_comes_changes_and_goes_is_told(carts: Lab) -> None:
    drain(carts, added("c-0", 1))
    first = told(carts, "sums")
    assert {each.event for each in first} == {"replaced"}
    emptied = on("cart", "c-1", NewEvent("emptied"))
    for each in (added("c-1", 5), added("c-1", 0), added("c-1", 7), emptied):
        drain(carts, each)
    changes = [(each.event, each.decider_id, each.data) for each in told(carts, "sums")[len(first) :]]
    states = [{"cart_id": "c-1", "cents": cents} for cents in (5, 12)]
    assert changes == [
        ("inserted", "c-1", {"before": None, "after": states[0]}),
        ("updated", "c-1", {"before": states[0], "after": states[1]}),
        ("deleted", "c-1", {"before": states[1], "after": None}),
    ]


def test_the_fold_of_the_feed_is_the_rows(carts: Lab) -> None:
    models = (SUMS, BY_DAY)
    drain(carts, added("c-0", 0, "sun"), models=models)
    for number in range(12):
        batch = [added(f"c-{(number * n) % 5 + 1}", number * n, f"day {n % 3}") for n in range(1, 4)]
        drain(carts, *batch, models=models)
    for name, key in (("sums", "cart_id"), ("by_day", "day")):
        present = {row[key]: row for row in rows(carts, name) if row[key] not in {"c-0", "sun"}}
        assert folded(told(carts, name)) == present


def test_many_rows_at_once_are_told_as_replaced(carts: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    drain(carts, added("c-0", 1))
    before = told(carts, "sums")
    monkeypatch.setattr(feed, "MOST_TOLD", 2)
    drain(carts, *(added(f"c-{number}", 1) for number in range(3)))
    after = told(carts, "sums")[len(before) :]
    assert {(each.event, each.metadata["feed_epoch"]) for each in after} == {("replaced", 2)}
    # each log partition hears it
    assert sorted(each.partition or 0 for each in after) == [
        *range(carts.value("select count(*) from event_store.log_partitions"))
    ]


def committed(connection: psycopg.Connection, partition: int, number: int, day: str = "mon") -> None:
    """Merge a row of a key, which two committers may have."""
    values = (partition, day, Decimal(number + 1), str(number), number)
    kinds = (pa.int32(), pa.string(), pa.decimal128(38, 0), pa.string(), pa.int64())
    columns = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
    with transaction(PlatformStore(connection), BY_DAY):
        merge_rows(connection, BY_DAY, pa.table(columns, names=[*state_schema(BY_DAY)]))


@read_model(view="hours", deciders=["cart"], key=["hour"], feed=True)
class Hours:
    """One row per hour."""

    hour = bucket("created_at", every="1 hour")
    events = count()


def test_keys_have_one_text_wherever_they_are_told(carts: Lab, connect: Connect) -> None:
    drain(carts, added("c-0", 0, "sun"), models=[BY_DAY])
    for number, day in enumerate(("", "@p00-0", '"quoted"')):
        committed(carts.connection, 0, number, day)
    assert {each.decider_id for each in told(carts, "by_day") if each.event == "inserted"} == {
        '""', '"@p00-0"', '"\\"quoted\\""'
    }  # fmt: skip
    hours = cast("ReadModel", Hours)
    drain(carts, added("c-1", 0), models=[hours])
    for zone in ("Asia/Tokyo", "America/Lima"):
        connection = connect()
        connection.execute(f"set timezone to '{zone}'".encode())
        hour = pa.array([datetime(2026, 7, 1, 5, tzinfo=UTC)], pa.timestamp("us", "UTC"))
        with transaction(PlatformStore(connection), hours):
            columns = [pa.array([0], pa.int32()), hour, pa.array([1], pa.int64())]
            merge_rows(connection, hours, pa.table(columns, names=[*state_schema(hours)]))
    changes = [(each.event, each.decider_id, each.data["after"]) for each in told(carts, "hours")[-2:]]
    at = "2026-07-01T05:00:00+00:00"
    assert changes == [
        ("inserted", "2026-07-01 05:00:00+00", {"hour": at, "events": 1}),
        ("updated", "2026-07-01 05:00:00+00", {"hour": at, "events": 2}),
    ]


def test_two_commits_that_meet_at_a_key_are_told_exactly(carts: Lab, connect: Connect) -> None:
    drain(carts, added("c-0", 0, "sun"), models=[BY_DAY])
    one, other = connect(), connect()
    for number in range(ROUNDS):
        for call in at_once([partial(committed, one, 0, number), partial(committed, other, 1, number)]):
            call.result()
    found = folded(told(carts, "by_day"))
    assert found == {row["day"]: row for row in rows(carts, "by_day") if row["day"] != "sun"}
    assert found["mon"]["cents"] == ROUNDS * (ROUNDS + 1)


@pytest.mark.usefixtures("spark_remote")
def test_after_a_kill_the_fold_is_the_rows(lab: Lab, connect: Connect) -> None:
    fed = cast("ReadModel", Fed)
    ensure_version(lab.connection, fed)
    lab.fill(3).drain(fed)
    start = {row["thing_id"]: row for row in rows(lab, "fed")}
    lab.fill(150, seed=2)
    most = len(told(lab, "fed")) + 30
    with victim(lab.dsn, batch_events=10, model="Fed") as process:
        kill_at(process, connect(), lambda _: len(told(lab, "fed")) > most)
    lab.later().drain(fed)
    assert folded(told(lab, "fed"), start) == {row["thing_id"]: row for row in rows(lab, "fed")}


def test_a_version_tells_once_it_serves_and_the_one_before_no_more(carts: Lab) -> None:
    models = ReadModelStore(carts.connection)
    drain(carts, added("c-0", 1))
    later = replace(SUMS, columns={**SUMS.columns, "day": last("data.day")})
    drain(carts, added("c-1", 2), models=[later])
    # what it builds is not told, and what the former one commits late is not either
    assert {each.event for each in told(carts, "sums")} == {"replaced"}
    assert (models.feed_epoch("sums", 1), models.feed_epoch("sums", 2)) == (None, 2)


def test_a_rebuild_and_a_reset_begin_an_epoch_and_a_feed_ends(carts: Lab) -> None:
    models = ReadModelStore(carts.connection)
    drain(carts, added("c-0", 1))
    carts.rebuild(SUMS)
    assert models.feed_epoch("sums", 1) == 1
    carts.execute("update read_models.sums_state set cents = 7")
    carts.rebuild(SUMS)
    assert models.feed_epoch("sums", 1) == 2
    drain(carts, added("c-1", 1), models=[replace(SUMS, feed=False)])
    assert models.feed_epoch("sums", 1) == 0
    drain(carts, added("c-2", 1))
    # what changed without the feed is in the rows
    assert {each.event for each in told(carts, "sums")} == {"replaced"}
    reset_model(carts.connection, SUMS)
    assert max(each.metadata["feed_epoch"] for each in told(carts, "sums")) == 4
    # as in a restored store
    carts.execute("delete from read_models.feeds")
    drain(carts, added("c-3", 1))
    assert models.feed_epoch("sums", 1) == 5


def test_a_model_that_would_feed_itself_is_refused() -> None:
    for deciders in (None, ["model:fed"]):
        with pytest.raises(InvalidReadModel, match=r"fed: 'feed' would be fed by its own events"):
            read_model(view="fed", deciders=deciders, key=["id"], feed=True)(
                type("Fed", (), {"__doc__": "One.", "id": stream_id(), "n": sum_("data.n")})
            )
