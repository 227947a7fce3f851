"""The lag of all views in one call: what is counted, how far, and what it costs."""

from random import Random
from typing import LiteralString

from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore, StreamFailure
from tests.support.factories import (
    append_many,
    append_to,
    buffers,
    ids_of_one_partition,
    new_event,
    pump,
    refusal,
    rows,
    set_clock,
    value,
)

FILTERS: dict[str, dict[str, list[str]]] = {
    "all": {},
    "order": {"deciders": ["order"]},
    "paid": {"events": ["paid"]},
    "order_paid": {"deciders": ["order"], "events": ["paid"]},
}
# event by event
COUNTED: LiteralString = """
    select v.view, c.partition, count(e."offset"),
      extract(epoch from event_store_private.clock() - min(e.created_at) filter (
        where e.position >= c.position or not exists (
          select from event_store.stream_locks k
          where k.view = v.view and k.decider = e.decider and k.decider_id = e.decider_id and k.parked_at is not null
        )
      ))
    from event_store.views v
    join event_store.checkpoints c using (view)
    left join (
      select l.partition, l.position, e.* from event_store.event_log l join event_store.events e using ("offset")
    ) e on e.partition = c.partition
      and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
      and (
        e.position >= c.position
        or exists (
          select from event_store.stream_locks k
          where k.view = v.view and k.decider = e.decider and k.decider_id = e.decider_id and e."offset" > k.last_offset
        )
      )
    group by v.view, c.partition
    order by v.view, c.partition
"""
READ: LiteralString = "select pg_stat_get_xact_tuples_fetched('event_store.events_pkey'::regclass)"


def test_lag_is_what_is_counted_event_by_event(orders: EventStore) -> None:
    for view, wanted in FILTERS.items():
        orders.register_view(view, "-infinity", mode="bulk", max_attempts=2, **wanted)  # type: ignore[arg-type]
    random = Random(11)
    for step in range(25):
        set_clock(orders.connection, f"2030-01-01 00:00:{step:02}+00")
        orders.append_events(
            [
                new_event(f"o-{random.randrange(9)}", event=random.choice(["placed", "paid"]), decider=decider)
                for decider in random.choices(["order", "invoice"], k=random.randrange(1, 12))
            ]
        )
        orders.sequence_events()
        found = [
            (view, lag.partition, lag.lag, lag.lag_seconds) for view in sorted(FILTERS) for lag in orders.view_lag(view)
        ]
        assert found == rows(orders.connection, COUNTED), f"step {step}"
        for info in orders.view_info():
            lags = orders.view_lag(info.view)
            assert (info.lag, info.behind) == (sum(lag.lag for lag in lags), sum(lag.behind for lag in lags))
            assert info.lag_seconds == max((lag.lag_seconds or 0 for lag in lags), default=0)
            assert info.exact
        for view in random.sample([*FILTERS], 2):
            leases = orders.claim_batch(view, "me", random.randrange(1, 9))
            for lease in leases[:1]:
                if random.random() < 0.3 and (read := orders.read_batch(view, lease)):
                    orders.fail_streams(view, lease, [StreamFailure(read[0].decider, read[0].decider_id, "no")])
            if leases:
                orders.commit_batch(view, leases)


def test_a_view_that_has_all_it_wants_has_no_lag_however_many_positions_are_ahead(orders: EventStore) -> None:
    for n in range(20):
        orders.register_view(f"paid-{n:02}", "-infinity", mode="bulk", events=["paid"])
    for _ in range(4):
        append_many(orders.connection, 5000, str(_))
        orders.sequence_events()
    infos = orders.view_info()
    assert {(info.lag, info.lag_seconds, info.exact, info.behind) for info in infos} == {(0, 0, True, 20_000)}
    # each event is read once, and not once for each view
    with orders.connection.transaction():
        before = value(orders.connection, READ)
        orders.view_info()
        assert value(orders.connection, READ) - before == 20_000


def test_what_is_read_is_bounded_for_all_views_together(orders: EventStore) -> None:
    for n in range(10):
        orders.register_view(f"new-{n}", mode="bulk", events=["paid"])
        orders.register_view(f"old-{n}", "-infinity", mode="bulk", events=["placed"])
    for _ in range(3):
        append_many(orders.connection, 50_000, str(_))
        orders.sequence_events()
    for n in range(10):
        orders.seek_view(f"new-{n}", "RESET_TO_LATEST")
    append_to(orders, "one more")
    orders.sequence_events()
    orders.connection.execute("vacuum analyze event_store.events, event_store.event_log")
    infos = {info.view: info for info in orders.view_info()}
    with orders.connection.transaction():
        before = value(orders.connection, READ)
        orders.view_info()
        assert value(orders.connection, READ) - before <= 100_000 + 10 * 16
    for n in range(10):
        assert (infos[f"new-{n}"].lag, infos[f"new-{n}"].exact) == (0, True)
        old = infos[f"old-{n}"]
        assert not old.exact
        # what they share is read for all of them
        assert 90_000 < old.lag < old.behind == 150_001
        assert old.lag_seconds > 0


def test_lags_of_up_to_date_views_cost_a_look_up_each(orders: EventStore) -> None:
    for n in range(100):
        orders.register_view(f"view-{n:03}", "-infinity", mode="bulk", events=["paid"])
    append_to(orders, *ids_of_one_partition(orders.connection, 1))
    orders.sequence_events()
    assert {(info.lag, info.behind) for info in orders.view_info()} == {(0, 1)}
    assert buffers(orders.connection, "select event_store.view_info()") < 100 * 16 * 8


def test_of_the_streams_that_wait_as_many_are_looked_at_as_are_read(orders: EventStore) -> None:
    orders.register_view("v", "-infinity")
    append_many(orders.connection, 4000)
    orders.sequence_events()
    pump(orders, "v")
    orders.connection.execute("vacuum analyze")
    (all_of_them,), (some,) = orders.view_info("v"), orders.view_info("v", 100)
    assert (all_of_them.lag, all_of_them.exact) == (4000, True)
    assert (some.lag, some.exact) == (100, False)
    call: LiteralString = "select * from event_store_private.lags('{v}', 100)"
    assert buffers(orders.connection, call) < 100 * 16
    # also where nothing of these streams is wanted any more
    orders.connection.execute("update event_store.stream_locks set last_offset = 1000000")
    orders.connection.execute("vacuum analyze")
    assert buffers(orders.connection, call) < 100 * 16
    (some,) = orders.view_info("v", 100)
    assert (some.lag, some.exact) == (0, False)


def test_a_count_of_nothing_is_refused(orders: EventStore) -> None:
    refusal(Malformed, lambda: orders.view_info(most=0))
