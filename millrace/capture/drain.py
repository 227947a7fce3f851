"""The loop of a capture: slot -> wal_events -> events, and the backfills between.

A killed step is done again:

| killed after                  | on disk      | next time                                                     |
|-------------------------------|--------------|---------------------------------------------------------------|
| some rows were copied         | nothing      | the slot gives them again                                     |
| `store_changes`               | `wal_events` | the slot gives them again; they are compared, and not stored  |
| the slot was advanced         | `wal_events` | `emit_changes` resumes where it was                           |
| some chunks of a backfill     | their events | the next chunk                                                |

One process at a time holds a capture's lease; each of its transactions is fenced by the lease's token.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from math import inf
from types import TracebackType
from typing import Self

from millrace.capture.backfill import Backfill
from millrace.capture.declaration import Capture
from millrace.capture.decoding.arriving import Arriving
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.changed_rows import TableUnfit
from millrace.capture.decoding.changes import ChangeDecoder
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.emitter import Emitter
from millrace.capture.prepare import prepare, schedule_reread
from millrace.capture.schema_changes import SchemaStore, schemas_json
from millrace.capture.sealing import sealer_of
from millrace.capture.source.connection import connect_source, flush_lsn, next_xid
from millrace.capture.source.published import published_tables
from millrace.capture.source.slot import PublicationMissing, SlotLost
from millrace.capture.source.stream import NotText, SlotStream, Stopped
from millrace.capture.store import CaptureStore, find_capture
from millrace.errors import ChangesDiffer
from millrace.patience import BUSY_S, FAREWELL_S, GLANCE_S, PAUSE_S
from millrace.postgres import connecting
from millrace.postgres.sessions import require_own_session

LEASE_S = 30
# Changes after which the drain turns to the backfills, even if more changes wait
MOST_CHANGES = 50_000
# Messages stored in one transaction, at least: this many changes are decoded before the first becomes an event
PIECE = 10_000
# Events of one transaction, in which the capture's row is locked
EMIT = 5_000
# Replayed changes compared at a time, and about how many characters
COMPARE = 1_000
COMPARE_CHARACTERS = 8_000_000
# Rows of wal_events purged at a time
PURGE = 10_000
# Steps begin at least this far apart: the changes that come meanwhile are stored in one transaction
STEP_S = 0.01
# How often an idle slot is moved on past the WAL of other tables
IDLE_ADVANCE_S = PAUSE_S


@dataclass
class CaptureReport:
    """What a capture did.

    Attributes:
        stored: Changes that were stored.
        replayed: Changes that the slot gave again: compared, and not stored.
        emitted: Changes that became events, and the deletions that a truncation stands for.
        quarantined: Changes that could not become events, and those that wait behind them.
        backfilled: Rows of backfills that became events.
        unchanged: Rows of backfills that match their streams, and made no event.
        busy_s: How long it worked, in seconds.
    """

    stored: int = 0
    replayed: int = 0
    emitted: int = 0
    quarantined: int = 0
    backfilled: int = 0
    unchanged: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True)
class StoredPiece:
    """The outcome of storing a piece of what the slot gives.

    Attributes:
        to_lsn: Up to where the slot may discard everything; None to leave it where it is.
        stored: Changes that were stored.
        rereads: Tables that are to be read anew.
    """

    to_lsn: Lsn | None
    stored: int
    rereads: int


class CaptureDrain:
    """One process of a capture, from its claim to its release; a context manager.

    Args:
        dsn: The event store.
        capture: The declaration.
        owner: The name of the lease's holder, such as a run's id.
        lease_s: How long the lease lasts without renewal, in seconds.
        stop: Once set, ends calls that get no answer.

    Raises:
        CaptureInUse: Another process captures it.
        NotReady: The source lacks something; the text says what, and how to give it.
        GapOpen: Changes of the source are lost.
        SessionsShared: The store is reached through a pooler in transaction mode.
        InvalidSetting, Malformed, KeyGone: There are no keys to seal personal columns with, or not those of the store.
    """

    def __init__(
        self,
        dsn: str,
        capture: Capture,
        owner: str,
        *,
        lease_s: int = LEASE_S,
        stop: threading.Event | None = None,
    ) -> None:
        self.capture = capture
        self.report = CaptureReport()
        self._dsn = dsn
        self._owner = owner
        self._lease_s = lease_s
        self._interrupt = stop
        self._opened = ExitStack()
        self._stream: SlotStream | None = None

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._sealer = sealer_of(self.capture)
            self._source = opening.enter_context(connect_source(self.capture.source(), self._interrupt))
            self._control = opening.enter_context(self._connect())
            info = find_capture(self._control, self.capture.name)
            before = published_tables(self._source, info.publication if info else "")
            self._ready = prepare(self._source, self._control, self.capture, self._owner, self._lease_s)
            opening.callback(self._release)
            self._published = published_tables(self._source, self._ready.publication).since(before)
            # before the lease is released: the next owner finds the slot free
            opening.callback(self._end_stream)
            self._control.end_capture_sessions(self.capture.name, self._ready.lease_token)
            # one connection to store with, and one to append events with at the same time
            self._storing = opening.enter_context(self._work())
            self._emitting = opening.enter_context(self._work())
            self._backfill = Backfill(self._source, self._control, self._ready)
            self._opened = opening.pop_all()
        self._token = self._ready.lease_token
        self._stored_lsn = self._ready.stored_lsn
        self._stop, self._failed = threading.Event(), threading.Event()
        self._extended_at = self._idle_at = self._began_at = time.monotonic()
        self._next_check_at = self._began_at + PAUSE_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    @property
    def stopped(self) -> Mapping[str, str]:
        """Why declared tables are not captured, with the remedies, by their names."""
        return self._ready.stopped

    @contextmanager
    def _connect(self, name: str = "millrace") -> Iterator[CaptureStore]:
        with connecting.connect(self._dsn, answer_s=connecting.ANSWER_S, stop=self._interrupt) as connection:
            require_own_session(connection, self._dsn)
            connection.execute("select set_config('application_name', %s, false)", (name,))
            connection.execute("set default_transaction_isolation = 'read committed'")
            # a former owner's session may still lock rows
            connection.execute("select set_config('lock_timeout', %s, false)", (f"{BUSY_S}s",))
            yield CaptureStore(connection, sealer=self._sealer)

    @contextmanager
    def _work(self) -> Iterator[CaptureStore]:
        """Open a session that the next owner ends if it hangs while the rows that it copied are locked."""
        with self._connect(f"millrace capture {self.capture.name}") as store:
            store.join_capture(self.capture.name, self._ready.lease_token)
            yield store

    def _release(self) -> None:
        # over its own connection: one that was interrupted in a statement cannot release anything
        with (
            suppress(*connecting.PASSING),
            connecting.connect(self._dsn, answer_s=FAREWELL_S) as connection,
        ):
            CaptureStore(connection).release_capture(self.capture.name, self._ready.lease_token)

    def drain(
        self,
        *,
        budget_s: float,
        idle_s: float,
        stop: threading.Event | None = None,
        on_step: Callable[[CaptureReport], None] = lambda _: None,
    ) -> CaptureReport:
        """Capture until no change came for `idle_s`, `budget_s` is used up, or `stop` is set; return the report.

        Raises:
            SlotLost: The slot is gone, or is no longer good. The gap is recorded.
            PublicationMissing: The publication is gone, or was for a while. The gap is recorded.
            ChangesDiffer: The slot gives other changes than those that are stored.
            LeaseLost: Another process has taken the capture over.
            TableUnfit, TableRenamed: A table changed and has to be looked at anew; the next run does that.
        """
        self._stop, self._failed = stop or threading.Event(), threading.Event()
        started = busy_at = time.monotonic()
        handled = 0
        # stored changes become events while the next ones are decoded
        with Emitter(self.emit, lambda: self._extend_lease(self._emitting), self._lease_s / 3) as emitter:
            # changes that the previous process stored
            emitter.hand_over()
            while not self._stop.is_set() and time.monotonic() - started < budget_s:
                began = time.monotonic()
                try:
                    new_changes = self.store(emitter.hand_over)
                    backfilled = self.backfill(emitter.wait)
                    emitting = not emitter.wait(0 if new_changes or backfilled else GLANCE_S)
                    self._extend_lease(self._control)
                    if self._must_prepare_anew():
                        # the next preparation of the capture finds what changed, and what follows from that
                        break
                    handled, before = self.report.emitted + self.report.quarantined, handled
                    if new_changes or backfilled or emitting or handled > before:
                        busy_at = time.monotonic()
                        self.report.busy_s += busy_at - began
                        on_step(self.report)
                        self._stop.wait(max(0.0, began + STEP_S - busy_at))
                    elif time.monotonic() - busy_at >= idle_s:
                        break
                    else:
                        self._wait()
                except Stopped:
                    # the next run gets that transaction again
                    break
                except (SlotLost, PublicationMissing) as lost:
                    self._control.record_gap(self.capture.name, self._stored_lsn, None, str(lost))
                    raise
                except TableUnfit as unfit:
                    self._failed.set()
                    # fails if the lease is lost: only its owner may stop a table
                    self._control.extend_capture(self.capture.name, self._token, self._lease_s)
                    schedule_reread(self._control, self._ready.admitted, [unfit.table], str(unfit.detail))
                    raise
                except BaseException:
                    # whatever the error is, the emitter does not continue without us; the caller may drain again
                    self._failed.set()
                    raise
        self.purge()
        return self.report

    def _must_prepare_anew(self) -> bool:
        """Check the published tables now and then; return whether the capture must be prepared anew for them."""
        now = time.monotonic()
        if now < self._next_check_at:
            return False
        found = published_tables(self._source, self._ready.publication)
        checked_at = time.monotonic()
        # at most a fiftieth of the time: a check of hundreds of tables takes tens of milliseconds
        self._next_check_at = checked_at + max(PAUSE_S, (checked_at - now) / 0.02)
        return found.is_another(self._published) or (bool(found.refused) and now - self._began_at >= BUSY_S)

    def store(self, on_stored: Callable[[], object] = lambda: None) -> int:
        """Store what the source has committed by now, or enough of it, piece by piece; return the number of changes.

        Args:
            on_stored: Called after each piece that has changes.

        Raises:
            Stopped: It must stop, and a transaction lasts longer than a moment.
        """
        changed = rereads = 0
        # the time first: every commit that a client knew of by then is below the position
        flushed, at = flush_lsn(self._source)
        with self._reading():
            stream = self._opened_stream()
            while True:
                # over a connection of its own: the key of a new person is kept even if this transaction is not
                arriving = Arriving(self._decoder, stream.messages(flushed, self._stop), self._control.seal_changes)
                try:
                    piece = self._store_piece(arriving, stream, flushed, at)
                except NotText:
                    if not stream.converted:
                        raise
                    # resume where the store is, as far as this look goes
                    self._close_stream()
                    stream = self._opened_stream(converted=False)
                    continue
                changed += arriving.changed
                rereads += piece.rereads
                if piece.to_lsn is not None:
                    # only now: the slot discards everything that it is advanced past, and all of that is stored
                    stream.advance(piece.to_lsn)
                if piece.stored:
                    on_stored()
                if stream.passed_lsn >= flushed or changed >= MOST_CHANGES or self._stop.is_set():
                    break
            if not stream.converted:
                self._end_stream()
        if rereads:
            # if we are killed before this, the next run finds that these tables are due
            self._control.publish_tables(self.capture.name, self._token, next_xid(self._source))
            self._backfill.refresh()
        return changed

    def _store_piece(self, arriving: Arriving, stream: SlotStream, flushed: Lsn, at: datetime) -> StoredPiece:
        """Store the next whole transactions of the source in one transaction of the store.

        Args:
            arriving: The changes that the slot gives.
            stream: The stream that they come from.
            flushed: How far the source's log was flushed when the look into the slot began.
            at: The time of that.
        """
        changes = self._not_stored(arriving.piece(PIECE))
        first = next(changes, None)
        if first is None and not arriving.messages and not self._is_idle_due(stream.passed_lsn):
            return StoredPiece(None, 0, 0)
        copied = rereads = 0
        with self._storing.connection.transaction():
            if first is not None:
                copied = self._storing.copy_changes(self._ready.source_generation, chain([first], changes))
            if schemas := self._ready.schemas.take_new():
                rereads = SchemaStore(self._storing.connection).keep_schemas(
                    self.capture.name, self._token, flushed, schemas_json(schemas)
                )
            # the stream may have advanced meanwhile without another change
            to_lsn = stream.passed_lsn
            # all that had committed by `at`, or only up to the last change
            stored_at = at if to_lsn >= flushed else arriving.committed_at
            if to_lsn > self._stored_lsn and stored_at is not None:
                stored = self._storing.store_changes(self.capture.name, self._token, to_lsn, stored_at)
                if stored != copied:
                    raise ChangesDiffer(
                        "wal_events has other rows than those that were copied",
                        detail=f"capture {self.capture.name}: {copied} copied, {stored} found below {to_lsn}",
                        hint="Nothing was stored. Only the capture may write there.",
                    )
        if stored_at is not None:
            self._stored_lsn = max(self._stored_lsn, to_lsn)
        self.report.stored += copied
        return StoredPiece(min(to_lsn, self._stored_lsn), copied, rereads)

    def _opened_stream(self, *, converted: bool = True) -> SlotStream:
        """Return the slot's reader; a new one gets a new decoder, because the server describes each table anew."""
        if self._stream is None:
            # fails if the lease is lost: only its owner may take the slot over
            self._control.extend_capture(self.capture.name, self._token, self._lease_s)
            ready = self._ready
            self._stream = SlotStream(
                self._source, ready.slot, ready.publication, converted=converted, takes_over=True, stop=self._interrupt
            )
            self._decoder = ChangeDecoder(
                ready.tables,
                ready.capture,
                ready.source_generation,
                ready.xid_reference,
                ready.declared_names,
                ready.schemas,
                self._stored_lsn,
            )
        return self._stream

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """After an error, read anew: everything received and not stored comes again."""
        try:
            yield
        except BaseException:
            self._close_stream()
            raise

    def _wait(self) -> None:
        with self._reading():
            self._opened_stream().wait(GLANCE_S)

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.end()
        self._close_stream()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def emit(self) -> None:
        """Append the stored changes as events."""
        behind = True
        while behind and not (self._stop.is_set() or self._failed.is_set()):
            result = self._emitting.emit_changes(self.capture.name, self._token, EMIT)
            self.report.emitted += result.emitted
            self.report.quarantined += result.quarantined + result.held
            behind = result.behind
            self._extend_lease(self._emitting)

    def backfill(self, await_emitted: Callable[[], object]) -> bool:
        """Do the next part of a backfill that is due; return whether there was anything to do.

        Args:
            await_emitted: Returns once all stored changes are emitted.
        """
        step = self._backfill.step(self._stored_lsn, await_emitted)
        self.report.backfilled += step.appended
        self.report.unchanged += step.unchanged
        self.report.quarantined += step.held
        return step.worked

    def catch_up(self, to_lsn: Lsn) -> None:
        """Store and emit all that the source committed below a position that is flushed to its disk."""
        self._idle_at = -inf  # moves the slot there even if no change came
        while self._stored_lsn < to_lsn:
            self.store()
        self.emit()

    def purge(self) -> int:
        """Remove the emitted changes that `wal_events` has kept for `keep_days`; return how many."""
        before = datetime.now(UTC) - timedelta(days=self.capture.keep_days)
        removed = 0
        while not self._stop.is_set():
            batch_removed = self._control.purge_wal_events(self.capture.name, before, PURGE)
            removed += batch_removed
            if batch_removed < PURGE:
                break
        return removed

    def _not_stored(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Pass on the changes that are not stored yet; compare the others with what is stored."""
        replayed: list[Change] = []
        size = 0
        for change in changes:
            if change.commit_lsn >= self._stored_lsn:
                yield change
                continue
            replayed.append(change)
            size += len(change.data or "")
            if len(replayed) == COMPARE or size >= COMPARE_CHARACTERS:
                self._compare(replayed)
                replayed, size = [], 0
        if replayed:
            self._compare(replayed)

    def _compare(self, changes: list[Change]) -> None:
        self.report.replayed += self._control.compare_changes(self.capture.name, changes)

    def _is_idle_due(self, passed: Lsn) -> bool:
        """Return whether to advance to the slot's position although no change of ours came."""
        if passed <= self._stored_lsn:
            return False
        if not self._backfill.waits_for_changes and time.monotonic() - self._idle_at < IDLE_ADVANCE_S:
            return False
        self._idle_at = time.monotonic()
        return True

    def _extend_lease(self, store: CaptureStore) -> None:
        if time.monotonic() - self._extended_at >= self._lease_s / 3:
            store.extend_capture(self.capture.name, self._token, self._lease_s)
            self._extended_at = time.monotonic()
