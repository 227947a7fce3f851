"""Verification of log, views and archive: it finds each planted fault and nothing else, also under concurrent work."""

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from psycopg import Connection

from millrace.archive.store import ArchiveStore
from millrace.archive.writer import archive_partition
from millrace.errors import HistoryNeeded
from millrace.event_store.platform import PlatformStore
from millrace.operations.verification import checks
from millrace.operations.verification.checks import KINDS, Report, Watcher, check_archive, check_log, check_views
from tests.support.factories import Connect, append_to, ids_of_one_partition, new_event, register_orders, rows, start
from tests.support.sql_calls import append_events


@pytest.fixture
def orders(store: PlatformStore) -> PlatformStore:
    """Return a store with three streams in one log partition and one in another, and views of both modes."""
    orders = register_orders(store)
    long, short, single = ids_of_one_partition(store.connection, 3)
    append_to(orders, long, short, long, short, single, long, "elsewhere")
    orders.sequence_events()
    orders.register_view("by event", "-infinity")
    orders.register_view("in ranges", "-infinity", mode="bulk")
    orders.dispatch_events("by event")
    return orders


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PIECE", 2)


def report_of(connection: Connection, root: Path | None = None) -> Report:
    report = Report()
    check_log(connection, report, Watcher())
    check_views(connection, report, Watcher())
    if root is not None:
        check_archive(connection, root, report, Watcher())
    return report


# the first, second and third event of the longest stream, and the last one of the second longest
FIRST, SECOND, THIRD = (
    f"""(select "offset" from event_store.events where version = {version} and decider_id =
      (select decider_id from event_store.events where version = 3))"""
    for version in (1, 2, 3)
)
ELSEWHERE = """(select "offset" from event_store.events where decider_id = 'elsewhere')"""
SINGLE = f"""(select "offset" from event_store.events e where e."offset" <> {ELSEWHERE} and not exists (
    select from event_store.events n where n.decider_id = e.decider_id and n.version = 2))"""
PLANTED = {
    "positions_missing": f"""
        delete from event_store.event_log where "offset" = {SINGLE};
        delete from event_store.events where "offset" = {SINGLE}""",
    "event_missing": f'delete from event_store.events where "offset" = {SINGLE}',
    "not_sequenced": """
        insert into event_store.events (
          event, event_id, decider, decider_id, data, command_id, created_at, "offset", transaction_id, version
        )
        select
          event, gen_random_uuid(), decider, 'never seen', data, command_id, created_at,
          nextval('event_store.events_offset_seq'), '3', 1
        from event_store.events limit 1""",
    "wrong_partition": f"""
        create temporary table exchanged as select {SINGLE} as one, {ELSEWHERE} as other;
        update event_store.event_log set "offset" = -1 where "offset" = (select one from exchanged);
        update event_store.event_log set "offset" = one from exchanged where "offset" = other;
        update event_store.event_log set "offset" = other from exchanged where "offset" = -1""",
    "version_missing": f'update event_store.events set version = 4 where "offset" = {THIRD}',
    "chain_broken": f'update event_store.events set previous_id = gen_random_uuid() where "offset" = {THIRD}',
    "order_inverted": f"""
        update event_store.event_log set position = -1 - position where "offset" in ({FIRST}, {SECOND});
        update event_store.event_log l set position = -1 - (
          select min(o.position) from event_store.event_log o where o.position < 0 and o."offset" <> l."offset"
        ) where "offset" = {FIRST};
        update event_store.event_log set position = 0 where "offset" = {SECOND}""",
    "after_final": f'update event_store.events set final = true where "offset" = {SECOND}',
    "checkpoint_without_view": """
        insert into event_store.checkpoints (view, partition, position) values ('gone', 3, 0)""",
    "lock_without_view": """
        insert into event_store.stream_locks (view, decider, decider_id, partition, last_offset, created_at, updated_at)
        values ('gone', 'order', 'o-1', 3, 0, now(), now())""",
    "checkpoint_missing": "delete from event_store.checkpoints where view = 'in ranges' and partition = 3",
    "checkpoint_beyond_log": "update event_store.checkpoints set position = 99 where view = 'in ranges' and partition = 3",
    "mark_beyond_log": "update event_store.log_marks set marks[4] = 99",
    "archive_beyond_log": "update event_store.log_partitions set archived_position = 99 where partition = 3",
    "model_without_view": """
        insert into read_models.declarations (model, version, view, fingerprint, serves, unbuilt)
        values ('m', 1, 'gone', '', true, '{}')""",
}


def test_each_kind_of_fault_is_planted() -> None:
    assert PLANTED.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_is_found_and_nothing_else(orders: PlatformStore, connect: Connect, kind: str) -> None:
    clean = report_of(orders.connection)
    assert (clean.faults, clean.positions, clean.events) == ([], 7, 7)
    # with triggers off, which only a superuser may do
    with connect() as planting:
        planting.execute("set session_replication_role = replica")
        planting.execute(PLANTED[kind].encode())
    report = report_of(orders.connection)
    assert {fault.kind for fault in report.faults} == {kind}
    # two swapped events are two faults
    assert report.found == len(report.faults) == 1 + (kind == "wrong_partition")
    assert report.faults[0].text.startswith(f"{KINDS[kind][0]}: ")


def test_what_was_passed_over_gets_a_position_by_the_remedy(orders: PlatformStore) -> None:
    orders.connection.execute("set session_replication_role = replica")
    orders.connection.execute(PLANTED["not_sequenced"].encode())
    orders.connection.execute("set session_replication_role = origin")
    assert orders.sequence_events() == 0
    (fault,) = report_of(orders.connection).faults
    orders.connection.execute(fault.text.partition("no position: ")[2].encode())
    # as after a restore: the positions seen before are unknown
    assert report_of(orders.connection).faults == []
    assert orders.sequence_events() == 1
    assert report_of(orders.connection).faults == []


def test_many_faults_of_a_kind_are_counted_and_some_are_told(orders: PlatformStore) -> None:
    orders.connection.execute("set session_replication_role = replica")
    orders.connection.execute(
        "insert into event_store.checkpoints (view, partition, position) select 'gone ' || n, 0, 0 from generate_series(1, 30) n"
    )
    orders.connection.execute("update event_store.checkpoints set position = 99 where view = 'in ranges'")
    append_to(orders, *[f"broken-{n}" for n in range(30)])
    broken = "update event_store.events set previous_id = gen_random_uuid() where decider_id like 'broken-%'"
    orders.connection.execute(broken)
    report = report_of(orders.connection)
    assert report.found == 30 + 16 + 30
    kinds = [fault.kind for fault in report.faults]
    told = {"checkpoint_without_view": 20, "checkpoint_beyond_log": 16, "chain_broken": 20}
    assert {kind: kinds.count(kind) for kind in kinds} == told


def test_each_file_of_the_archive_is_looked_at(orders: PlatformStore, dsn: str, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    for partition in range(16):
        archive_partition(dsn, root, partition, max_events=2, min_events=1, tail=True)
    clean = report_of(orders.connection, root)
    files = sorted(root.rglob("*.parquet"))
    assert clean.faults == []
    assert clean.files == len(files) >= 3
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"?")
    files[1].unlink()
    report = report_of(orders.connection, root)
    assert [fault.kind for fault in report.faults] == ["file_damaged"] * 2
    assert all(str(file) in fault.text for file, fault in zip(files, report.faults, strict=False))
    assert [fault.kind for fault in report_of(orders.connection, tmp_path / "not there").faults] == ["archive_missing"]


def test_a_hole_in_the_list_of_the_archive_is_a_fault(orders: PlatformStore, dsn: str, tmp_path: Path) -> None:
    for partition in range(16):
        archive_partition(dsn, tmp_path, partition, max_events=1, min_events=1, tail=True)
    ((partition,),) = rows(orders.connection, "select partition from event_store.archive_files where from_position = 2")
    forget = "delete from event_store.archive_files where partition = %s and from_position = %s"
    orders.connection.execute("set session_replication_role = replica")
    orders.connection.execute(forget, (partition, 1))
    assert [fault.kind for fault in report_of(orders.connection, tmp_path).faults] == ["archive_incomplete"]
    orders.connection.execute(forget, (partition, 0))
    report = report_of(orders.connection, tmp_path)
    assert (report.faults, len(report.passed_over)) == ([], 1)


def test_a_view_that_somebody_let_wait_beyond_the_log_is_no_fault(orders: PlatformStore, tmp_path: Path) -> None:
    orders.seek_view("in ranges", "RESET_TO_OFFSET", 99, partition=3)
    assert report_of(orders.connection, tmp_path).faults == []


def test_a_file_that_is_replaced_meanwhile_is_no_fault(orders: PlatformStore, dsn: str, tmp_path: Path) -> None:
    archive_partition(dsn, tmp_path, 0, min_events=100, tail=True)
    (small,) = tmp_path.rglob("*.parquet")

    def replaced(_: str) -> None:
        if small.exists():
            append_to(orders, *ids_of_one_partition(orders.connection, 1))
            for _again in range(2):
                archive_partition(dsn, tmp_path, 0, min_events=100, tail=True, keep_replaced_s=0)

    report = Report()
    check_archive(orders.connection, tmp_path, report, Watcher(checking=replaced))
    assert not small.exists()
    assert (report.faults, report.files) == ([], 1)


def test_a_store_at_work_has_no_fault(orders: PlatformStore, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight writers append, others sequence, consume and purge, while everything is verified repeatedly."""
    monkeypatch.setattr(checks, "PIECE", 50)

    def write(number: int) -> None:
        store = PlatformStore(connect())
        for turn in range(15):
            with store.connection.transaction(force_rollback=turn % 5 == 4):
                # its own streams and streams of two writers, in several log partitions
                for _ in range(2):
                    append_events(store, [new_event(f"w{number}-{n}-{turn % 3}") for n in range(4)])

    def consume() -> None:
        store, archive = PlatformStore(connect()), ArchiveStore(connect())
        while not done:
            if leases := store.claim_batch("in ranges", "drain", 40):
                store.commit_batch("in ranges", leases)
            store.dispatch_events("by event")
            for delivery in store.stream_events("by event", 20):
                store.ack_event("by event", delivery.decider_id, delivery.offset)
            for held in store.partition_info():
                archive.mark_archived(held.partition, held.high_water_mark)
                with suppress(HistoryNeeded):
                    archive.raise_low_water_mark(held.partition, held.high_water_mark // 2)
                archive.purge_events(held.partition, 7)

    done: list[bool] = []
    writers = [start(partial(write, number)) for number in range(8)]
    consumer = start(consume)
    while not all(writer.done() for writer in writers):
        assert report_of(orders.connection).faults == []
    for writer in writers:
        writer.result()
    orders.sequence_events()
    purged = "select from event_store.purged_streams having count(*) > 20"
    while not (consumer.done() or rows(orders.connection, purged)):
        assert report_of(orders.connection).faults == []
    done.append(True)
    consumer.result()
    report = report_of(orders.connection)
    assert report.faults == []
    assert 0 < report.events < 8 * 12 * 8
