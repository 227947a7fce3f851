"""The moment in which another version of a read model begins to serve: readers, consumers and deaths in it."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.stored import versions as read_model_versions
from millrace.resources.read_models.stored.versions import ensure_version, serve_if_caught_up, versions
from tests.support.building.drains import all_blocked, drain, fill, held, observer, things, wait_blocked_in
from tests.support.building.model_versions import EventsOf, Latest, built, columns, consume
from tests.support.factories import Connect, start, terminate, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["built", "observer", "things"]


def test_of_consumers_that_switch_at_once_one_does_and_all_know(
    things: EventStore, built: ReadModel, connect: Connect, observer: psycopg.Connection
) -> None:
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    served: list[bool] = []
    with held(connect(), "select event_store_platform.lock_model('everything')"):
        threads = [
            threading.Thread(target=lambda c: served.append(serve_if_caught_up(c, new)), args=(connect(),))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(all_blocked(observer, "event_store_platform.lock_model")) == 3, "all wait")
    for thread in threads:
        thread.join()
    assert served == [True, True, True]
    assert [(v.version, v.serves) for v in versions(things.connection, "everything")] == [(2, True)]
    assert built.view not in {poll.view for poll in things.poll_views()}


def test_what_the_old_version_consumes_while_the_switch_waits_for_readers_is_noticed(
    things: EventStore,
    built: ReadModel,
    connect: Connect,
    observer: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    monkeypatch.setattr(read_model_versions, "PAUSE_S", 60)
    switching = connect()
    with held(connect(), "lock table read_models.everything in access share mode"):
        switch = start(lambda: serve_if_caught_up(switching, new))
        wait_until(lambda: all_blocked(observer, "replace view"), "the switch waits for a reader")
        fill(things, 20, seed=2)
        consume(things, built)
    assert switch.result(patience()) is False
    assert columns(things.connection) == ["thing_id", "events", "status"]
    consume(things, new)
    assert serve_if_caught_up(things.connection, new)


def test_nothing_of_the_old_version_moves_between_the_last_look_and_the_switch(
    things: EventStore, built: ReadModel, connect: Connect, observer: psycopg.Connection
) -> None:
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    fill(things, 20, seed=2)
    old_code, switching = EventStore(connect()), connect()
    leases = old_code.claim_batch(built.view, "old code", 1000)
    with held(connect(), "lock table read_models.declarations in share mode"):
        switch = start(lambda: serve_if_caught_up(switching, new))
        wait_until(lambda: all_blocked(observer, "event_store_platform.serve_version"), "it has looked")
        commit = start(lambda: old_code.commit_batch(built.view, leases))
        wait_until(lambda: all_blocked(observer, "commit_batch"), "the old version's commit waits for the switch")
    assert switch.result(patience())
    commit.result(patience())
    assert [v.version for v in versions(things.connection, "everything") if v.serves] == [2]


@pytest.mark.usefixtures("built")
def test_a_long_reader_delays_the_switch_and_is_not_waited_for_long(
    things: EventStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    monkeypatch.setattr(read_model_versions, "PAUSE_S", 0.05)
    with (
        held(connect(), "lock table read_models.everything in access share mode"),
        pytest.raises(psycopg.errors.LockNotAvailable),
    ):
        serve_if_caught_up(things.connection, new)
    assert columns(things.connection) == ["thing_id", "events", "status"]
    assert serve_if_caught_up(things.connection, new)
    assert value(things.connection, "show lock_timeout") == "0"


@pytest.mark.usefixtures("built")
def test_a_drain_that_readers_keep_from_switching_goes_on_and_does_not_stop_them_again_and_again(
    things: EventStore, dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    switch = read_model_versions.serve_if_caught_up

    def counted(connection: psycopg.Connection, model: ReadModel) -> bool:
        tries.append(model.view)
        return switch(connection, model)

    monkeypatch.setattr(read_model_versions, "PAUSE_S", 0.05)
    monkeypatch.setattr("millrace.resources.consumption.serving.serve_if_caught_up", counted)
    new = ensure_version(things.connection, replace(Latest, pooling_delay_s=0))
    consume(things, new)

    def nothing() -> Any:  # noqa: ANN401 - it returns never
        pytest.fail("Spark was asked")

    with (
        held(connect(), "lock table read_models.everything in access share mode"),
        Consumer(dsn, replace(Latest, pooling_delay_s=0), nothing, "next") as consumer,
    ):
        consumer.drain(budget_s=patience(), idle_s=0.3)
    assert len(tries) == 1


def test_a_consumer_that_dies_in_the_switch_leaves_the_old_version_serving(
    things: EventStore,
    built: ReadModel,
    connect: Connect,
    observer: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_model_versions, "PAUSE_S", 60)
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    switching = connect()
    died: list[Exception] = []

    def switch() -> None:
        try:
            serve_if_caught_up(switching, new)
        except psycopg.OperationalError as error:
            died.append(error)

    with held(connect(), "lock table read_models.everything in access share mode"):
        thread = threading.Thread(target=switch)
        thread.start()
        terminate(observer, wait_blocked_in(observer, "replace view"))
        thread.join()
    assert len(died) == 1
    assert [(v.version, v.serves) for v in versions(things.connection, "everything")] == [(1, True), (2, False)]
    assert columns(things.connection) == ["thing_id", "events", "status"]
    assert serve_if_caught_up(things.connection, new)
    assert built.view not in {poll.view for poll in things.poll_views()}


def test_readers_never_see_less_than_before_while_versions_change(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 60)
    drain(dsn, spark)
    fill(things, 60, seed=2)
    sums: list[int] = []
    done = threading.Event()
    reader = connect()

    def read() -> None:
        while not done.is_set():
            sums.append(value(reader, "select coalesce(sum(events), 0)::int from read_models.everything"))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with Consumer(dsn, EventsOf, lambda: spark, "next") as consumer:
            consumer.drain(budget_s=patience(), idle_s=0, batch_events=60)
    finally:
        done.set()
        thread.join()
    assert sums == sorted(sums)
    assert sums[0] == 60
    assert value(reader, "select sum(events)::int from read_models.everything") == 120
