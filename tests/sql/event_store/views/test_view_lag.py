"""How far one or all views are behind: the count, its limit, and its cost."""

from random import Random
from typing import LiteralString

from millrace.archive.store import ArchiveStore
from millrace.event_store import PartitionLag, StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.sql_calls import BatchEvent, append_events

FILTERS: dict[str, dict[str, list[str]]] = {
    "all": {},
    "order": {"deciders": ["order"]},
    "paid": {"events": ["paid"]},
    "order_paid": {"deciders": ["order"], "events": ["paid"]},
}

# counted event by event
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


def test_lag_is_mark_minus_position_and_0_at_the_end(bulk: PlatformStore) -> None:
    zero, three = (factories.ids_of_one_partition(bulk.connection, 1, partition)[0] for partition in (0, 3))
    factories.set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    factories.append_to(bulk, zero, zero, three)
    bulk.sequence_events()
    factories.set_clock(bulk.connection, "2030-01-01 00:01:30+00")
    lag = bulk.view_lag("v")
    assert [each.partition for each in lag] == list(range(16))
    assert lag[0] == PartitionLag(0, 0, 2, 2, 2, 90.0)
    assert lag[1] == PartitionLag(1, 0, 0, 0, 0, None)
    assert lag[3] == PartitionLag(3, 0, 1, 1, 1, 90.0)
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    assert bulk.view_lag("v")[0] == PartitionLag(0, 2, 2, 0, 0, None)
    assert sum(each.behind for each in bulk.view_lag("v")) == 0


def test_in_rows_mode_what_waits_in_a_lock_is_pending(view: PlatformStore) -> None:
    (decider_id,) = factories.ids_of_one_partition(view.connection, 1)
    factories.set_clock(view.connection, "2030-01-01 00:00:00+00")
    factories.append_to(view, decider_id, decider_id)
    view.sequence_events()
    view.dispatch_events("v")
    factories.set_clock(view.connection, "2030-01-01 00:00:10+00")
    (lag, *_) = view.view_lag("v")
    assert lag == PartitionLag(0, 2, 2, 0, 2, 10.0)
    (event,) = view.stream_events("v")
    view.ack_event("v", decider_id, event.offset)
    assert view.view_lag("v")[0].lag == 1


def test_what_was_given_up_is_not_pending_before_a_purge_nor_after_it(orders: PlatformStore) -> None:
    factories.append_to(orders, *factories.ids_of_one_partition(orders.connection, 2) * 2)
    orders.sequence_events()
    archive = ArchiveStore(orders.connection)
    archive.mark_archived(0, 4)
    archive.raise_low_water_mark(0, 3)
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("orders", "-infinity", mode="bulk", deciders=["order"])
    orders.register_view("new", mode="bulk")
    # a state that a restored store may have
    orders.connection.execute("update event_store.checkpoints set position = 1 where view <> 'new' and partition = 0")
    for _ in range(2):
        assert [orders.view_lag(view)[0].lag for view in ("all", "orders", "new")] == [1, 1, 0]
        archive.purge_events(0)


MOST = 10_000  # the most events read for a count; a tenth of the default, as the first test below asserts


def lags(store: PlatformStore, view: str) -> list[PartitionLag]:
    """Ask for the lag as view_lag does, reading at most MOST events."""
    columns = 'partition, "position", high_water_mark, behind, lag, lag_seconds, exact'
    return store._all(PartitionLag, f"select {columns} from event_store_private.lags(%s, %s)", ([view], MOST))


def random_events(random: Random) -> list[BatchEvent]:
    """Make up to eleven events of two kinds and two deciders."""
    return [
        factories.new_event(f"o-{random.randrange(9)}", event=random.choice(["placed", "paid"]), decider=decider)
        for decider in random.choices(["order", "invoice"], k=random.randrange(1, 12))
    ]


def behind(orders: PlatformStore, events: int) -> None:
    """Put bulk views with and without a filter `events` events behind in 16 log partitions."""
    factories.append_many(orders.connection, events)
    orders.sequence_events()
    orders.connection.execute("vacuum analyze event_store.events, event_store.event_log")
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("placed", "-infinity", mode="bulk", events=["placed"])
    orders.register_view("paid", "-infinity", mode="bulk", events=["paid"])


def test_a_view_without_a_filter_reads_one_event_of_each_log_partition(orders: PlatformStore) -> None:
    behind(orders, 5000)
    assert sum(lag.lag for lag in orders.view_lag("all")) == 5000
    with orders.connection.transaction():
        before = factories.value(orders.connection, READ)
        assert all(lag.exact and lag.lag_seconds is not None for lag in orders.view_lag("all"))
        assert factories.value(orders.connection, READ) - before == 16
    assert factories.buffers(orders.connection, "select event_store.view_lag('all')") < 400


def test_a_hundred_thousand_events_are_read_at_most(store: PlatformStore) -> None:
    query: LiteralString = (
        "select pg_get_expr(proargdefaults, 0) from pg_proc where proname = any (%s) order by proname"
    )
    assert factories.rows(store.connection, query, ["lags", "view_info"]) == [("100000",), ("NULL::text, 100000",)]


def test_a_filtered_view_is_counted_up_to_so_many_positions_then_at_least(orders: PlatformStore) -> None:
    behind(orders, MOST)
    for view, wanted in (("placed", MOST), ("paid", 0)):
        found = lags(orders, view)
        assert (sum(lag.lag for lag in found), all(lag.exact for lag in found)) == (wanted, True)
    factories.append(orders, "one more")
    orders.sequence_events()
    for view in ("placed", "paid"):
        assert not all(lag.exact for lag in lags(orders, view))
    factories.append_many(orders.connection, 5999, "more")
    orders.sequence_events()
    placed, paid = lags(orders, "placed"), lags(orders, "paid")
    assert [lag.lag for lag in placed] == [625] * 16
    assert not any(lag.exact for lag in (*placed, *paid))
    assert sum(lag.behind for lag in placed) == 16_000
    # no wanted event among those read: the lag may be as old as the next event
    assert all(lag.lag == 0 and lag.lag_seconds is not None for lag in paid)
    assert [sum(lag.lag for lag in lags(orders, "all"))] == [16_000]


def test_of_a_view_further_behind_99_events_behind_checkpoints_are_counted(orders: PlatformStore) -> None:
    orders.register_view("99", "-infinity")
    orders.register_view("100", "-infinity")
    factories.append_to(orders, *["a"] * 99)
    factories.pump(orders, "99")
    factories.append(orders, "b")
    factories.pump(orders, "100")
    factories.append_many(orders.connection, MOST)
    orders.sequence_events()
    # the stream of one event is ahead of one view and behind the other
    for view, ahead in (("99", MOST + 1), ("100", MOST)):
        found = lags(orders, view)
        assert sum(lag.behind for lag in found) == ahead
        assert (sum(lag.lag for lag in found), all(lag.exact for lag in found)) == (MOST + 100, True)
    factories.append(orders, "c")
    orders.sequence_events()
    for view, exact in (("99", True), ("100", False)):
        found = lags(orders, view)
        assert (sum(lag.lag for lag in found), all(lag.exact for lag in found)) == (MOST + 101, exact)


def test_lag_is_what_is_counted_event_by_event(orders: PlatformStore) -> None:
    for view, wanted in FILTERS.items():
        orders.register_view(view, "-infinity", mode="bulk", max_attempts=2, **wanted)  # type: ignore[arg-type]
    random = Random(11)
    for step in range(25):
        factories.set_clock(orders.connection, f"2030-01-01 00:00:{step:02}+00")
        append_events(orders, random_events(random))
        orders.sequence_events()
        found = {view: orders.view_lag(view) for view in sorted(FILTERS)}
        each = [(view, lag.partition, lag.lag, lag.lag_seconds) for view, lags in found.items() for lag in lags]
        assert each == factories.rows(orders.connection, COUNTED), f"step {step}"
        for info in orders.view_info():
            lags = found[info.view]
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


def test_a_view_that_has_all_it_wants_has_no_lag_whatever_is_ahead(orders: PlatformStore) -> None:
    for n in range(20):
        orders.register_view(f"paid-{n:02}", "-infinity", mode="bulk", events=["paid"])
    for _ in range(4):
        factories.append_many(orders.connection, 500, str(_))
        orders.sequence_events()
    found = {(info.lag, info.lag_seconds, info.exact, info.behind) for info in orders.view_info()}
    assert found == {(0, 0, True, 2000)}
    # each event is read once, not once per view
    with orders.connection.transaction():
        before = factories.value(orders.connection, READ)
        orders.view_info()
        assert factories.value(orders.connection, READ) - before == 2000


def test_what_is_read_is_bounded_for_all_views_together(orders: PlatformStore) -> None:
    for n in range(10):
        orders.register_view(f"new-{n}", mode="bulk", events=["paid"])
        orders.register_view(f"old-{n}", "-infinity", mode="bulk", events=["placed"])
    for _ in range(3):
        factories.append_many(orders.connection, 5000, str(_))
        orders.sequence_events()
    for n in range(10):
        orders.seek_view(f"new-{n}", "RESET_TO_LATEST")
    factories.append_to(orders, "one more")
    orders.sequence_events()
    orders.connection.execute("vacuum analyze event_store.events, event_store.event_log")
    infos = {info.view: info for info in orders.view_info(most=MOST)}
    with orders.connection.transaction():
        before = factories.value(orders.connection, READ)
        orders.view_info(most=MOST)
        assert factories.value(orders.connection, READ) - before <= MOST + 10 * 16
    for n in range(10):
        assert (infos[f"new-{n}"].lag, infos[f"new-{n}"].exact) == (0, True)
        old = infos[f"old-{n}"]
        assert not old.exact
        # events that views share are read once for all of them
        assert 9000 < old.lag < old.behind == 15_001
        assert old.lag_seconds > 0


def test_lags_of_up_to_date_views_cost_a_look_up_each(orders: PlatformStore) -> None:
    for n in range(100):
        orders.register_view(f"view-{n:03}", "-infinity", mode="bulk", events=["paid"])
    factories.append_to(orders, *factories.ids_of_one_partition(orders.connection, 1))
    orders.sequence_events()
    assert {(info.lag, info.behind) for info in orders.view_info()} == {(0, 1)}
    assert factories.buffers(orders.connection, "select event_store.view_info()") < 100 * 16 * 8


def test_of_the_streams_that_wait_as_many_are_looked_at_as_are_read(view: PlatformStore) -> None:
    factories.append_many(view.connection, 4000)
    view.sequence_events()
    factories.pump(view, "v")
    view.connection.execute("vacuum analyze")
    (all_of_them,), (some,) = view.view_info("v"), view.view_info("v", 100)
    assert (all_of_them.lag, all_of_them.exact) == (4000, True)
    assert (some.lag, some.exact) == (100, False)
    call: LiteralString = "select * from event_store_private.lags('{v}', 100)"
    assert factories.buffers(view.connection, call) < 100 * 16
    # even if no event of these streams is wanted any more
    view.connection.execute("update event_store.stream_locks set last_offset = 1000000")
    view.connection.execute("vacuum analyze")
    assert factories.buffers(view.connection, call) < 100 * 16
    (some,) = view.view_info("v", 100)
    assert (some.lag, some.exact) == (0, False)


def test_however_many_views_there_are_they_share_what_is_read(orders: PlatformStore) -> None:
    (stream,) = factories.ids_of_one_partition(orders.connection, 1)
    factories.append_to(orders, *[stream] * 60)
    orders.sequence_events()
    (partition,) = (p.partition for p in orders.partition_info() if p.high_water_mark)
    far = [f"far-{n}" for n in range(5)]
    for n, view in enumerate(far):
        orders.register_view(view, "-infinity", mode="bulk", events=["placed"])
        orders.seek_view(view, "EXACT_OFFSET", position=n, partition=partition)
    assert [info.lag for info in orders.view_info(most=10)] == [2] * 5
    for view in far:
        orders.unregister_view(view)
    # waiting streams count too
    for n in range(201):
        orders.register_view(f"v-{n}")
    factories.append_to(orders, "a", "b", "c")
    orders.sequence_events()
    for n in range(201):
        orders.dispatch_events(f"v-{n}")
    assert {(info.lag, info.exact) for info in orders.view_info(most=200)} == {(1, False)}
