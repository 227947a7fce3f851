"""The switch to another version of a read model: readers, consumers and kills during it."""

import threading
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from psycopg import Connection

from millrace.drain.view_drain import ViewDrain
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored import versions as read_model_versions
from millrace.read_models.stored.versions import serve_if_caught_up, versions
from tests.support.building.drains import all_blocked, fill, held, no_spark, wait_blocked_in
from tests.support.building.lab import Lab
from tests.support.building.model_versions import EventsOf, Latest, built, caught_up, columns, consume
from tests.support.factories import Connect, start, terminate, value
from tests.support.patience import patience, wait_until

__all__ = ["built"]


def test_of_many_one_switches_and_all_know(
    things: PlatformStore, built: ReadModel, connect: Connect, observer: Connection
) -> None:
    new = caught_up(things, Latest)
    with held(connect(), "select event_store_platform.lock_model('everything')"):
        served = [start(partial(serve_if_caught_up, connect(), new)) for _ in range(3)]
        wait_until(lambda: len(all_blocked(observer, "event_store_platform.lock_model")) == 3, "all wait")
    assert [one.result(patience()) for one in served] == [True, True, True]
    assert [(v.version, v.serves) for v in versions(things.connection, "everything")] == [(2, True)]
    assert built.view not in {poll.view for poll in things.poll_views()}


def test_what_the_old_version_consumes_before_a_switch_is_noticed(
    things: PlatformStore, built: ReadModel, connect: Connect, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = caught_up(things, Latest)
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


def test_nothing_old_moves_in_a_switch(
    things: PlatformStore, built: ReadModel, connect: Connect, observer: Connection
) -> None:
    new = caught_up(things, Latest)
    fill(things, 20, seed=2)
    old_code, switching = PlatformStore(connect()), connect()
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
def test_a_long_reader_delays_the_switch(
    things: PlatformStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = caught_up(things, Latest)
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
def test_a_drain_that_readers_keep_from_switching_goes_on(
    things: PlatformStore, dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    switch = read_model_versions.serve_if_caught_up

    def counted(connection: Connection, model: ReadModel) -> bool:
        tries.append(model.view)
        return switch(connection, model)

    monkeypatch.setattr(read_model_versions, "PAUSE_S", 0.05)
    monkeypatch.setattr("millrace.drain.serving.serve_if_caught_up", counted)
    caught_up(things, replace(Latest, pooling_delay_s=0))

    with (
        held(connect(), "lock table read_models.everything in access share mode"),
        ViewDrain(dsn, replace(Latest, pooling_delay_s=0), no_spark, "next") as consumer,
    ):
        consumer.drain(budget_s=patience(), idle_s=0.3)
    assert len(tries) == 1


def test_a_consumer_that_dies_in_the_switch_leaves_the_old_serving(
    things: PlatformStore, built: ReadModel, connect: Connect, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_model_versions, "PAUSE_S", 60)
    new = caught_up(things, Latest)
    switching = connect()
    with held(connect(), "lock table read_models.everything in access share mode"):
        switch = start(partial(serve_if_caught_up, switching, new))
        terminate(observer, wait_blocked_in(observer, "replace view"))
        assert isinstance(switch.exception(patience()), psycopg.OperationalError)
    assert [(v.version, v.serves) for v in versions(things.connection, "everything")] == [(1, True), (2, False)]
    assert columns(things.connection) == ["thing_id", "events", "status"]
    assert serve_if_caught_up(things.connection, new)
    assert built.view not in {poll.view for poll in things.poll_views()}


def test_readers_never_see_less_while_versions_change(lab: Lab, connect: Connect) -> None:
    lab.fill(60).drain()
    lab.fill(60, seed=2)
    sums: list[int] = []
    done = threading.Event()
    reader = connect()

    def read() -> None:
        while not done.is_set():
            sums.append(value(reader, "select coalesce(sum(events), 0)::int from read_models.everything"))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with lab.consumer(EventsOf) as consumer:
            consumer.drain(budget_s=patience(), idle_s=0, batch_events=60)
    finally:
        done.set()
        thread.join()
    assert sums == sorted(sums)
    assert sums[0] == 60
    assert value(reader, "select sum(events)::int from read_models.everything") == 120
