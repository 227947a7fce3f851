"""Effect and position commit together, fenced by the lease token."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millrace.errors import LeaseLost, PositionOutOfRange
from millrace.event_store import Lease, StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append_to, refusal, rows, set_clock, start, terminate, value, wait_blocked
from tests.support.patience import patience


def progress(store: PlatformStore) -> list[tuple[Any, ...]]:
    columns = "partition, position, lease_owner, lease_token"
    return rows(store.connection, f"select {columns} from event_store.checkpoints order by partition")


@pytest.fixture
def leases(bulk: PlatformStore) -> list[Lease]:
    append_to(bulk, *[f"o-{n}" for n in range(40)])
    claimed = bulk.claim_batch("v", "me")
    assert len(claimed) > 5
    return claimed


def test_effect_and_position_commit_together(bulk: PlatformStore, leases: list[Lease], connect: Connect) -> None:
    bulk.connection.execute("create table effect (n int)")
    before = progress(bulk)
    for ending in ("rollback", "kill", "commit"):
        connection = connect(autocommit=False)
        connection.execute("insert into effect values (1)")
        PlatformStore(connection).commit_batch("v", leases)
        if ending == "kill":
            terminate(bulk.connection, connection.info.backend_pid)
        elif ending == "rollback":
            connection.rollback()
        else:
            connection.commit()
        done = ending == "commit"
        assert value(bulk.connection, "select count(*) from effect") == done
        assert (progress(bulk) == before) is not done


def test_after_a_take_over_no_call_with_the_former_lease_does_anything(bulk: PlatformStore, connect: Connect) -> None:
    append_to(bulk, *[f"o-{n}" for n in range(40)])
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    late = bulk.claim_batch("v", "me", lease_s=60)
    other = PlatformStore(connect())
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    (taken_over, *_) = other.claim_batch("v", "them", limit=1)
    before = progress(bulk)
    (first,) = [lease for lease in late if lease.partition == taken_over.partition]
    calls: list[Callable[[], object]] = [
        lambda: bulk.commit_batch("v", late),  # all of it or nothing
        lambda: bulk.extend_lease("v", late),
        lambda: bulk.read_batch("v", first),
        lambda: bulk.fail_streams("v", first, [StreamFailure("order", "o-1", "no")]),
    ]
    lost = f"token {first.lease_token} stated, token {taken_over.lease_token} in force for them"
    for call in calls:
        assert lost in str(refusal(LeaseLost, call).detail)
        assert progress(bulk) == before
    assert bulk.release_batch("v", [first]) == 0
    other.commit_batch("v", [taken_over])
    for call in calls:
        assert "no lease" in str(refusal(LeaseLost, call).detail)


def test_a_zombie_that_waits_for_its_heir_is_fenced(bulk: PlatformStore, leases: list[Lease], connect: Connect) -> None:
    over = "update event_store.checkpoints set leased_until = '-infinity' where leased_until is not null"
    bulk.connection.execute(over)
    successor, zombie = connect(autocommit=False), connect()
    taken_over = PlatformStore(successor).claim_batch("v", "them")
    PlatformStore(successor).commit_batch("v", taken_over)
    late = start(lambda: PlatformStore(zombie).commit_batch("v", leases))
    wait_blocked(bulk.connection, zombie.info.backend_pid)
    successor.commit()
    with pytest.raises(LeaseLost):
        late.result(patience())


def test_progress_only_moves_forward_and_never_past_the_mark(bulk: PlatformStore, leases: list[Lease]) -> None:
    bulk.commit_batch("v", leases)
    append_to(bulk, *[f"o-{n}" for n in range(40)])
    again = bulk.claim_batch("v", "me")
    before = progress(bulk)
    for lease in again:
        leased = f"position {lease.from_position}, leased up to {lease.to_position}"
        for offset in (lease.from_position - 1, lease.to_position + 1, 10**9, -1):
            with pytest.raises(PositionOutOfRange, match=leased):
                bulk.commit_batch("v", [replace(lease, to_position=offset)])
    assert progress(bulk) == before
