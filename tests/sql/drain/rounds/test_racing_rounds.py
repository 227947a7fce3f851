"""Owners that claim the same views concurrently, owners that are killed, views that change between two calls."""

from functools import partial
from random import Random

import psycopg
import pytest

from millrace.errors import LeaseLost, NotViewOwner
from millrace.event_store import Lease
from millrace.event_store.platform import PlatformStore
from tests.sql.drain.rounds.test_claim_views import VIEWS, bulk
from tests.sql.event_store.views.test_view_lag import random_events
from tests.support import factories
from tests.support.logins import logins
from tests.support.patience import patience
from tests.support.sql_calls import append_events

__all__ = ["bulk"]


def ranges(claimed: dict[str, list[Lease]]) -> set[tuple[str, int, int, int]]:
    return {(view, of.partition, of.from_position, of.to_position) for view, leases in claimed.items() for of in leases}


def written(store: PlatformStore) -> list[tuple[str, int, int, int]]:
    columns = "view, partition, position, revision"
    return factories.rows(store.connection, f"select {columns} from event_store.checkpoints order by 1, 2")


def test_of_two_owners_each_log_partition_of_a_view_goes_to_one(
    bulk: PlatformStore, connect: factories.Connect
) -> None:
    taken: list[tuple[str, int, int, int]] = []
    views = [*VIEWS, "second"]
    bulk.register_view("second", "-infinity", mode="bulk")

    def consume(seed: int) -> None:
        random, store, idle = Random(seed), PlatformStore(connect()), 0
        while idle < 3 or not done:
            some, owner, limit = random.sample(views, 3), f"owner {seed}", random.randrange(1, 30)
            if random.random() < 0.3:  # one view alone
                leases = store.claim_batch(some[0], owner, limit)
                claimed = {some[0]: leases} if leases else {}
            else:
                claimed = store.claim_views(some, owner, limit)
            idle = 0 if claimed else idle + 1
            for view, leases in claimed.items():
                if random.random() < 0.2:
                    assert store.release_batch(view, leases) == len(leases)
                else:
                    store.commit_batch(view, leases)
                    taken.extend(ranges({view: leases}))
        while claimed := store.claim_views(views, f"owner {seed}"):
            for view, leases in claimed.items():
                store.commit_batch(view, leases)
            taken.extend(ranges(claimed))

    done: list[bool] = []

    def produce() -> None:
        store = PlatformStore(connect())
        random = Random(0)
        for _ in range(50):
            append_events(store, random_events(random))
        store.sequence_events()
        done.append(True)

    producer = factories.start(produce)
    for result in factories.at_once([partial(consume, seed) for seed in range(3)]):
        result.result()
    producer.result(patience())
    positions = sorted((view, partition, at) for view, partition, from_, to in taken for at in range(from_, to))
    assert len(positions) == len({*positions}), "a position was committed twice"
    query = """
        select v.view, l.partition, l.position
        from event_store.views v cross join event_store.event_log l join event_store.events e using ("offset")
        where event_store_private.wants(v.deciders, v.events, e.decider, e.event)
    """
    log = factories.rows(bulk.connection, query)
    assert len(log) > 200
    assert {*log} <= {*positions}, "a wanted event was in no range"


def test_an_open_claim_holds_only_what_it_leases_and_nobody_waits(
    bulk: PlatformStore, connect: factories.Connect
) -> None:
    factories.append_to(bulk, *[f"o-{n}" for n in range(60)])
    bulk.sequence_events()
    holder = connect(autocommit=False)
    held = PlatformStore(holder).claim_views(["all"], "me", 10)
    bulk.connection.execute("set lock_timeout = '30s'")
    assert bulk.claim_views(VIEWS, "them") == {}
    bulk.register_view("second", "-infinity", mode="bulk")
    assert set(bulk.claim_views([*VIEWS, "second"], "them")) == {"second"}
    holder.rollback()
    again = bulk.claim_views(VIEWS, "them", 10)
    assert ranges(again) == ranges(held)


@pytest.mark.parametrize("when", ["in its claim", "between claim and commit", "in its commit"])
def test_what_a_killed_owner_had_is_claimed_again_once(
    bulk: PlatformStore, connect: factories.Connect, when: str
) -> None:
    factories.append_to(bulk, *[f"o-{n}" for n in range(30)])
    factories.set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    killed = connect(autocommit=False)
    factories.set_clock(killed, "2030-01-01 00:00:00+00")
    owner = PlatformStore(killed)
    leases = owner.claim_views(VIEWS, "killed", lease_s=60)
    if when != "in its claim":
        killed.commit()
    if when == "in its commit":
        owner.commit_batch("all", leases["all"])
    factories.terminate(bulk.connection, killed.info.backend_pid)
    if when != "in its claim":
        assert bulk.claim_views(VIEWS, "me") == {}
        assert bulk.owned_leases("killed") == leases
        factories.set_clock(bulk.connection, "2030-01-01 00:01:00+00")
    again = bulk.claim_views(VIEWS, "me")
    assert ranges(again) == ranges(leases)
    with pytest.raises(LeaseLost):
        bulk.commit_batch("all", leases["all"])
    assert bulk.extend_owner("killed", 60) == 0
    bulk.commit_batch("all", again["all"])
    assert bulk.claim_views(VIEWS, "me") == {}


def test_checkpoints_stay_until_200_unwanted_positions_are_ahead(
    bulk: PlatformStore, connect: factories.Connect
) -> None:
    stream, other = factories.ids_of_one_partition(bulk.connection, 2)
    views = ["paid", "invoices"]
    factories.set_clock(bulk.connection, "2030-01-01 00:00:00+00")  # the sequencer need not record its call
    factories.append_to(bulk, *[stream] * 199)
    bulk.sequence_events()
    before = written(bulk)
    appender = connect(autocommit=False)
    factories.append_to(PlatformStore(appender), other)  # it has no position yet
    for _ in range(3):
        with bulk.connection.transaction():
            assert bulk.claim_views(views, "me") == {}
            assert factories.value(bulk.connection, "select pg_current_xact_id_if_assigned()") is None
    assert written(bulk) == before
    appender.commit()
    assert bulk.claim_views(views, "me") == {}
    moved = {(view, position) for view, partition, position, _ in written(bulk) if view in views and partition == 0}
    assert moved == {("paid", 200), ("invoices", 200)}
    before = written(bulk)
    assert bulk.claim_views(views, "me") == {}
    assert written(bulk) == before


def test_what_lies_behind_many_unwanted_positions_is_reached(bulk: PlatformStore) -> None:
    """A view may be further behind than one call searches over all views."""
    (stream,) = factories.ids_of_one_partition(bulk.connection, 1)
    factories.append_to(bulk, *[stream] * 2600)
    append_events(bulk, [factories.new_event(stream, event="paid")])
    claimed: dict[str, list[Lease]] = {}
    for _ in range(5):
        claimed = claimed or bulk.claim_views(["paid", "invoices"], "me")
    (lease,) = claimed["paid"]
    assert (lease.from_position, lease.to_position) == (2600, 2601)
    assert "invoices" not in claimed
    assert max(position for view, _, position, _ in written(bulk) if view == "invoices") > 2500


@pytest.mark.parametrize("change", ["unregister", "disable", "register anew"])
def test_a_view_that_changes_in_a_claim_is_left_out(
    bulk: PlatformStore, connect: factories.Connect, change: str
) -> None:
    bulk.register_view("second", "-infinity", mode="bulk")
    factories.append_to(bulk, *[f"o-{n}" for n in range(30)])
    bulk.sequence_events()
    factories.append_to(bulk, "o-1")
    # the claim has read its views, and blocks before it gives the last event its position
    gate, claimer = connect(autocommit=False), connect()
    gate.execute("lock table event_store.event_log in share mode")
    claim = factories.start(partial(PlatformStore(claimer).claim_views, ["all", "second"], "me"))
    factories.wait_blocked(bulk.connection, claimer.info.backend_pid)
    if change == "disable":
        bulk.enable_view("all", False, reason="a test")
    else:
        bulk.unregister_view("all")
    if change == "register anew":
        gate.execute("select event_store.register_view('all', '-infinity', v_mode => 'bulk')")
    gate.commit()
    claimed = claim.result(patience())
    assert set(claimed) == ({"all", "second"} if change == "register anew" else {"second"})
    for view, leases in claimed.items():
        assert bulk.owned_leases("me")[view] == leases
        bulk.commit_batch(view, leases)


def test_another_roles_view_is_refused_and_nothing_is_leased(bulk: PlatformStore) -> None:
    factories.append_to(bulk, "o-1")
    bulk.register_view("theirs", "-infinity", mode="bulk", owner="event_store_owner")
    with logins(bulk.connection) as login:
        consumer = PlatformStore(login("event_store_consumer"))
        factories.refusal(NotViewOwner, lambda: consumer.claim_views(["all", "theirs"], "me"))
        assert bulk.owned_leases("me") == {}
        assert set(consumer.claim_views(["all"], "me")) == {"all"}
        bulk.claim_views(["theirs"], "me")
        assert set(consumer.owned_leases("me")) == {"all"}
        assert set(bulk.owned_leases("me")) == {"all", "theirs"}
        assert consumer.extend_owner("me", 60) == 1
        assert bulk.extend_owner("me", 60) == 2


def test_extending_waits_for_nobody_who_commits(bulk: PlatformStore, connect: factories.Connect) -> None:
    bulk.register_view("second", "-infinity", mode="bulk")
    factories.append_to(bulk, *[f"o-{n}" for n in range(30)])
    leases = bulk.claim_views(["all", "second"], "me", lease_s=60)
    committing = PlatformStore(connect(autocommit=False))
    committing.commit_batch("all", leases["all"])
    bulk.connection.execute("set lock_timeout = '30s'")
    assert bulk.extend_owner("me", 600) == len(leases["second"])
    committing.connection.commit()
    assert bulk.owned_leases("me") == {"second": leases["second"]}


def test_a_claim_at_repeatable_read_fails_if_somebody_was_faster(
    bulk: PlatformStore, connect: factories.Connect
) -> None:
    factories.append_to(bulk, "o-1")
    bulk.sequence_events()
    old = connect(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    old.execute("select from event_store.checkpoints")
    for view, leases in bulk.claim_views(["all"], "me").items():
        bulk.commit_batch(view, leases)
    with pytest.raises(psycopg.errors.SerializationFailure):
        PlatformStore(old).claim_views(["all"], "them")
