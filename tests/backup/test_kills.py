"""Backups and restores killed anywhere: the one before is whole, and the next goes on."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.resources.backup.backup import backup
from millrace.resources.backup.manifest import Manifest, NoBackup, read_manifest
from millrace.resources.backup.restore import restore
from millrace.resources.event_store import EventStore
from millrace.resources.settings import PROJECT
from tests.support.backups import tables
from tests.support.factories import append_to, refusal

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


def killed(point: str, call: str) -> None:
    """Do it in a process that kills itself at a point."""
    program = f"""
import os, signal
from pathlib import Path
from millrace.resources.backup import backup
from millrace.resources.backup import log_files, restore
from millrace.resources.backup.store import BackupStore
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
{point}
{call}
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", BACKUP_KILLED_AT)
def test_a_backup_killed_anywhere_leaves_the_one_before_or_itself_whole_and_the_next_goes_on(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, point: str
) -> None:
    call = f"backup.backup({dsn!r}, Path({str(tmp_path)!r}))"
    killed(BACKUP_KILLED_AT[point], call)
    finished = point == "after the manifest"
    if not finished:
        refusal(NoBackup, lambda: read_manifest(tmp_path))
    first = backup(dsn, tmp_path)
    before = tables(filled)
    append_to(filled, "o-1", "o-2", "more")
    killed(BACKUP_KILLED_AT[point], call)
    assert read_manifest(tmp_path).events == first.events + 3 * finished
    restore(target, tmp_path)
    filled.sequence_events()
    assert tables(restored) == (tables(filled) if finished else before)
    last: Manifest = backup(dsn, tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")} == {
        each.path for each in last.entries
    }


@pytest.mark.parametrize("point", RESTORE_KILLED_AT)
def test_a_restore_killed_anywhere_leaves_an_empty_store_and_the_next_does_it_all(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, point: str
) -> None:
    backup(dsn, tmp_path)
    killed(RESTORE_KILLED_AT[point], f"restore.restore({target!r}, Path({str(tmp_path)!r}))")
    empty = tables(restored)
    assert {table: len(found) for table, found in empty.items()} == {**dict.fromkeys(empty, 0), "partitions": 16}
    restore(target, tmp_path)
    assert tables(restored) == tables(filled)
