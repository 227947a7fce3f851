"""The next batch is prepared while one is being stored: the state after a kill, Ctrl-C or a fault of the file."""

import gzip
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millrace.errors import ImportRefused
from millrace.event_store.platform import PlatformStore
from millrace.importer.importer import ImportProgress
from tests.support.factories import Connect
from tests.support.import_logs import TIME, assert_each_row_once_in_order, many_rows, run, stored, write_csv
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT
from tests.support.sql_calls import get_events

# prints its progress: a batch is prepared when its last row has been read
CHILD = """
import signal
import sys
from pathlib import Path
# whoever runs the tests in the background has it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
from millrace.importer import importer
from millrace.importer.imported_events import Columns
def told(*arguments):
    for number, batch in enumerate(batches(*arguments), 1):
        print(number, flush=True)
        yield batch
batches, importer._batches = importer._batches, told
log = importer.ImportedLog(Path(sys.argv[2]), "permit", Columns(("case",), "activity", ("at",)))
importer.import_events(sys.argv[1], log, batch_size=100)
"""
WAITING = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')"
ROWS = 1500
STREAMS = 7
STUCK = 13  # the batch that is blocked


@pytest.fixture
def gate(store: PlatformStore, connect: Connect) -> psycopg.Connection:
    """Open an append to the stream of row 1235, which blocks the import."""
    store.register_decider_event("permit", "step 0", "")
    gate = connect(autocommit=False)
    gate.execute(
        "select event_store.append_event('step 0', gen_random_uuid(), 'permit', 'gate', '{\"n\": -1}', gen_random_uuid(), null)"
    )
    return gate


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = many_rows(ROWS, STREAMS)
    rows[1234] = ("gate", "step 0", TIME, 1234)
    return write_csv(tmp_path / "log.csv", rows)


@pytest.fixture
def child(dsn: str, store: PlatformStore, gate: psycopg.Connection, file: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start an import; yield it when one batch waits at the store and the next one is ready."""
    assert not gate.closed
    command, pipe = [sys.executable, "-c", CHILD, dsn, str(file)], subprocess.PIPE
    with subprocess.Popen(command, cwd=PROJECT, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        told = (int(line) for line in child.stdout)
        assert [next(told) for _ in range(STUCK + 1)] == list(range(1, STUCK + 2))
        wait_until(lambda: store.connection.execute(WAITING).fetchone() == (True,), "the import waits at the store")
        yield child
        child.kill()


def assert_goes_on(dsn: str, store: PlatformStore, file: Path, there: tuple[int, ...]) -> None:
    report = run(dsn, file)
    assert report.already_there in there
    assert report.appended == ROWS - report.already_there
    numbers = [int(data["n"]) for stream, _, data in stored(store) if stream != "gate"]
    assert sorted(numbers) == [n for n in range(ROWS) if n != 1234]
    for stream in range(STREAMS):
        kept = [int(event.data["n"]) for event in get_events(store, f"c-{stream}", "permit")]
        assert kept == [n for n in range(stream, ROWS, STREAMS) if n != 1234]


def test_a_kill_between_two_batches_loses_and_doubles_nothing(
    dsn: str, store: PlatformStore, gate: psycopg.Connection, file: Path, child: "subprocess.Popen[str]"
) -> None:
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert child.stdout is not None
    assert child.stdout.read() == "", "only one batch is ready, however long the store takes"
    assert len(stored(store)) == (STUCK - 1) * 100
    gate.commit()  # the dead client's waiting batch may still be stored now; the ready one cannot
    assert_goes_on(dsn, store, file, ((STUCK - 1) * 100, STUCK * 100))


def test_ctrl_c_ends_an_import_that_waits_and_takes_its_batch_back(
    dsn: str, store: PlatformStore, gate: psycopg.Connection, file: Path, child: "subprocess.Popen[str]"
) -> None:
    child.send_signal(signal.SIGINT)
    assert child.wait(patience()) == -signal.SIGINT
    gate.commit()
    assert len(stored(store)) == (STUCK - 1) * 100 + 1
    assert_goes_on(dsn, store, file, ((STUCK - 1) * 100,))


def test_rows_before_a_damage_of_the_file_are_stored(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    plain = write_csv(tmp_path / "log.csv", many_rows(5000, 5))
    file = tmp_path / "log.csv.gz"
    file.write_bytes(gzip.compress(plain.read_bytes(), mtime=0)[:-9])
    steps: list[ImportProgress] = []
    with pytest.raises(ImportRefused, match="cannot be read"):
        run(dsn, file, batch_size=500, progress=steps.append)
    assert len(stored(store)) == steps[-1].rows > 0
    assert run(dsn, plain, source=file.name).already_there == steps[-1].rows
    assert_each_row_once_in_order(store, 5000, 5)
