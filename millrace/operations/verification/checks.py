"""Checks a whole store: whether its promises about its log, its views and its archive hold.

Each call is its own statement, of bounded size: no snapshot is held for the whole run.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from millrace.archive.files import require_checksum
from millrace.archive.folder import require_folder
from millrace.archive.history import require_whole
from millrace.archive.listing import archived
from millrace.errors import ArchiveDamaged, ForeignArchive, LogIncomplete
from millrace.event_store.platform import PlatformStore
from millrace.operations.verification.store import Checked, VerificationStore

# about a second's work, and a few megabytes of Postgres' memory
PIECE = 20_000

RESTORE = "Something but Millrace changed the tables, or a disk did: restore a backup from before that."
# by kind: the fault, and the remedy
KINDS: Mapping[str, tuple[str, str]] = {
    "positions_missing": ("The log has a gap", RESTORE),
    "event_missing": ("A position of the log has no event", RESTORE),
    "not_sequenced": (
        "The sequencer passed over an event, and no consumer gets it",
        "As the role that migrated, let the next call sequence what has no position:"
        " update event_store.sequencer set cluster = 0",
    ),
    "wrong_partition": ("An event is in another log partition than its stream", RESTORE),
    "version_missing": ("A stream lacks the version before an event", RESTORE),
    "chain_broken": ("An event's previous_id is not the event before it", RESTORE),
    "order_inverted": ("An event comes before the one that it follows", RESTORE),
    "after_final": ("An event follows the final one of its stream", RESTORE),
    "checkpoint_without_view": (
        "A checkpoint is of no view",
        "As the role that migrated, delete it from event_store.checkpoints.",
    ),
    "lock_without_view": (
        "A lock is of no view",
        "As the role that migrated, delete it from event_store.stream_locks.",
    ),
    "checkpoint_missing": (
        "A view gets nothing of a log partition, for want of a checkpoint",
        "Register the view anew (millrace view remove), or its read model (millrace view reset).",
    ),
    "checkpoint_beyond_log": (
        "A view would pass over the next events",
        "Move it (millrace view seek), or build the read model anew (millrace view reset).",
    ),
    "mark_beyond_log": ("A recorded moment is after the end of the log", RESTORE),
    "archive_beyond_log": ("More is archived than the log had", RESTORE),
    "model_without_view": ("A version of a read model has no view", "Build it anew: millrace view reset MODEL"),
}


@dataclass(frozen=True)
class BrokenPromise:
    """A promise that does not hold: its kind, and a text with the fault, its place and the remedy."""

    kind: str
    text: str


@dataclass
class Report:
    """The extent and the faults of a verification.

    Attributes:
        positions: How many positions of the log.
        events: How many events.
        checkpoints: How many checkpoints and locks.
        files: How many files of the archive.
        damaged: For each damaged file, its log partition.
        models: How many read models, one log partition each.
        rows: How many rows of these were compared.
        found: How many faults there are.
        faults: The first of each kind.
        passed_over: What could not be checked, and why.
        stopped: Whether the run was stopped before its end.
    """

    positions: int = 0
    events: int = 0
    checkpoints: int = 0
    files: int = 0
    damaged: list[int] = field(default_factory=list)
    models: int = 0
    rows: int = 0
    found: int = 0
    faults: list[BrokenPromise] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    stopped: bool = False

    def add(self, kind: str, text: str) -> None:
        """Record a fault."""
        self.found += 1
        self.faults.append(BrokenPromise(kind, text))

    def note(self, checked: Checked) -> int:
        """Record the faults that a call found, at most twenty of a kind; return how much it checked."""
        self.found += checked.found
        for kind, place in checked.faults:
            what, remedy = KINDS[kind]
            if sum(fault.kind == kind for fault in self.faults) < 20:
                self.faults.append(BrokenPromise(kind, f"{what}: {place}. {remedy}"))
        return checked.looked


@dataclass(frozen=True)
class Watcher:
    """Is told of the progress of a run, and stops it.

    Attributes:
        checking: Called now and then with the subject of the current check.
        checked: Called at the end of each check.
        stop: Set to end the run.
    """

    checking: Callable[[str], None] = lambda _text: None
    checked: Callable[[str], None] = lambda _text: None
    stop: threading.Event = field(default_factory=threading.Event)


def check_log(connection: psycopg.Connection, report: Report, watcher: Watcher) -> None:
    """Check all positions, and all events."""
    store = VerificationStore(connection)
    for available in PlatformStore(connection).available_offset_range():
        for checked in _pieces(
            partial(store.verify_positions, available.partition), available.earliest_position, watcher
        ):
            report.positions += report.note(checked)
            watcher.checking(
                f"Log partition {available.partition}: position {checked.reached:,} of {available.high_water_mark:,}"
            )
    watcher.checked(f"{report.positions:,} positions of the log")
    for checked in _pieces(store.verify_events, 0, watcher):
        report.events += report.note(checked)
        watcher.checking(f"{report.events:,} events")
    watcher.checked(f"{report.events:,} events in their streams")


def check_views(connection: psycopg.Connection, report: Report, watcher: Watcher) -> None:
    """Check the state that refers to positions of the log."""
    report.checkpoints += report.note(VerificationStore(connection).verify_views())
    watcher.checked(f"{report.checkpoints:,} checkpoints and locks of views")


def check_archive(connection: psycopg.Connection, root: Path, report: Report, watcher: Watcher) -> None:
    """Check that each listed file of the archive is there, with its size and checksum."""
    for available in PlatformStore(connection).available_offset_range():
        listed = archived(connection, available.partition)
        if not listed.files:
            continue
        try:
            require_folder(root, listed.archive_id)
        except ForeignArchive as error:
            report.add("archive_missing", str(error))
            return
        try:
            require_whole(listed)
        except LogIncomplete as error:
            # events archived elsewhere before are in no list
            if listed.files[0].range.from_position > 0:
                report.passed_over.append(str(error))
            else:
                report.add("archive_incomplete", str(error))
        for file in listed.files:
            if watcher.stop.is_set():
                return
            watcher.checking(f"Log partition {available.partition}: {file.path}")
            try:
                require_checksum(root / file.path, file.bytes, file.checksum)
            except ArchiveDamaged as error:
                # a file that was replaced in the meantime may be gone
                if file in archived(connection, available.partition).files:
                    report.add("file_damaged", str(error))
                    report.damaged.append(available.partition)
            report.files += 1
    watcher.checked(f"{report.files:,} files of the archive")


def _pieces(check: Callable[[int, int], Checked], from_: int, watcher: Watcher) -> Iterator[Checked]:
    while not watcher.stop.is_set():
        checked = check(from_, PIECE)
        if checked.reached is None:
            return
        yield checked
        if checked.looked < PIECE:
            return
        from_ = checked.reached + 1
