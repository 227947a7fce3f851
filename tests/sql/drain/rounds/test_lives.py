"""Random lives of views that are consumed in rounds, and each alone for its retries."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from millrace.event_store import Event, Lease, StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.long import seeds
from tests.support.factories import new_event, rows, set_clock, value
from tests.support.sql_calls import append_events

FILTERS: dict[str, dict[str, list[str]]] = {
    "all": {}, "orders": {"deciders": ["order"]}, "paid": {"events": ["paid"]}, "none": {"deciders": ["nobody"]},
    "invoices_paid": {"deciders": ["invoice"], "events": ["paid"]}, "also_all": {}, "off": {},
}  # fmt: skip
# mostly events that some views skip
RARE = ["placed"] * 8 + ["paid"]


@pytest.mark.parametrize("seed", seeds(4))
def test_over_a_life_each_event_comes_as_often_as_it_failed_and_once(orders: PlatformStore, seed: int) -> None:
    """Rounds take the new events, each view alone its retries; a reader of ranges skips streams with a lock."""
    random, now = Random(seed), datetime(2030, 1, 1, tzinfo=UTC)
    taken: Counter[tuple[str, int]] = Counter()
    set_clock(orders.connection, now.isoformat())
    for view, filters in FILTERS.items():
        orders.register_view(view, "-infinity", mode="bulk", max_attempts=3, **filters)  # type: ignore[arg-type]
    orders.enable_view("off", False, reason="a test")

    def pass_time(seconds: int) -> None:
        nonlocal now
        now += timedelta(seconds=seconds)
        set_clock(orders.connection, now.isoformat())

    def append() -> None:
        kinds, deciders = random.choice([RARE, ["placed"], ["paid"]]), ["order", "invoice"]
        streams = [f"o-{random.randrange(30)}" for _ in range(random.randrange(1, 20))]
        append_events(
            orders, [new_event(each, event=random.choice(kinds), decider=random.choice(deciders)) for each in streams]
        )
        orders.sequence_events()

    def settle(view: str, lease: Lease, events: list[Event], *, may_fail: bool) -> None:
        chosen = [random.choice(events)] if may_fail and events and random.random() < 0.3 else []
        failed = {(one.decider, one.decider_id) for one in chosen}
        for stream in failed:
            orders.fail_streams(view, lease, [StreamFailure(*stream, "no")])
        orders.commit_batch(view, [lease])
        taken.update((view, event.offset) for event in events if (event.decider, event.decider_id) not in failed)

    def round_of_all(*, may_fail: bool) -> None:
        owner = f"round {random.randrange(2)}"
        claimed = orders.claim_views([*FILTERS], owner, random.choice([1, 5, 20_000]), 60)
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
                if not may_fail or random.random() < 0.8:
                    settle(view, lease, events, may_fail=may_fail)

    def retries(view: str, *, may_fail: bool) -> None:
        for lease in orders.claim_batch(view, "alone", 1000, 60):
            settle(view, lease, orders.read_batch(view, lease), may_fail=may_fail)

    for _ in range(50):
        append()
        round_of_all(may_fail=True)
        if random.random() < 0.3:
            retries(random.choice([*FILTERS]), may_fail=True)
        pass_time(random.choice([0, 1, 20]))
    for _ in range(30):
        pass_time(3600)
        for view in FILTERS:
            orders.retry_dead_letters(view)
        round_of_all(may_fail=False)
        for row in orders.poll_views():
            if row.retries:
                retries(row.view, may_fail=False)
    query = """
        select v.view, e."offset" from event_store.views v cross join event_store.events e
        where v.enabled and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
    """
    wanted = rows(orders.connection, query)
    assert taken == Counter((view, offset) for view, offset in wanted)
    assert {row.view: row.due for row in orders.poll_views() if row.enabled} == dict.fromkeys({*FILTERS} - {"off"}, 0)
    assert value(orders.connection, "select count(*) from event_store.stream_locks") == 0
