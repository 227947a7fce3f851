"""Whole random lives of views that are consumed in rounds, and each alone for its retries.

Not here: single promises (test_claim_views), sessions that race (test_racing_rounds).
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from millrace.resources.event_store import Event, EventStore, Lease, StreamFailure
from tests.long import seeds
from tests.support.factories import new_event, rows, set_clock, value

FILTERS: dict[str, dict[str, list[str]]] = {
    "all": {},
    "orders": {"deciders": ["order"]},
    "paid": {"events": ["paid"]},
    "invoices_paid": {"deciders": ["invoice"], "events": ["paid"]},
    "none": {"deciders": ["nobody"]},
    "also_all": {},
    "off": {},
}
# mostly what some views pass over
RARE = ["placed"] * 8 + ["paid"]


class RandomLife:
    """A store with views, and what happens to it."""

    def __init__(self, store: EventStore, seed: int) -> None:
        self.store, self.random, self.now = store, Random(seed), 0
        self.pass_time(0)
        for view, filters in FILTERS.items():
            store.register_view(view, "-infinity", mode="bulk", max_attempts=3, **filters)  # type: ignore[arg-type]
        store.enable_view("off", False, reason="a test")

    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        set_clock(self.store.connection, (datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)).isoformat())

    def append(self, most: int = 40) -> None:
        kinds = self.random.choice([RARE, ["placed"], ["paid"]])
        self.store.append_events(
            [
                new_event(
                    f"o-{self.random.randrange(30)}",
                    event=self.random.choice(kinds),
                    decider=self.random.choice(["order", "invoice"]),
                )
                for _ in range(self.random.randrange(1, most))
            ]
        )
        self.store.sequence_events()


@pytest.mark.parametrize("seed", seeds(4))
def test_over_a_life_each_event_is_delivered_as_often_as_it_failed_and_once(orders: EventStore, seed: int) -> None:
    """Rounds take the new events, each view alone its retries; a reader of ranges leaves out streams with a lock."""
    life = RandomLife(orders, seed)
    taken: Counter[tuple[str, int]] = Counter()

    def settle(view: str, lease: Lease, events: list[Event], *, may_fail: bool) -> None:
        failed: set[tuple[str, str]] = set()
        if may_fail and events and life.random.random() < 0.3:
            one = life.random.choice(events)
            failed.add((one.decider, one.decider_id))
            orders.fail_streams(view, lease, [StreamFailure(*stream, "no") for stream in failed])
        orders.commit_batch(view, [lease])
        taken.update((view, event.offset) for event in events if (event.decider, event.decider_id) not in failed)

    def round_of_all(*, may_fail: bool) -> None:
        owner = f"round {life.random.randrange(2)}"
        claimed = orders.claim_views([*FILTERS], owner, life.random.choice([1, 5, 20_000]), 60)
        owned = orders.owned_leases(owner)
        assert all({*of} <= {*owned[view]} for view, of in claimed.items())
        locked = {(one.view, one.decider, one.decider_id) for one in orders.locked_streams(owner)}
        for view, leases in claimed.items():
            for lease in leases:
                events = orders.read_batch(view, lease)
                whole = orders.read_log(lease.partition, lease.from_position, lease.to_position - lease.from_position)
                v = FILTERS[view]
                assert [event.offset for event in events] == [
                    event.offset
                    for event in whole
                    if event.decider in v.get("deciders", [event.decider])
                    and event.event in v.get("events", [event.event])
                    and (view, event.decider, event.decider_id) not in locked
                ]
                if not may_fail or life.random.random() < 0.8:
                    settle(view, lease, events, may_fail=may_fail)

    def retries(view: str, *, may_fail: bool) -> None:
        for lease in orders.claim_batch(view, "alone", 1000, 60):
            settle(view, lease, orders.read_batch(view, lease), may_fail=may_fail)

    for _ in range(50):
        life.append(20)
        round_of_all(may_fail=True)
        if life.random.random() < 0.3:
            retries(life.random.choice([*FILTERS]), may_fail=True)
        life.pass_time(life.random.choice([0, 1, 20]))
    for _ in range(30):
        life.pass_time(3600)
        for view in FILTERS:
            orders.retry_dead_letters(view)
        round_of_all(may_fail=False)
        for row in orders.poll_views():
            if row.retries:
                retries(row.view, may_fail=False)
    wanted = rows(
        orders.connection,
        """
        select v.view, e."offset" from event_store.views v cross join event_store.events e
        where v.enabled and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
        """,
    )
    assert taken == Counter((view, offset) for view, offset in wanted)
    assert {row.view: row.due for row in orders.poll_views() if row.enabled} == dict.fromkeys({*FILTERS} - {"off"}, 0)
    assert value(orders.connection, "select count(*) from event_store.stream_locks") == 0
