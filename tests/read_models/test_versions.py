"""A changed declaration is built beside the version that people read, and takes its place when it has caught up."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import PartitionsFailed
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore
from millrace.resources.read_models import versions as read_model_versions
from millrace.resources.read_models.columns import count, last, max_, min_
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.tables import DependentObjects
from millrace.resources.read_models.versions import (
    attach_version,
    current_version,
    drop_unused_versions,
    ensure_version,
    is_ready_to_serve,
    reset_model,
    serve_if_caught_up,
    versions,
)
from tests.read_models.test_given_when_then import all_events, rows_of
from tests.support.drains import (
    PATIENCE_S,
    Everything,
    all_blocked,
    busiest,
    drain,
    eventually,
    eventually_blocked,
    fill,
    held,
    observer,
    thing,
    things,
)
from tests.support.factories import Connect, rows, start, terminate, value, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["observer", "things"]

EventsOf = replace(Everything, columns={"events": count(), "status": last("event")})
Latest = replace(Everything, columns={"status": last("event"), "seen": max_("created_at")})
Impossible = replace(Everything, columns={"least": min_("data.text", type="date")})
# also has all columns of the other, at the same places and with more behind
Wider = replace(EventsOf, columns={**EventsOf.columns, "seen": max_("created_at")})


def expected(store: EventStore) -> list[tuple[Any, ...]]:
    """What `EventsOf` holds, computed in Python."""
    found: dict[str, tuple[int, str]] = {}
    for event in all_events(store):
        found[event.decider_id] = (found.get(event.decider_id, (0, ""))[0] + 1, event.event)
    return sorted((key, *values) for key, values in found.items())


def consume(store: EventStore, model: ReadModel, limit: int = 1_000_000) -> None:
    """Move a version's checkpoints without any rows."""
    store.commit_batch(model.view, store.claim_batch(model.view, "test", limit))


def relations(connection: psycopg.Connection) -> set[str]:
    """What there is in the schema besides children, indexes and what all models share."""
    found = rows(
        connection,
        "select relname from pg_class where relnamespace = 'read_models'::regnamespace"
        " and relkind in ('r', 'p', 'v') and not relispartition and relname <> 'declarations'",
    )
    return {name for (name,) in found}


def columns(connection: psycopg.Connection) -> list[str]:
    return [
        column.name for column in connection.execute("select * from read_models.everything limit 0").description or ()
    ]


@pytest.fixture
def built(things: EventStore) -> ReadModel:
    """The first version, which serves, and has consumed what there is."""
    fill(things, 40)
    model = ensure_version(things.connection, EventsOf)
    consume(things, model)
    return model


def test_a_changed_declaration_is_built_beside_what_serves_and_serves_when_it_has_caught_up(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    drain(dsn, spark)
    before, old_columns = rows_of(things.connection, Everything), columns(things.connection)
    fill(things, 20, seed=2)

    seen: list[tuple[list[str], bool]] = []
    with Consumer.open(dsn, EventsOf, lambda: spark, "next") as consumer:
        assert (consumer.model.version, consumer.model.view) == (2, "everything_v2")
        consumer.drain(
            budget_s=PATIENCE_S,
            idle_s=0,
            batch_events=30,
            on_commit=lambda _: seen.append(
                (columns(things.connection), rows_of(things.connection, Everything) == before)
            ),
        )
    assert seen[0] == (old_columns, True)
    assert columns(things.connection) == ["thing_id", "events", "status"]
    assert rows_of(things.connection, EventsOf) == expected(things)
    assert relations(things.connection) == {"everything", "everything_state_v2", "everything_staging_v2"}
    assert [poll.view for poll in things.poll_views()] == ["everything_v2"]

    fill(things, 20, seed=3)
    assert drain(dsn, spark, EventsOf).events == 20
    with Consumer.open(dsn, EventsOf, lambda: spark, "rebuilder") as consumer:
        consumer.rebuild(busiest(things))
    assert rows_of(things.connection, EventsOf) == expected(things)


def test_a_build_that_fails_leaves_the_old_version_serving_and_a_corrected_one_takes_its_place(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing(f"thing-{n}", text="no date") for n in range(20)])
    drain(dsn, spark, EventsOf)
    before = rows_of(things.connection, EventsOf)
    with pytest.raises(PartitionsFailed):
        drain(dsn, spark, Impossible)
    assert rows_of(things.connection, EventsOf) == before
    assert [(v.version, v.serves) for v in versions(things.connection, "everything")] == [(1, True), (2, False)]
    wait_until(lambda: not any(poll.consumers for poll in things.poll_views()), "the drain's session ended")
    things.release_owner("next")

    drain(dsn, spark, Latest)
    assert columns(things.connection) == ["thing_id", "status", "seen"]
    assert relations(things.connection) == {"everything", "everything_state_v3", "everything_staging_v3"}
    assert [poll.view for poll in things.poll_views()] == ["everything_v3"]


def test_streams_that_fail_only_in_the_new_version_keep_it_from_serving_until_they_are_settled(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing(f"thing-{n}", text=f"2024-01-0{n}") for n in range(1, 9)])
    things.append_events([thing("thing-9", text="no date")])
    drain(dsn, spark, EventsOf)
    assert drain(dsn, spark, Impossible).failed_streams == 1
    assert columns(things.connection) == ["thing_id", "events", "status"]
    model = current_version(things.connection, Impossible)
    assert model is not None
    assert not is_ready_to_serve(things.connection, model)

    things.connection.execute(
        "update event_store.stream_locks set parked_at = now(), locked_until = 'infinity' where view = %s",
        (model.view,),
    )
    drain(dsn, spark, Impossible)
    assert columns(things.connection) == ["thing_id", "events", "status"]
    (letter,) = things.dead_letters(model.view)
    things.discard_dead_letter(model.view, letter.decider, letter.decider_id, "a test")
    assert is_ready_to_serve(things.connection, model)
    drain(dsn, spark, Impossible)
    assert columns(things.connection) == ["thing_id", "least"]


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
        with Consumer.open(dsn, EventsOf, lambda: spark, "next") as consumer:
            consumer.drain(budget_s=PATIENCE_S, idle_s=0, batch_events=20)
    finally:
        done.set()
        thread.join()
    assert sums == sorted(sums)
    assert sums[0] == 60
    assert value(reader, "select sum(events)::int from read_models.everything") == 120


def test_the_version_that_serves_goes_on_where_its_own_code_still_runs(
    things: EventStore, built: ReadModel, connect: Connect
) -> None:
    """Two deployments at once, while one replaces the other."""
    old_code = connect()
    attach_version(old_code, EventsOf)
    new = attach_version(things.connection, Latest)
    consume(things, new)
    fill(things, 20, seed=2)
    consume(EventStore(old_code), built)
    assert not serve_if_caught_up(things.connection, new)
    consume(things, new)
    assert serve_if_caught_up(things.connection, new)

    # its tables are there as long as somebody works on them
    assert "everything_state" in relations(things.connection)
    fill(things, 20, seed=3)
    consume(EventStore(old_code), built)
    assert not serve_if_caught_up(old_code, built)
    drop_unused_versions(things.connection, new)
    assert "everything_state" in relations(things.connection)
    old_code.close()
    wait_until(lambda: [p.consumers for p in things.poll_views() if p.view == built.view] == [0], "it ended")
    drop_unused_versions(things.connection, new)
    assert relations(things.connection) == {"everything", "everything_state_v2", "everything_staging_v2"}


def test_a_third_declaration_removes_the_unfinished_one_unless_somebody_builds_it(
    things: EventStore, built: ReadModel, connect: Connect
) -> None:
    builder = connect()
    unfinished = attach_version(builder, Latest)
    third = attach_version(things.connection, Wider)
    assert third.version == 3
    assert [v.version for v in versions(things.connection, "everything")] == [1, 2, 3]
    consume(things, third)
    assert serve_if_caught_up(things.connection, third)
    # overtaken: it does not serve any more, however far it gets
    consume(EventStore(builder), unfinished)
    assert not serve_if_caught_up(builder, unfinished)
    builder.close()
    wait_until(lambda: not any(p.consumers for p in things.poll_views() if p.view == unfinished.view), "it ended")
    drop_unused_versions(things.connection, third)
    assert [(v.version, v.serves) for v in versions(things.connection, "everything")] == [(3, True)]
    assert built.view not in {poll.view for poll in things.poll_views()}


def test_a_declaration_that_is_taken_back_goes_on_with_what_serves_and_the_unfinished_one_goes_after_a_day(
    things: EventStore, built: ReadModel, connect: Connect
) -> None:
    unfinished = connect()
    attach_version(unfinished, Latest)
    unfinished.close()
    wait_until(lambda: not any(p.consumers for p in things.poll_views()), "it ended")
    # newer code may be building it
    assert attach_version(things.connection, EventsOf) == built
    assert [v.version for v in versions(things.connection, "everything")] == [1, 2]
    things.connection.execute("update read_models.declarations set declared_at = declared_at - interval '25 hours'")
    drop_unused_versions(things.connection, built)
    assert [v.version for v in versions(things.connection, "everything")] == [1]


@pytest.mark.usefixtures("built")
def test_a_declaration_from_before_the_one_that_serves_is_another_version(things: EventStore, connect: Connect) -> None:
    old_code = connect()
    attach_version(old_code, EventsOf)
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    assert serve_if_caught_up(things.connection, new)
    assert ensure_version(things.connection, EventsOf).version == 3


def test_of_consumers_that_switch_at_once_one_does_and_all_know(
    things: EventStore, built: ReadModel, connect: Connect, observer: psycopg.Connection
) -> None:
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    served: list[bool] = []
    with held(connect(), "select event_store.lock_model('everything')"):
        threads = [
            threading.Thread(target=lambda c: served.append(serve_if_caught_up(c, new)), args=(connect(),))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(all_blocked(observer, "event_store.lock_model")) == 3, "all wait")
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
    monkeypatch.setattr(read_model_versions, "LOCK_TIMEOUT", "60s")
    switching = connect()
    with held(connect(), "lock table read_models.everything in access share mode"):
        switch = start(lambda: serve_if_caught_up(switching, new))
        eventually(lambda: all_blocked(observer, "replace view"), "the switch waits for a reader")
        fill(things, 20, seed=2)
        consume(things, built)
    assert switch.result(PATIENCE_S) is False
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
        eventually(lambda: all_blocked(observer, "event_store.serve_version"), "it has looked")
        commit = start(lambda: old_code.commit_batch(built.view, leases))
        eventually(lambda: all_blocked(observer, "commit_batch"), "the old version's commit waits for the switch")
    assert switch.result(PATIENCE_S)
    commit.result(PATIENCE_S)
    assert [v.version for v in versions(things.connection, "everything") if v.serves] == [2]


@pytest.mark.usefixtures("built")
def test_a_long_reader_delays_the_switch_and_is_not_waited_for_long(
    things: EventStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    monkeypatch.setattr(read_model_versions, "LOCK_TIMEOUT", "50ms")
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

    monkeypatch.setattr(read_model_versions, "LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr("millrace.resources.consumption.consumer.serve_if_caught_up", counted)
    new = ensure_version(things.connection, replace(Latest, pooling_delay_s=0))
    consume(things, new)

    def nothing() -> Any:  # noqa: ANN401 - it returns never
        pytest.fail("Spark was asked")

    with (
        held(connect(), "lock table read_models.everything in access share mode"),
        Consumer.open(dsn, replace(Latest, pooling_delay_s=0), nothing, "next") as consumer,
    ):
        consumer.drain(budget_s=PATIENCE_S, idle_s=0.3)
    assert len(tries) == 1


def test_who_reads_the_old_tables_or_depends_on_them_keeps_them_and_nobody_waits(
    things: EventStore, built: ReadModel, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = ensure_version(things.connection, Latest)
    consume(things, new)
    monkeypatch.setattr(read_model_versions, "LOCK_TIMEOUT", "50ms")
    both = {"everything", "everything_state", "everything_staging", "everything_state_v2", "everything_staging_v2"}
    with held(connect(), "lock table read_models.everything_state in access share mode"):
        assert serve_if_caught_up(things.connection, new)
        assert relations(things.connection) == both
    things.connection.execute("create view states as select * from read_models.everything_state")
    assert attach_version(connect(), Latest) == new
    assert relations(things.connection) == both
    things.connection.execute("drop view states")
    drop_unused_versions(things.connection, new)
    assert built.state_table not in relations(things.connection)


def test_a_model_that_is_disabled_stays_so_in_its_next_version(things: EventStore, built: ReadModel) -> None:
    things.enable_view(built.view, False)
    new = ensure_version(things.connection, Latest)
    assert {poll.view: poll.enabled for poll in things.poll_views()} == {built.view: False, new.view: False}


def test_a_consumer_that_dies_in_the_switch_leaves_the_old_version_serving(
    things: EventStore,
    built: ReadModel,
    connect: Connect,
    observer: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_model_versions, "LOCK_TIMEOUT", "60s")
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
        terminate(observer, eventually_blocked(observer, "replace view"))
        thread.join()
    assert len(died) == 1
    assert [(v.version, v.serves) for v in versions(things.connection, "everything")] == [(1, True), (2, False)]
    assert columns(things.connection) == ["thing_id", "events", "status"]
    assert serve_if_caught_up(things.connection, new)
    assert built.view not in {poll.view for poll in things.poll_views()}


@contextmanager
def roles(connection: psycopg.Connection, *names: str) -> Iterator[None]:
    for name in names:
        connection.execute(f"create role {name}".encode())
    try:
        yield
    finally:
        connection.execute("reset role")
        drop_roles(connection, names)


def drop_roles(connection: psycopg.Connection, names: Sequence[str]) -> None:
    for name in names:
        connection.execute(f"drop owned by {name}".encode())
        connection.execute(f"drop role {name}".encode())


def privileges(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    """What is granted on the view and its columns, except to its owner."""
    return rows(
        connection,
        """
        select grantee::text, column_name::text, privilege_type::text, is_grantable::text
        from information_schema.column_privileges p
        where table_schema = 'read_models' and table_name = 'everything' and column_name in ('thing_id', 'status')
          and grantee not in (select rolname from pg_roles r join pg_class c on c.relowner = r.oid where c.relname = table_name)
        order by 1, 2, 3
        """,
    )


@pytest.mark.parametrize("after", [Latest, Wider])
@pytest.mark.usefixtures("built")
def test_who_may_read_the_old_version_may_read_the_new_one(things: EventStore, after: ReadModel) -> None:
    connection = things.connection
    with roles(connection, "analyst", "lead", "clerk"):
        connection.execute("grant select on read_models.everything to analyst, public")
        connection.execute("grant select on read_models.everything to lead with grant option")
        connection.execute("grant select (status) on read_models.everything to clerk")
        before = privileges(connection)
        assert len(before) == 2 * 4 + 1
        new = ensure_version(connection, after)
        consume(things, new)
        assert serve_if_caught_up(connection, new)
        assert privileges(connection) == before
        connection.execute("grant usage on schema read_models to clerk")
        connection.execute("set role clerk")
        assert rows(connection, "select status from read_models.everything") == []


@pytest.mark.usefixtures("built")
def test_what_depends_on_the_view_stays_where_columns_are_added_at_the_end(things: EventStore) -> None:
    things.connection.execute("create view statuses as select status from read_models.everything")
    new = ensure_version(things.connection, Wider)
    consume(things, new)
    assert serve_if_caught_up(things.connection, new)
    assert rows(things.connection, "select * from statuses") == []
    assert relations(things.connection) == {"everything", "everything_state_v2", "everything_staging_v2"}


def test_what_depends_on_other_columns_is_named_and_keeps_the_old_version_serving(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 30)
    drain(dsn, spark, EventsOf)
    before = rows_of(things.connection, EventsOf)
    things.connection.execute("create view statuses as select status from read_models.everything")
    with pytest.raises(DependentObjects, match=r"view statuses depends on view read_models\.everything"):
        drain(dsn, spark, Latest)
    assert rows_of(things.connection, EventsOf) == before
    model = current_version(things.connection, Latest)
    assert model is not None
    assert is_ready_to_serve(things.connection, model)
    assert sum(lag.lag for lag in things.view_lag(model.view)) == 0
    with pytest.raises(DependentObjects):
        reset_model(things.connection, Latest)

    things.connection.execute("drop view statuses")
    assert drain(dsn, spark, Latest).events == 0
    assert columns(things.connection) == ["thing_id", "status", "seen"]


@pytest.mark.usefixtures("built")
def test_a_version_whose_view_has_a_name_that_is_taken_gets_the_next(things: EventStore) -> None:
    things.register_view("everything_v2", mode="bulk")
    assert ensure_version(things.connection, Latest).view == "everything_v3"


def test_a_reset_removes_every_version(things: EventStore, built: ReadModel) -> None:
    new = ensure_version(things.connection, Latest)
    lease = things.claim_partition(new.view, 3, "somebody", 600)
    with pytest.raises(MillraceError, match="leased by somebody"):
        reset_model(things.connection, Latest)
    assert [v.version for v in versions(things.connection, "everything")] == [1, 2]
    things.release_batch(new.view, [lease])
    reset_model(things.connection, Latest)
    assert relations(things.connection) == set()
    assert things.poll_views() == []
    assert ensure_version(things.connection, Latest).version == built.version == 1
