"""Backups and restores killed anywhere: the previous one stays whole, and the next one succeeds."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg

from millrace.backup.backup import backup
from millrace.backup.manifest import NoBackup, read_manifest
from millrace.backup.restore import restore
from millrace.event_store.platform import PlatformStore
from tests.support.backups import files, tables
from tests.support.factories import append_to, refusal
from tests.support.patience import patience
from tests.support.project import PROJECT

BACKUP_KILLED_AT = {
    "after the tables": "backup.write_log = die",
    "within the log": "log_files.write_file = second(log_files.write_file)",
    "before the manifest": "backup.write_manifest = die",
    "after the manifest": "backup._sweep = die",
}
RESTORE_KILLED_AT = {
    "after it began": "restore._load_log = die",
    "within the log": "restore._copy = second(restore._copy, 9)",
    "before it is finished": "BackupStore.finish_restore = die",
    "before the commit": "BackupStore.finish_restore = after(BackupStore.finish_restore)",
}
# each task runs in a fork that kills itself at the given point; this process has no threads
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
from millrace.backup import backup
from millrace.backup import log_files, restore
from millrace.backup.store import BackupStore
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def second(work, number=2):
    calls = []
    def wrapped(*a, **k):
        calls.append(1)
        return die() if len(calls) == number else work(*a, **k)
    return wrapped
def after(work):
    def wrapped(*a, **k):
        work(*a, **k)
        die()
    return wrapped
ends = []
for point, dsn, folder in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        try:
            exec(point)
            {"backup": backup.backup, "restore": restore.restore}[sys.argv[1]](dsn, Path(folder))
        finally:
            os._exit(1)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert ends == [-signal.SIGKILL] * len(ends), ends
"""


def killed(work: str, *pieces: tuple[str, str, Path]) -> None:
    """Back up or restore, each time until it is killed at a point."""
    told = json.dumps([(point, dsn, str(folder)) for point, dsn, folder in pieces])
    command = [sys.executable, "-c", PROGRAM, work, told]
    subprocess.run(command, cwd=PROJECT, timeout=10 * patience(), check=True)


def contents(dsn: str) -> dict[str, list[dict[str, object]]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return tables(PlatformStore(connection))


def test_a_killed_backup_is_whole(
    filled: PlatformStore, dsn: str, new_target: Callable[[], str], tmp_path: Path
) -> None:
    folders = {point: tmp_path / point for point in BACKUP_KILLED_AT}
    pieces = [(BACKUP_KILLED_AT[point], dsn, folder) for point, folder in folders.items()]
    killed("backup", *pieces)
    for point, folder in folders.items():
        if point != "after the manifest":
            refusal(NoBackup, lambda folder=folder: read_manifest(folder))  # type: ignore[misc]
        first = backup(dsn, folder)
    before = tables(filled)
    append_to(filled, "o-1", "o-2", "more")
    killed("backup", *pieces)
    filled.sequence_events()
    for point, folder in folders.items():
        finished = point == "after the manifest"
        assert read_manifest(folder).events == first.events + 3 * finished, point
        target = new_target()
        restore(target, folder)
        assert contents(target) == (tables(filled) if finished else before), point
        last = backup(dsn, folder)
        assert files(folder) == {each.path for each in last.entries}, point


def test_a_killed_restore_leaves_nothing(filled: PlatformStore, saved: Path, new_target: Callable[[], str]) -> None:
    targets = {point: new_target() for point in RESTORE_KILLED_AT}
    killed("restore", *[(RESTORE_KILLED_AT[point], target, saved) for point, target in targets.items()])
    for point, target in targets.items():
        empty = contents(target)
        there = {table: len(found) for table, found in empty.items()}
        assert there == {**dict.fromkeys(empty, 0), "partitions": 16}, point
        restore(target, saved)
        assert contents(target) == tables(filled), point
