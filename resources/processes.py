"""Processes: whether others live, waiting for their end, being the only one that does something, files of one's own."""

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


def alive(process: psutil.Process) -> bool:
    """Return whether the very same process still runs; a zombie does not, even if no parent ever reaps it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_ended(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all have ended or the time is over; return those that still live.

    Unlike `psutil.wait_procs` this does not wait for a slow init to reap orphans.
    """
    deadline = time.monotonic() + seconds
    living = [process for process in processes if alive(process)]
    while living and time.monotonic() < deadline:
        time.sleep(0.02)
        living = [process for process in living if alive(process)]
    return living


@contextmanager
def only_one(path: Path, *, held: Callable[[str], Exception] | None = None, note: str = "") -> Iterator[None]:
    """Hold the lock of a file during the block. The kernel frees the lock of a killed process.

    Args:
        path: The file; it is made if need be, and stays.
        held: Makes the exception to raise while another process holds the lock, from that process's note. Without it
            the call waits for the lock.
        note: The text of the file while this process holds the lock.
    """
    # never what a link names: its text would be lost
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
    """Let files that this process and its children make during the block be for this account alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
