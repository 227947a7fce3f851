"""From a time to an offset, exactly."""

from typing import LiteralString

from millrace.archive.store import ArchiveStore
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, append_to, ids_of_one_partition, rows, set_clock, value


def append_at(store: PlatformStore, decider_id: str, minute: int) -> None:
    set_clock(store.connection, f"2030-01-01 00:{minute:02}:00+00")
    append(store, decider_id)
    set_clock(store.connection, "")


def when(minute: int, second: int = 0) -> str:
    return f"2030-01-01 00:{minute:02}:{second:02}+00"


def test_it_is_exact_where_times_do_not_rise_along_the_log(orders: PlatformStore, connect: Connect) -> None:
    ids = ids_of_one_partition(orders.connection, 6)
    slow = PlatformStore(connect(autocommit=False))
    append_at(slow, ids[0], 1)  # commits last
    for decider_id, minute in zip(ids[1:5], (2, 6, 4, 7), strict=True):
        append_at(orders, decider_id, minute)
        orders.sequence_events()
    slow.connection.commit()
    append_at(orders, ids[5], 8)
    orders.sequence_events()
    assert [event.created_at.minute for event in orders.read_log(0, 0)] == [2, 6, 4, 7, 1, 8]
    found = [orders.offset_for_timestamp(0, when(minute)) for minute in range(10)]
    assert found == [0, 0, 0, 1, 1, 1, 1, 3, 5, 6]
    assert orders.offset_for_timestamp(0, when(2, 1)) == 1
    assert orders.offset_for_timestamp(1, when(0)) == 0


def test_all_log_partitions_are_answered_in_one_pass_as_one_by_one(orders: PlatformStore) -> None:
    for minute in range(40):
        append_at(orders, f"o-{minute}", minute)
        if minute == 20:
            orders.sequence_events()
    orders.sequence_events()
    partitions = [info.partition for info in orders.partition_info()]
    one_pass: LiteralString = "select * from event_store.offsets_for_timestamp(%s, %s) order by 1"
    for time in ("-infinity", when(0), when(7), when(33, 1), "infinity"):
        single = [(partition, orders.offset_for_timestamp(partition, time)) for partition in partitions]
        assert rows(orders.connection, one_pass, time, None) == single
        assert rows(orders.connection, one_pass, time, [3, 5]) == [single[3], single[5]]
        assert rows(orders.connection, one_pass, time, []) == []
    assert rows(orders.connection, one_pass, None, None) == []


def test_a_view_is_placed_by_one_pass_over_the_events(orders: PlatformStore) -> None:
    append_to(orders, *[f"o-{n}" for n in range(2000)])
    orders.sequence_events()
    orders.register_view("v")
    orders.connection.execute("vacuum analyze event_store.events, event_store.event_log")

    reads: LiteralString = """
        select sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid))::int
        from pg_class where relnamespace = 'event_store'::regnamespace and relname in ('events', 'events_pkey')
    """
    calls = (
        lambda: orders.seek_view("v", "EXACT_TIMESTAMP", timestamp="2020-01-01 00:00:00+00"),
        lambda: orders.register_view("w", "2020-01-01 00:00:00+00"),
    )
    for call in calls:
        with orders.connection.transaction():
            before = value(orders.connection, reads)
            call()
            # each once, and the sixteen before which views are placed
            assert 2000 <= value(orders.connection, reads) - before < 2 * 2000 + 100


def test_it_finds_kept_events_only(orders: PlatformStore) -> None:
    (decider_id, *others) = ids_of_one_partition(orders.connection, 4)
    for minute, each in enumerate((decider_id, *others)):
        append_at(orders, each, minute)
    orders.sequence_events()
    ArchiveStore(orders.connection).mark_archived(0, 2)
    ArchiveStore(orders.connection).raise_low_water_mark(0, 2)
    times = ("-infinity", when(0), when(3), "infinity")
    for _ in range(2):
        assert [orders.offset_for_timestamp(0, time) for time in times] == [2, 2, 3, 4]
        ArchiveStore(orders.connection).purge_events(0)
