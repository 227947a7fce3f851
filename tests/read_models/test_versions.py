"""A changed declaration is built beside the version that people read, and takes its place when it has caught up."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from psycopg import Connection

from millrace.drain.report import PartitionsFailed
from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored import versions as read_model_versions
from millrace.read_models.stored.tables import DependentObjects
from millrace.read_models.stored.versions import (
    NothingToApprove,
    WrongView,
    approve_version,
    attach_version,
    current_version,
    drop_unused_versions,
    ensure_version,
    is_ready_to_serve,
    reset_model,
    serve_if_caught_up,
    versions,
)
from tests.support.building import model_versions
from tests.support.building.drains import Everything, all_events, busiest, fill, held, thing
from tests.support.building.lab import Lab
from tests.support.building.model_versions import EventsOf, Latest, Wider, built, caught_up, columns, consume, relations
from tests.support.building.oracle import expected_rows
from tests.support.factories import Connect, Killed, at_once, rows
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events

__all__ = ["built"]


def test_a_changed_declaration_serves_when_it_has_caught_up(lab: Lab) -> None:
    lab.fill(60).drain()
    before, old_columns = lab.rows_of(Everything), columns(lab.connection)
    lab.fill(20, seed=2)

    seen: list[tuple[list[str], bool]] = []
    with lab.consumer(EventsOf) as consumer:
        assert (consumer.model.version, consumer.model.view) == (2, "everything_v2")
        consumer.drain(
            budget_s=patience(), idle_s=0, batch_events=30,
            on_commit=lambda _: seen.append((columns(lab.connection), lab.rows_of(Everything) == before)),
        )  # fmt: skip
    assert seen[0] == (old_columns, True)
    assert columns(lab.connection) == ["thing_id", "events", "status"]
    assert lab.rows_of(EventsOf) == sorted(expected_rows(EventsOf, all_events(lab)))
    assert relations(lab.connection) == {"everything", "everything_state_v2", "everything_staging_v2"}
    assert [poll.view for poll in lab.poll_views()] == ["everything_v2"]

    assert lab.fill(20, seed=3).drain(EventsOf).events == 20
    lab.rebuild(EventsOf, busiest(lab))
    assert lab.rows_of(EventsOf) == sorted(expected_rows(EventsOf, all_events(lab)))


def test_a_build_that_fails_leaves_the_old_version_serving(lab: Lab) -> None:
    append_events(lab, [thing(f"bad-{n}", text="no date") for n in range(8)])
    lab.drain(EventsOf)
    before = lab.rows_of(EventsOf)
    with pytest.raises(PartitionsFailed):
        lab.drain(model_versions.Impossible)
    assert lab.rows_of(EventsOf) == before
    assert [(v.version, v.serves) for v in versions(lab.connection, "everything")] == [(1, True), (2, False)]

    # beside streams that can be built only these eight wait
    append_events(lab, [thing(f"good-{n}", text=f"2024-01-0{n}") for n in range(1, 9)])
    lab.release_owner("next")
    assert lab.drain(model_versions.Impossible).failed_streams == 8
    model = current_version(lab.connection, model_versions.Impossible)
    assert model is not None
    assert not is_ready_to_serve(lab.connection, model)
    park = "update event_store.stream_locks set parked_at = now(), locked_until = 'infinity' where view = %s"
    lab.execute(park, (model.view,))
    lab.drain(model_versions.Impossible)
    assert columns(lab.connection) == ["thing_id", "events", "status"]
    for letter in lab.dead_letters(model.view):
        lab.discard_dead_letter(model.view, letter.decider, letter.decider_id, "a test")
    assert is_ready_to_serve(lab.connection, model)
    lab.drain(model_versions.Impossible)
    assert columns(lab.connection) == ["thing_id", "least"]

    wait_until(lambda: not any(poll.consumers for poll in lab.poll_views()), "the drain's session ended")
    lab.drain(Latest)
    assert columns(lab.connection) == ["thing_id", "status", "seen"]
    assert relations(lab.connection) == {"everything", "everything_state_v3", "everything_staging_v3"}
    assert [poll.view for poll in lab.poll_views()] == ["everything_v3"]


def test_a_version_goes_on_where_its_code_runs(things: PlatformStore, built: ReadModel, connect: Connect) -> None:
    """Two deployments run at once while one replaces the other."""
    old_code = connect()
    attach_version(old_code, EventsOf)
    new = attach_version(things.connection, Latest)
    consume(things, new)
    fill(things, 20, seed=2)
    consume(PlatformStore(old_code), built)
    assert not serve_if_caught_up(things.connection, new)
    consume(things, new)
    assert serve_if_caught_up(things.connection, new)

    # its tables stay while a drain works on them
    assert "everything_state" in relations(things.connection)
    fill(things, 20, seed=3)
    consume(PlatformStore(old_code), built)
    assert not serve_if_caught_up(old_code, built)
    drop_unused_versions(things.connection, new)
    assert "everything_state" in relations(things.connection)
    old_code.close()
    wait_until(lambda: [p.consumers for p in things.poll_views() if p.view == built.view] == [0], "it ended")
    drop_unused_versions(things.connection, new)
    assert relations(things.connection) == {"everything", "everything_state_v2", "everything_staging_v2"}


def test_a_third_one_removes_an_unfinished_one(things: PlatformStore, built: ReadModel, connect: Connect) -> None:
    builder = connect()
    unfinished = attach_version(builder, Latest)
    third = attach_version(things.connection, Wider)
    assert third.version == 3
    assert [v.version for v in versions(things.connection, "everything")] == [1, 2, 3]
    consume(things, third)
    assert serve_if_caught_up(things.connection, third)
    # overtaken: it does not serve any more, however far it gets
    consume(PlatformStore(builder), unfinished)
    assert not serve_if_caught_up(builder, unfinished)
    builder.close()
    wait_until(lambda: not any(p.consumers for p in things.poll_views() if p.view == unfinished.view), "it ended")
    drop_unused_versions(things.connection, third)
    assert [(v.version, v.serves) for v in versions(things.connection, "everything")] == [(3, True)]
    assert built.view not in {poll.view for poll in things.poll_views()}


def test_an_unfinished_one_goes_after_a_day(things: PlatformStore, built: ReadModel, connect: Connect) -> None:
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
def test_a_declaration_from_before_the_one_that_serves_is_another_version(
    things: PlatformStore, connect: Connect
) -> None:
    old_code = connect()
    attach_version(old_code, EventsOf)
    new = caught_up(things, Latest)
    assert serve_if_caught_up(things.connection, new)
    assert ensure_version(things.connection, EventsOf).version == 3


def test_a_model_that_is_disabled_stays_so_in_its_next_version(things: PlatformStore, built: ReadModel) -> None:
    things.enable_view(built.view, False)
    new = ensure_version(things.connection, Latest)
    assert {poll.view: poll.enabled for poll in things.poll_views()} == {built.view: False, new.view: False}


@pytest.mark.usefixtures("built")
def test_a_version_whose_view_has_a_name_that_is_taken_gets_the_next(things: PlatformStore) -> None:
    things.register_view("everything_v2", mode="bulk")
    assert ensure_version(things.connection, Latest).view == "everything_v3"


def test_a_reset_removes_every_version(things: PlatformStore, built: ReadModel) -> None:
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


# Readers of a model: their privileges, and objects that depend on the view


@contextmanager
def roles(connection: Connection, *names: str) -> Iterator[None]:
    for name in names:
        connection.execute(f"create role {name}".encode())
    try:
        yield
    finally:
        connection.execute("reset role")
        for name in names:
            connection.execute(f"drop owned by {name}".encode())
            connection.execute(f"drop role {name}".encode())


def privileges(connection: Connection) -> list[tuple[Any, ...]]:
    """Return the privileges on the view and its columns, except its owner's."""
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
def test_who_may_read_the_old_version_may_read_the_new_one(things: PlatformStore, after: ReadModel) -> None:
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
def test_what_depends_on_the_view_stays_where_columns_are_added_at_the_end(things: PlatformStore) -> None:
    things.connection.execute("create view statuses as select status from read_models.everything")
    new = caught_up(things, Wider)
    assert serve_if_caught_up(things.connection, new)
    assert rows(things.connection, "select * from statuses") == []
    assert relations(things.connection) == {"everything", "everything_state_v2", "everything_staging_v2"}


def test_what_depends_on_other_columns_keeps_the_old_version(lab: Lab) -> None:
    lab.fill(30).drain(EventsOf)
    before = lab.rows_of(EventsOf)
    lab.execute("create view statuses as select status from read_models.everything")
    with pytest.raises(DependentObjects, match=r"view statuses depends on view read_models\.everything"):
        lab.drain(Latest)
    assert lab.rows_of(EventsOf) == before
    model = current_version(lab.connection, Latest)
    assert model is not None
    assert is_ready_to_serve(lab.connection, model)
    assert sum(lag.behind for lag in lab.view_lag(model.view)) == 0
    with pytest.raises(DependentObjects):
        reset_model(lab.connection, Latest)

    lab.execute("drop view statuses")
    assert lab.drain(Latest).events == 0
    assert columns(lab.connection) == ["thing_id", "status", "seen"]


def test_who_uses_the_old_tables_keeps_them_and_nobody_waits(
    things: PlatformStore, built: ReadModel, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = caught_up(things, Latest)
    monkeypatch.setattr(read_model_versions, "PAUSE_S", 0.05)
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


# Views that were changed or replaced


def test_a_model_whose_view_was_removed_is_refused(lab: Lab) -> None:
    lab.fill(30).drain()
    lab.execute("delete from event_store.views where view = 'everything'")
    with pytest.raises(WrongView, match="was removed"), lab.consumer(Everything):
        pass
    reset_model(lab.connection, Everything)
    lab.drain()
    lab.is_clean()

    wait_until(lambda: not any(poll.consumers for poll in lab.poll_views()), "the drain's session ended")
    # a reset after the view was renamed removes the old one
    reset_model(lab.connection, replace(Everything, view="renamed"))
    assert lab.poll_views() == []


def test_a_view_that_is_somebody_elses_is_not_taken_over(lab: Lab) -> None:
    lab.register_view("everything", mode="bulk")
    with pytest.raises(WrongView, match="registered already"), lab.consumer(Everything):
        pass


@pytest.mark.usefixtures("built")
def test_a_version_waits_to_be_approved(
    things: PlatformStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = replace(Latest, serve="approved")
    with pytest.raises(NothingToApprove, match=r"(?s)No version of read model everything is of this.*version 1"):
        approve_version(things.connection, waits)
    with pytest.raises(NothingToApprove, match="Version 1 of read model everything serves"):
        approve_version(things.connection, EventsOf)
    new = attach_version(things.connection, waits)
    consume(things, new)
    assert not serve_if_caught_up(things.connection, new)
    assert not is_ready_to_serve(things.connection, new)
    (problem,) = [each for each in things.standing() if each.kind == "unapproved"]
    assert (problem.about, problem.subject, problem.severity) == ("read_model", "everything", "note")
    assert "millrace view approve everything" in problem.remedy

    # older code does not drop the version, however long it waits
    long_ago = "update read_models.declarations set declared_at = now() - interval '2 days'"
    things.connection.execute(long_ago)
    drop_unused_versions(things.connection, EventsOf)
    assert [v.version for v in versions(things.connection, new.name)] == [1, 2]

    # a newer declaration overtakes it: the version that was reviewed can no longer be approved
    wider = attach_version(things.connection, replace(Wider, serve="approved"))
    with pytest.raises(NothingToApprove, match="Version 2 of read model everything was overtaken by version 3"):
        approve_version(things.connection, waits)
    assert not is_ready_to_serve(things.connection, new)

    # a version is approved before it has caught up, and the approving process dies: the next drain lets it serve
    with monkeypatch.context() as patched:
        patched.setattr(read_model_versions, "serve_if_caught_up", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            approve_version(things.connection, Wider, "looked at")
    things.connection.execute(f"{long_ago} where not approved")
    drop_unused_versions(things.connection, EventsOf)
    assert not serve_if_caught_up(things.connection, wider)
    assert [each.kind for each in things.standing() if each.kind == "unapproved"] == []
    assert [e.reason for e in things.audit_log() if e.operation == "approve_version"] == ["looked at"]
    consume(things, wider)
    approvals = at_once([partial(approve_version, connect(), Wider) for _ in range(2)])
    outcomes = [approval.exception() or approval.result() for approval in approvals]
    assert True in outcomes
    assert all(one is True or "serves: nothing waits" in str(one) for one in outcomes)
    assert columns(things.connection) == ["thing_id", "events", "status", "seen"]


def test_a_first_version_waits_for_nobody(things: PlatformStore) -> None:
    first = ensure_version(things.connection, replace(EventsOf, serve="approved"))
    assert [(v.version, v.serves, v.approved) for v in versions(things.connection, first.name)] == [(1, True, True)]


def test_what_serves_waits_for_nobody_where_upcasts_came_since(things: PlatformStore) -> None:
    ensure_version(things.connection, EventsOf)
    things.connection.execute("update read_models.declarations set fingerprint = fingerprint || '+before'")
    same = ensure_version(things.connection, replace(EventsOf, serve="approved"))
    other = ensure_version(things.connection, replace(Latest, serve="approved"))
    approved = {v.version: v.approved for v in versions(things.connection, EventsOf.name)}
    assert (approved[same.version], approved[other.version]) == (True, False)
