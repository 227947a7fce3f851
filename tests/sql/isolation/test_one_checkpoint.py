"""A view has one checkpoint in each log partition, despite concurrent registrations, removals, seeks and consumers.

No key of the table enforces this: a unique index would read every dead row version that a held snapshot keeps. So
these tests assert it.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import LiteralString

import psycopg
import pytest

from millrace.backup.store import BackupStore
from millrace.errors import BackupDamaged, LeaseLost, PartitionLeased, UnknownView, ViewInUse
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append_to, at_once, end_transaction, refusal, rows, start_blocked, value
from tests.support.patience import patience
from tests.support.views.isolation import Session, assert_not_serializable, repeat

ENDS = ["commit", "kill", pytest.param("rollback", marks=pytest.mark.long)]


def whole(connection: psycopg.Connection) -> list[str]:
    """Return the existing views; assert that each has exactly one checkpoint in each log partition."""
    found = rows(
        connection,
        """
        select v.view, count(c.*), count(distinct c.partition), (select count(*) from event_store.log_partitions)
        from event_store.views v
        left join event_store.checkpoints c using (view)
        group by v.view
        order by v.view
        """,
    )
    assert all(checkpoints == distinct == partitions for _, checkpoints, distinct, partitions in found), found
    assert value(connection, "select count(*) from event_store.checkpoints") == sum(row[1] for row in found)
    return [view for view, *_ in found]


@pytest.mark.parametrize("end", ENDS)
def test_a_registration_behind_another(
    orders: PlatformStore, connect: Connect, any_snapshot: Session, end: str
) -> None:
    append_to(orders, "a", "b")
    first, second = PlatformStore(connect(autocommit=False)), any_snapshot()
    first.register_view("v", "-infinity")
    register = partial(second.register_view, "v", "-infinity", max_attempts=7)
    waiting = start_blocked(orders, second, lambda: repeat(second, register))
    end_transaction(orders, first, end)
    assert waiting.result(patience()).max_attempts == 7
    assert whole(orders.connection) == ["v"]


@pytest.mark.parametrize("end", ENDS)
def test_a_registration_after_a_removal(
    orders: PlatformStore, connect: Connect, any_snapshot: Session, end: str
) -> None:
    """If the removal commits, an old snapshot sees the former rows beside the new ones; no call works on both."""
    append_to(orders, "a", "b")
    orders.register_view("v", "-infinity", mode="bulk")
    orders.commit_batch("v", orders.claim_batch("v", "me"))
    remover, registrar = PlatformStore(connect(autocommit=False)), any_snapshot()
    remover.unregister_view("v")

    def register_and_consume() -> int:
        registrar.register_view("v", "-infinity", mode="bulk")
        if leases := registrar.claim_batch("v", "me"):
            registrar.commit_batch("v", leases)
        return sum(lease.to_position - lease.from_position for lease in leases)

    waiting = start_blocked(orders, registrar, lambda: repeat(registrar, register_and_consume))
    end_transaction(orders, remover, end)
    assert waiting.result(patience()) == (2 if end == "commit" else 0)
    assert whole(orders.connection) == ["v"]
    assert sum(lag.behind for lag in orders.view_lag("v")) == 0


def test_a_snapshot_from_before_a_new_registration_changes_nothing(orders: PlatformStore, snapshot: Session) -> None:
    append_to(orders, "a", "b")
    orders.register_view("v", "-infinity", mode="bulk")
    old = [snapshot() for _ in range(4)]
    orders.unregister_view("v")
    orders.register_view("v", "-infinity", mode="bulk")
    calls: list[Callable[[PlatformStore], object]] = [
        lambda store: store.register_view("v", max_attempts=9),
        lambda store: store.seek_view("v", "RESET_TO_LATEST"),
        lambda store: store.claim_batch("v", "late"),
        lambda store: store.unregister_view("v"),
    ]
    for store, call in zip(old, calls, strict=True):
        assert_not_serializable(store, partial(call, store))
    assert whole(orders.connection) == ["v"]
    assert sum(lag.behind for lag in orders.view_lag("v")) == 2


def test_sessions_at_once_make_no_second_checkpoint(orders: PlatformStore, any_racer: Session) -> None:
    append_to(orders, *[f"o-{n}" for n in range(20)])
    expected = (UnknownView, ViewInUse, PartitionLeased, LeaseLost)
    done: dict[str, int] = {}

    def consume(store: PlatformStore, view: str) -> None:
        if leases := store.claim_batch(view, "me", 5):
            store.commit_batch(view, leases)

    def rebuild(store: PlatformStore, view: str) -> None:
        store.commit_batch(view, [store.claim_partition(view, 0, "me")])

    calls: dict[str, Callable[[PlatformStore, str], object]] = {
        "register": lambda store, view: store.register_view(view, "-infinity", mode="bulk"),
        "remove": lambda store, view: store.unregister_view(view),
        "seek": lambda store, view: store.seek_view(view, "RESET_TO_EARLIEST"),
        "consume": consume,
        "rebuild": rebuild,
    }

    def live(seed: int) -> None:
        # the same calls for the same seed; the server decides the interleaving
        choose = random.Random(seed)
        store = any_racer()
        for _ in range(60):
            name = choose.choices(list(calls), [4, 2, 1, 3, 1])[0]
            view = choose.choice("vw")
            try:
                repeat(store, partial(calls[name], store, view))
            except expected:
                store.connection.rollback()
            else:
                done[name] = done.get(name, 0) + 1

    for result in at_once([partial(live, seed) for seed in range(5)]):
        result.result(0)
    assert set(done) == set(calls)
    for view in ("v", "w"):
        orders.register_view(view, mode="bulk")
    assert whole(orders.connection) == ["v", "w"]


LOADED: LiteralString = """
    insert into event_store.views (view, start_at, created_at, updated_at, owner)
    values ('v', now(), now(), now(), 'event_store_consumer');
    insert into event_store.checkpoints (view, partition, position)
    select 'v', partition, 0 from event_store.log_partitions;
    insert into event_store.producers (producer_id, partition, epoch, registered_at, owner) values ('p', 0, 1, now(), 'x');
    insert into event_store.producer_progress (producer_id, partition, updated_at) values ('p', 0, now())
"""


def restored(owner: psycopg.Connection, *changes: LiteralString) -> None:
    """Load a view and a producer as a restore does, with these changes, and finish the restore; then undo all."""
    loading = BackupStore(owner)
    try:
        loading.begin_restore()
        for change in (LOADED, *changes):
            owner.execute(change)
        loading.finish_restore(list(range(16)), [0] * 16, [0] * 16, 1, 1, {})
    finally:
        owner.rollback()


def test_a_restore_of_what_is_twice_or_missing_leaves_nothing(store: PlatformStore, connect: Connect) -> None:
    owner = connect(autocommit=False)
    twice: LiteralString = (
        "insert into event_store.checkpoints (view, partition, position, revision) values ('v', 3, 0, "
    )
    faults: list[tuple[LiteralString, str]] = [
        (twice + "1)", "view 'v' has 2 checkpoints in log partition 3"),
        (twice + "-1)", "view 'v' has 2 checkpoints in log partition 3"),
        ("delete from event_store.checkpoints where partition = 3", "view 'v' has 0 checkpoints in log partition 3"),
        ("delete from event_store.producer_progress", "producer 'p', partition 0 has 0 rows of progress"),
        (
            "insert into event_store.producer_progress (producer_id, partition, updated_at, revision) values ('p', 0, now(), 9)",
            "producer 'p', partition 0 has 2 rows of progress",
        ),
        (
            "insert into event_store.producer_state (producer_id, partition, key, value, sequence)"
            " values ('p', 0, 'k', '1', 1), ('p', 0, 'k', '2', 2)",
            "producer 'p', partition 0 has 2 values of state 'k'",
        ),
    ]
    for change, fault in faults:
        assert refusal(BackupDamaged, partial(restored, owner, change)).detail == fault
    # the key refuses the same revision twice
    with pytest.raises(psycopg.errors.UniqueViolation, match="checkpoints_pkey"):
        restored(owner, twice + "0)")
    assert whole(store.connection) == []
