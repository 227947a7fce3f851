"""The archive in Parquet: exactly the log, despite kills, torn or foreign files and concurrent writers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.archive import files as archive_files
from millrace.archive.files import path_of, range_of, read_range, write_file
from millrace.archive.folder import claim_folder, database_name
from millrace.archive.listing import ArchivedPartition, archived, require_files
from millrace.archive.store import ArchiveStore
from millrace.archive.writer import ArchiveReport, archive_partition, plan
from millrace.errors import ArchiveDamaged, ForeignArchive
from millrace.event_store import Json
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.spark.log_source import COLUMNS, LogRange
from tests.archive.test_fields import append
from tests.support import factories
from tests.support.building.event_log_reads import append_json
from tests.support.factories import Connect, append_to, at_once, ids_of_one_partition, register_orders, start
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT


@pytest.fixture
def log(store: PlatformStore) -> PlatformStore:
    """Two streams of five events each in log partition 0."""
    register_orders(store)
    grow(store)
    return store


def grow(store: PlatformStore, number: int = 10) -> None:
    one, two = ids_of_one_partition(store.connection, 2)
    append_to(store, *[one if n % 2 else two for n in range(number)])
    store.sequence_events()


def extend(dsn: str, root: Path, *, max_events: int = 4, tail: bool = True) -> ArchiveReport:
    return archive_partition(dsn, root, 0, max_events=max_events, min_events=max_events, tail=tail, keep_replaced_s=0)


def listed(store: PlatformStore) -> list[tuple[int, int]]:
    return [(f.range.from_position, f.range.to_position) for f in archived(store.connection, 0).files]


def files(root: Path) -> list[tuple[int, int]]:
    """Return the ranges of the files in the folder, which must hold no others."""
    names = sorted(path.name for path in (root / "p0000").iterdir()) if (root / "p0000").exists() else []
    ranges = [found for name in names if (found := range_of(name)) is not None]
    assert len(ranges) == len(names), names
    return [(found.from_position, found.to_position) for found in ranges]


def assert_archive_is_the_log(store: PlatformStore, root: Path) -> None:
    """Check the listed files: they hold each archived event once, with every value that it has in Postgres."""
    held = archived(store.connection, 0)
    assert require_files(root, held, held.archived_position) == len(held.files)
    found = [row for file in held.files for row in pq.read_table(root / file.path).to_pylist()]
    expressions = ", ".join(expression for _, expression in COLUMNS.values())
    expected = store.connection.execute(
        f'select {expressions} from event_store.event_log l join event_store.events e using ("offset")'
        " where l.partition = 0 and l.position < %s order by l.position",
        (held.archived_position,),
    ).fetchall()
    assert [tuple(row[name] for name in COLUMNS) for row in found] == expected


# Writing


def test_the_archive_is_the_log_in_bounded_files(log: PlatformStore, dsn: str, tmp_path: Path) -> None:
    assert archive_files.SCHEMA.names == list(COLUMNS)
    report = extend(dsn, tmp_path)
    counts = (report.written, report.files, report.events, report.archived_position, report.busy)
    assert counts == (10, 3, 10, 10, False)
    assert listed(log) == files(tmp_path) == [(0, 4), (4, 8), (8, 10)]
    assert_archive_is_the_log(log, tmp_path)
    assert (tmp_path / path_of(LogRange(0, 4, 8))).name == "p0000-000000000000004-000000000000008.parquet"


def test_a_small_tail_is_written_when_asked_for(log: PlatformStore, dsn: str, tmp_path: Path) -> None:
    assert extend(dsn, tmp_path, tail=False).archived_position == 8
    assert extend(dsn, tmp_path, tail=False).written == 0
    assert extend(dsn, tmp_path, tail=True).archived_position == 10
    grow(log, 4)
    assert extend(dsn, tmp_path, tail=True).archived_position == 14
    assert listed(log) == [(0, 4), (4, 8), (8, 12), (12, 14)]
    # a replaced file stays for its readers until a later run
    assert (8, 10) in files(tmp_path)
    extend(dsn, tmp_path)
    assert files(tmp_path) == listed(log)
    assert_archive_is_the_log(log, tmp_path)


def test_with_nothing_new_nothing_is_written(log: PlatformStore, dsn: str, tmp_path: Path) -> None:
    from adbc_driver_postgresql import dbapi

    extend(dsn, tmp_path)
    before = archived(log.connection, 0)
    assert extend(dsn, tmp_path).written == 0
    for file in before.files:
        with dbapi.connect(dsn) as reader, reader.cursor() as cursor:
            fields = archive_files.range_fields(cursor, file.range)
            numbers = ArchiveStore(log.connection).number_archive_fields(fields.columns)
            batches = read_range(cursor, file.range, fields)
            again = write_file(tmp_path, file.range, batches, fields=fields, numbers=numbers)
        assert (again.bytes, again.checksum) == (file.bytes, file.checksum)
        ArchiveStore(log.connection).list_archive_file(
            0, file.range.from_position, file.range.to_position, file.path, again.bytes, again.checksum
        )
    assert archived(log.connection, 0) == before


def number_of(field: pa.Field) -> int:
    return int((field.metadata or {}).get(b"PARQUET:field_id", 0))


def test_values_of_every_kind_come_back(log: PlatformStore, dsn: str, tmp_path: Path) -> None:
    odd = 'it\'s \\ "ü"\n\U0001f600'
    log.register_decider_event(odd, odd, "odd")
    (stream,) = ids_of_one_partition(log.connection, 1)
    kinds: list[Json] = [{odd: [None, 1.50, 10**30, True, {}]}, None, "text", [], odd, 0]
    append_json(log, odd, [(stream, odd, json.dumps(data)) for data in kinds])
    log.sequence_events()
    extend(dsn, tmp_path, max_events=1000)
    assert archived(log.connection, 0).archived_position == 16
    assert_archive_is_the_log(log, tmp_path)
    # readers that identify columns by number find a renamed column
    kept = pq.read_schema(next(tmp_path.rglob("*.parquet")))
    assert [number_of(kept.field(name)) for name in COLUMNS] == list(range(1, 16))


def test_a_field_has_one_number_everywhere(log: PlatformStore, dsn: str, connect: Connect, tmp_path: Path) -> None:
    for keys in ("ab", "bc", "ac"):
        append(log, *[json.dumps(dict.fromkeys(keys, 1))] * 4)
    extend(dsn, tmp_path)
    kept = [pq.read_schema(path) for path in sorted(tmp_path.rglob("*.parquet"))]
    found = {(field.name, number_of(field)) for schema in kept for field in schema if field.name.startswith("data:")}
    names = {name for name, _ in found}
    assert {"data:a", "data:b", "data:c"} <= names
    assert len(found) == len(names) == len({number for _, number in found})
    assert all(number >= 1000 for _, number in found)

    one, other = ArchiveStore(connect()), ArchiveStore(connect())
    with one.connection.transaction():
        numbers = one.number_archive_fields([*"xyz"])
        waiting = start(lambda: other.number_archive_fields([*"zy"]))
        factories.wait_blocked(log.connection, other.connection.info.backend_pid)
    assert waiting.result(patience()) == {field: numbers[field] for field in "zy"}
    assert len({*numbers.values(), *(number for _, number in found)}) == 3 + len(found)
    assert one.number_archive_fields([]) == {}


def test_what_was_purged_stays_in_the_archive_and_the_rest_goes_on(
    log: PlatformStore, dsn: str, tmp_path: Path
) -> None:
    extend(dsn, tmp_path)
    ArchiveStore(log.connection).raise_low_water_mark(0, 9)
    ArchiveStore(log.connection).purge_events(0)
    grow(log, 3)
    # the last small file holds a purged event: the file cannot be written again, so it stays
    assert extend(dsn, tmp_path).archived_position == 13
    assert listed(log) == [(0, 4), (4, 8), (8, 10), (10, 13)]
    assert require_files(tmp_path, archived(log.connection, 0), 13) == 2  # of the events still in the log


def test_a_plan_fills_files_and_leaves_a_small_rest() -> None:
    plans: list[tuple[int, bool, list[tuple[int, int]]]] = [
        (0, True, []), (9, False, []), (9, True, [(0, 9)]), (10, False, [(0, 10)]),
        (205, False, [(0, 100), (100, 200)]), (205, True, [(0, 100), (100, 200), (200, 205)]),
    ]  # fmt: skip
    for mark, tail, expected in plans:
        held = ArchivedPartition(uuid4(), 3, 0, 0, mark, ())
        ranges = plan(held, max_events=100, min_events=10, tail=tail)
        assert [(r.partition, r.from_position, r.to_position) for r in ranges] == [(3, *pair) for pair in expected]


# Killed, at once, torn, foreign


KILLED_AT = {
    "while a file is written": "archive_files.os.fsync = die",
    "before a file is listed": "ArchiveStore.list_archive_file = die",
    "after files are listed": "ArchiveStore.list_archive_file = after(ArchiveStore.list_archive_file)",
}


@pytest.mark.parametrize("point", KILLED_AT)
def test_killed_anywhere_the_next_run_sweeps(log: PlatformStore, dsn: str, tmp_path: Path, point: str) -> None:
    extend(dsn, tmp_path, max_events=4)
    grow(log, 7)
    killed = f"""
import os, signal
from pathlib import Path
from millrace.archive import writer as archive
from millrace.archive import files as archive_files
from millrace.archive.store import ArchiveStore
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def after(work):
    def wrapped(*a, **k):
        work(*a, **k)
        die()
    return wrapped
{KILLED_AT[point]}
archive.archive_partition({dsn!r}, Path({str(tmp_path)!r}), 0, max_events=4, min_events=4, tail=True)
"""
    replaced = tmp_path / path_of(LogRange(0, 8, 10))
    os.utime(replaced, (0, 0))  # it was written long ago
    done = subprocess.run([sys.executable, "-c", killed], cwd=PROJECT, timeout=patience(), check=False)
    assert done.returncode == -signal.SIGKILL
    assert_archive_is_the_log(log, tmp_path)
    # a reader that planned to read the replaced file still finds it
    wait_until(lambda: not archive_partition(dsn, tmp_path, 0, max_events=4, min_events=4).busy, "the lock is free")
    assert replaced.exists()
    extend(dsn, tmp_path)
    extend(dsn, tmp_path)
    assert listed(log) == files(tmp_path) == [(0, 4), (4, 8), (8, 12), (12, 16), (16, 17)]
    assert_archive_is_the_log(log, tmp_path)


def test_of_several_archivers_one_works(log: PlatformStore, dsn: str, tmp_path: Path, connect: Connect) -> None:
    other = PlatformStore(connect())
    assert ArchiveStore(other.connection).lock_archive(0, "another")
    assert extend(dsn, tmp_path).busy
    assert files(tmp_path) == listed(log) == []
    other.connection.close()
    wait_until(lambda: not archive_partition(dsn, tmp_path, 0, min_events=100).busy, "the lock is free")
    reports = [r.result() for r in at_once([lambda: extend(dsn, tmp_path, max_events=2) for _ in range(4)])]
    assert sum(report.written for report in reports) == 10
    assert [report.written for report in reports if report.busy] == [0] * sum(report.busy for report in reports)
    assert listed(log) == files(tmp_path)
    assert_archive_is_the_log(log, tmp_path)


def test_archiving_beside_appends_misses_none(log: PlatformStore, dsn: str, tmp_path: Path, connect: Connect) -> None:
    def produce() -> None:
        store = PlatformStore(connect())
        for _ in range(20):
            grow(store, 3)

    def follow() -> None:
        for _ in range(10):
            extend(dsn, tmp_path, max_events=5)

    for result in at_once([produce, follow]):
        result.result()
    assert extend(dsn, tmp_path, max_events=5).archived_position == 70
    assert_archive_is_the_log(log, tmp_path)


@pytest.mark.usefixtures("log")
def test_what_is_not_exactly_the_range_gets_no_name(dsn: str, tmp_path: Path) -> None:
    from adbc_driver_postgresql import dbapi

    wanted = LogRange(0, 2, 6)
    with dbapi.connect(dsn) as reader, reader.cursor() as cursor:
        (batch,) = read_range(cursor, wanted)
    hole, disorder = (batch.take(pa.array(places)) for places in ([0, 1, 3], [1, 0, 2, 3]))
    late, short = batch.slice(1), batch.slice(0, len(batch) - 1)
    for batches in ([], [late], [short], [batch, batch], [hole], [disorder]):
        with pytest.raises(ArchiveDamaged, match="would not hold positions 2 to 6"):
            write_file(tmp_path, wanted, batches)
    assert files(tmp_path) == []


def test_torn_and_foreign_files_are_never_listed(log: PlatformStore, dsn: str, tmp_path: Path) -> None:
    claim_folder(tmp_path, archived(log.connection, 0).archive_id, database_name(log.database_identity()))
    folder = tmp_path / "p0000"
    folder.mkdir()
    torn = tmp_path / path_of(LogRange(0, 0, 4))
    torn.write_bytes(b"PAR1 torn")
    with pytest.raises(ArchiveDamaged, match=str(torn)):
        archive_files.require_range(torn, LogRange(0, 0, 4))
    (folder / "notes.txt").write_text("mine")
    (folder / f".x.parquet.{'a' * 32}.tmp").write_bytes(b"half")
    extend(dsn, tmp_path)
    assert listed(log) == [(0, 4), (4, 8), (8, 10)]
    assert_archive_is_the_log(log, tmp_path)
    assert sorted(path.name for path in folder.iterdir() if range_of(path.name) is None) == ["notes.txt"]


def test_a_flipped_byte_and_a_missing_file_are_found_and_named(log: PlatformStore, dsn: str, tmp_path: Path) -> None:
    extend(dsn, tmp_path)
    path = tmp_path / path_of(LogRange(0, 4, 8))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    held = archived(log.connection, 0)
    assert require_files(tmp_path, held, 4) == 1
    with pytest.raises(ArchiveDamaged, match=f"{path}.*another checksum"):
        require_files(tmp_path, held, 10)
    path.unlink()
    with pytest.raises(ArchiveDamaged, match=f"{path}.*No such file"):
        require_files(tmp_path, held, 10)


def test_a_folder_of_another_store_or_of_something_else_is_refused(
    log: PlatformStore, dsn: str, tmp_path: Path
) -> None:
    extend(dsn, tmp_path / "a")
    log.connection.execute("update event_store.archive set archive_id = gen_random_uuid()")
    with pytest.raises(ForeignArchive, match="another event store"):
        extend(dsn, tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "photo.jpg").touch()
    with pytest.raises(ForeignArchive, match=r"photo\.jpg"):
        extend(dsn, tmp_path / "b")
    assert listed(log) == [(0, 4), (4, 8), (8, 10)]


def test_a_copy_of_the_database_takes_the_folder_over_first(
    log: PlatformStore, dsn: str, tmp_path: Path, spares: Callable[[], str], postgres: EmbeddedPostgres
) -> None:
    extend(dsn, tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "p0000").iterdir()}
    copy = postgres.dsn(spares())  # test databases share the template's identity, like a loaded dump
    with psycopg.connect(copy, autocommit=True) as connection:
        register_orders(PlatformStore(connection))
        grow(PlatformStore(connection), 4)
    with pytest.raises(ForeignArchive, match="another database than this copy") as refused:
        extend(copy, tmp_path)
    marker = tmp_path / "archive.json"
    assert 'remove "database" from archive.json' in str(refused.value.hint)
    assert {path.name: path.read_bytes() for path in (tmp_path / "p0000").iterdir()} == before
    assert_archive_is_the_log(log, tmp_path)

    # like a folder made by an earlier version, or a folder of a dropped database
    marker.write_text(json.dumps({"archive": json.loads(marker.read_text())["archive"]}))
    assert extend(copy, tmp_path).written == 4
    with pytest.raises(ForeignArchive, match="another database"):
        extend(dsn, tmp_path)


def test_many_claim_an_empty_folder_at_once(log: PlatformStore, tmp_path: Path) -> None:
    mine = archived(log.connection, 0).archive_id
    for result in at_once([lambda: claim_folder(tmp_path, mine, "1/2") for _ in range(8)]):
        result.result()
    assert os.listdir(tmp_path) == ["archive.json"]  # noqa: PTH208 - hidden ones, too
