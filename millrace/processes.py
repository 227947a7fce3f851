"""Processes: whether others live, waiting for their end, exclusive locks between them, private files."""

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from millrace.patience import GLANCE_S


def alive(process: psutil.Process) -> bool:
    """Return whether the very same process still runs; a zombie does not count, even if no parent ever reaps it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_ended(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all processes have ended or the time is over; return those that still live.

    Unlike `psutil.wait_procs` this does not wait for a slow init to reap orphans.
    """
    deadline = time.monotonic() + seconds
    living = [process for process in processes if alive(process)]
    while living and time.monotonic() < deadline:
        time.sleep(GLANCE_S)
        living = [process for process in living if alive(process)]
    return living


@contextmanager
def only_one(path: Path, *, held: Callable[[str], Exception] | None = None, note: str = "") -> Iterator[None]:
    """Hold the lock of a file during the block. The kernel frees the lock of a killed process.

    Args:
        path: The file; it is made if it is missing, and stays.
        held: Makes the exception to raise while another process holds the lock, from that process's note. Without it
            the call waits for the lock.
        note: The text of the file while this process holds the lock.
    """
    # never follow a link: its target would be overwritten
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(opened, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if held is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            assert held is not None
            lock.seek(0)
            raise held(lock.read().strip()) from error
        lock.seek(0)
        lock.truncate(0)
        lock.write(note)
        lock.flush()
        yield


@contextmanager
def private_files() -> Iterator[None]:
    """Make files private to this account that this process and its children make during the block."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def folder_of_code() -> Path:
    """Make a private temporary folder that is removed with this process; remove those of killed processes."""
    # a process id is valid within its container only, and containers may share the folder of temporary files
    prefix = f"millrace-code-{Path('/proc/self/ns/pid').stat().st_ino}-"
    found = [*Path(tempfile.gettempdir()).glob(f"{prefix}*")]
    # listed after the folders: so every process that has one and lives is among them
    living = {str(pid) for pid in psutil.pids()}
    for leftover in found:
        if leftover.name.removeprefix(prefix).partition("-")[0] not in living:
            shutil.rmtree(leftover, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
