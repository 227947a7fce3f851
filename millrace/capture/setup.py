"""Makes a capture ready, begins it anew, removes it: does what was decided.

    registered -> claimed -> published -> slot made -> generation begun

In this order the next try repairs what a kill leaves.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import psycopg

from millrace.capture.decide import (
    UNPUBLISHED,
    Admitted,
    Begin,
    Follow,
    Lose,
    Publish,
    Refuse,
    Skip,
    Step,
    admit,
    decide,
    decide_tables,
)
from millrace.capture.declaration import Capture, CapturedTable, table_name
from millrace.capture.decoding.declared_names import DeclaredName
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.decoding.schemas import Schemas
from millrace.capture.look import look, look_at_tables, slot_name
from millrace.capture.schema_changes import TYPES, SchemaStore, look_at_schemas
from millrace.capture.source.connection import connect_source, flush_lsn, next_xid
from millrace.capture.source.publication import (
    drop_publication,
    ensure_publication,
    is_as_made,
    mark_probed,
    withdraw_refused,
)
from millrace.capture.source.readiness import NotReady
from millrace.capture.source.slot import advance, create_slot, drop_slot, slot_state
from millrace.capture.store import CaptureLease, CaptureStore, RegisteredTable
from millrace.errors import MillraceError, UnknownCapture
from millrace.patience import BUSY_S
from millrace.postgres.connecting import connect

# The lease of a restart: a killed one keeps the capture from others for that long.
RESTART_LEASE_S = 30
# Enough to publish and to drop a slot. While one is made, which waits for others, the lease is extended on and on.
BEGIN_LEASE_S = 90 + BUSY_S

logger = logging.getLogger(__name__)


class GapOpen(MillraceError):
    """Changes of the source are lost, and nobody has restarted the capture yet."""


@dataclass(frozen=True)
class ReadyCapture:
    """A capture that can go on, and its lease.

    Attributes:
        capture: Its name.
        lease_token: The token of its lease.
        source_generation: The number of the slot's life.
        slot: The slot's name.
        publication: The publication's name.
        stored_lsn: All that the source committed below this is stored.
        tables: What is captured, with the columns that name a row.
        fingerprints: (schema, table) -> what tells this declaration of the table from others.
        admitted: What it was decided from.
        xid_reference: A transaction id of the source of about now.
        stopped: Why a declared table is not captured, by its name: what is wrong with it, and the remedy.
        declared_names: By table id. What a table did under another name before it was found under its declared one is
            its own, unless a backfill will see it; what it does so after that is refused.
        schemas: Which columns the tables had in the log.
    """

    capture: str
    lease_token: int
    source_generation: int
    slot: str
    publication: str
    stored_lsn: Lsn
    tables: tuple[CapturedTable, ...]
    fingerprints: dict[tuple[str, str], str]
    admitted: Admitted
    xid_reference: int
    stopped: Mapping[str, str]
    declared_names: Mapping[int, DeclaredName]
    schemas: Schemas


def prepare(
    source: psycopg.Connection, store: CaptureStore, capture: Capture, owner: str, lease_s: int
) -> ReadyCapture:
    """Claim a capture and make what it lacks: its registration, its publication, the first time its slot.

    Raises:
        NotReady: The source lacks something that only its administrator can give.
        InvalidCapture: A table is to be hashed, and there is no key.
        CaptureInUse: Another process has the lease.
        GapOpen: Changes are lost: the slot is gone, or it begins behind the store's last change, or the source is one
            that took over without the last changes, or somebody else changed the publication. The gap is recorded.
        TimelinesUnknown: The source does not say which way its log came.
    """
    with _claimed(source, store, capture, owner, lease_s) as doing:
        doing.apply(decide(look(source, doing.lease), capture.actions))
        # before a table is published anew, so that its backfill waits for all whose commits are below it
        flushed, _ = flush_lsn(source)
        # A look that writes: the store tells from what it knows which tables are read anew.
        doing.registered = look_at_schemas(source, store, doing.lease, doing.admitted)
        doing.apply(decide_tables(doing.admitted, doing.registered, doing.stored_lsn, changed=doing.changed))
        mark_probed(source, doing.lease.publication, doing.admitted.probed)
        schemas = SchemaStore(store.connection).captured_schemas(capture.name)
        return ReadyCapture(
            capture=capture.name,
            lease_token=doing.lease.lease_token,
            source_generation=doing.generation,
            slot=doing.lease.slot,
            publication=doing.lease.publication,
            stored_lsn=doing.stored_lsn,
            tables=tuple(each.table for each in doing.admitted.tables),
            fingerprints={(t.table.schema, t.table.table): t.fingerprint for t in doing.admitted.tables},
            admitted=doing.admitted,
            xid_reference=next_xid(source),
            stopped=doing.admitted.stopped,
            declared_names=_declared_names(doing.admitted, doing.registered, flushed),
            schemas=Schemas(schemas, doing.generation, TYPES),
        )


def have_read_anew(store: CaptureStore, admitted: Admitted, tables: Collection[str], why: str) -> None:
    """Register tables of a capture as stopped: the next run that finds nothing wrong with one reads it anew."""
    stopped = [
        replace(each, stopped=why) if each.stopped is None and table_name(each.schema, each.table) in tables else each
        for each in admitted.registrations
    ]
    store.register_capture(admitted.capture.name, admitted.slot, admitted.slot, stopped)


def restart(dsn: str, capture: Capture, reason: str) -> int:
    """Restart a capture: with a new slot, and a backfill of every table that also finds the rows that are gone.

    The stored changes become events first. If it is killed anywhere, call it again. Return the new generation.

    Raises:
        CaptureInUse: Another process captures: stop it first.
    """
    with (
        _both(dsn, capture) as (source, store),
        _claimed(source, store, capture, f"restart by process {os.getpid()}", RESTART_LEASE_S) as doing,
    ):
        token = doing.lease.lease_token
        store.restart_capture(capture.name, reason)
        while store.emit_changes(capture.name, token).behind:
            store.extend_capture(capture.name, token, RESTART_LEASE_S)
        facts = look(source, doing.lease)
        store.extend_capture(capture.name, token, BEGIN_LEASE_S)
        doing.apply((Begin(facts.identity, facts.history()),))
        doing.release()
        return doing.generation


def remove(dsn: str, capture: Capture, reason: str) -> None:
    """Remove a capture with its slot and its publication; its events stay. If it is killed anywhere, call it again.

    Raises:
        UnknownCapture: It is not registered, and left nothing on the source.
        CaptureInUse: A process captures.
    """
    with _both(dsn, capture) as (source, store):
        try:
            (info,) = store.capture_info(capture.name)
            # The store first: it refuses while somebody captures. Without its registration the rest is a leftover.
            store.unregister_capture(capture.name, reason)
            slot, publication, unknown = info.slot, info.publication, None
        except UnknownCapture as error:
            slot = publication = slot_name(store, capture.name)
            unknown = error
        had_slot = slot_state(source, slot) is not None
        drop_slot(source, slot)
        had_publication = drop_publication(source, publication)
        if unknown and not (had_slot or had_publication):
            raise unknown


@contextmanager
def _both(dsn: str, capture: Capture) -> Iterator[tuple[psycopg.Connection, CaptureStore]]:
    with connect_source(capture.source()) as source, connect(dsn) as connection:
        yield source, CaptureStore(connection)


@contextmanager
def _claimed(
    source: psycopg.Connection, store: CaptureStore, capture: Capture, owner: str, lease_s: int
) -> Iterator["_Doing"]:
    """Register a capture as it is declared, and lease it; give the lease back where the body fails."""
    # the application first, whatever keeps us from capturing
    withdrawn = withdraw_refused(source, slot_name(store, capture.name))
    tables = look_at_tables(source, store, capture)
    admitted = admit(tables)
    if withdrawn := withdrawn | tables.withdrawn:
        have_read_anew(store, admitted, withdrawn, "the source refused updates and deletes while it was published")
    if not admitted.tables:
        raise NotReady(capture.name, tables.seen.problems)
    changed = store.register_capture(capture.name, admitted.slot, admitted.slot, admitted.registrations)
    doing = _Doing(source, store, admitted, store.claim_capture(capture.name, owner, lease_s), changed=changed)
    try:
        yield doing
    except BaseException:
        doing.release()
        raise


class _Doing:
    """Does the steps for a leased capture, and keeps what became of it: any of them may be the last before a kill."""

    def __init__(
        self, source: psycopg.Connection, store: CaptureStore, admitted: Admitted, lease: CaptureLease, *, changed: bool
    ) -> None:
        self.admitted = admitted
        self.lease = lease
        self.changed = changed
        self.registered: list[RegisteredTable] = []
        # none are asked for before a slot is made
        self.generation, self.stored_lsn = lease.source_generation or 0, lease.stored_lsn or Lsn(0)
        self._source = source
        self._store = store
        self._capture = lease.capture

    def apply(self, plan: Iterable[Step]) -> None:
        for step in plan:
            match step:
                case Refuse():
                    raise self._gap()
                case Lose():
                    self._lose(step)
                    raise self._gap()
                case Begin(identity, timelines):
                    anew = any(each.table.columns or each.table.where for each in self.admitted.tables)
                    ensure_publication(self._source, self.lease.publication, self.admitted.published, anew=anew)
                    drop_slot(self._source, self.lease.slot)
                    self.stored_lsn = create_slot(self._source, self.lease.slot, _Waiting(self._store, self.lease))
                    self.generation = self._store.begin_generation(
                        self._capture,
                        self.lease.lease_token,
                        identity.system_identifier,
                        identity.database,
                        self.stored_lsn,
                        next_xid(self._source),
                        str(timelines),
                    )
                case Follow(timelines, common, otherwise):
                    token = self.lease.lease_token
                    followed = self._store.follow_timelines(self._capture, token, str(timelines), common)
                    if followed is None:
                        self._lose(otherwise)
                        raise self._gap()
                    self.stored_lsn = followed
                case Skip(to_lsn):
                    advance(self._source, self.lease.slot, to_lsn)
                case Publish():
                    self._publish(step)

    def release(self) -> None:
        """Give the lease back; if the store does not answer, it expires."""
        with suppress(psycopg.OperationalError):
            self._store.release_capture(self._capture, self.lease.lease_token)

    def _publish(self, step: Publish) -> None:
        """Only the change itself tells what was lost: the server has a filter in a form of its own."""
        name = self.lease.publication
        due = [each.table for each in self.admitted.tables if each.table.name in step.due]
        anew = any(table.columns or table.where for table in due)
        try:
            with self._source.transaction():
                changed = ensure_publication(self._source, name, self.admitted.published, anew=anew)
                lost = sorted((changed or frozenset()) - step.due)
                if lost:
                    # before the repair commits: after it nothing shows that there was a gap
                    said = f"Publication {name} was changed or dropped by somebody else: {', '.join(lost)}."
                    self._lose(Lose(step.from_lsn, None, said))
        except psycopg.errors.LockNotAvailable:
            if not is_as_made(self._source, name):
                raise
            # The publication stays as it is for this run. Somebody has locked a table of it, which keeps those from
            # being captured that are to be published, and no others.
            self.admitted = self.admitted.without(step.due, UNPUBLISHED)
            return
        if lost:
            raise self._gap()
        if step.due:
            # Ask for the id after the publication has changed: older transactions may not have noticed the change.
            self._store.publish_tables(self._capture, self.lease.lease_token, next_xid(self._source))
            self.registered = self._store.captured_tables(self._capture)

    def _lose(self, lost: Lose) -> None:
        self._store.record_gap(self._capture, lost.from_lsn, lost.to_lsn, lost.reason)

    def _gap(self) -> GapOpen:
        gap = self._store.capture_gaps(self._capture)[0]
        lost = f"from {gap.from_lsn}" + (f" to {gap.to_lsn}" if gap.to_lsn is not None else "")
        return GapOpen(
            f"Capture {self._capture} lacks changes of its source.",
            detail=f"since {gap.detected_at:%Y-%m-%d %H:%M:%S} UTC, {lost}: {gap.reason}",
            hint=f"Correct the source if it is the wrong one; then: millrace capture restart {self._capture} --reason WHY",
        )


class _Waiting:
    """Keeps the lease while a slot is made, and says whom that waits for."""

    def __init__(self, store: CaptureStore, lease: CaptureLease) -> None:
        self._store, self._lease = store, lease
        self._said = ""

    def __call__(self, whom: str) -> None:
        self._store.extend_capture(self._lease.capture, self._lease.lease_token, BEGIN_LEASE_S)
        if whom != self._said:
            self._said = whom
            logger.warning("%s: slot %s waits for the end of %s", self._lease.capture, self._lease.slot, whom)


def _declared_names(admitted: Admitted, registered: Iterable[RegisteredTable], flushed: Lsn) -> dict[int, DeclaredName]:
    """Return `ReadyCapture.declared_names`: a backfill that has not begun will see all that was done before now."""
    unread = {
        (table.schema_name, table.table_name)
        for table in registered
        if table.backfill_generation is None and table.backfill_key is None and not table.rows_read
    }
    return {
        each.oids[0]: DeclaredName(
            each.table.name,
            since=flushed if (each.table.schema, each.table.table) in unread else Lsn(0),
            seen=admitted.looked_lsn,
        )
        for each in admitted.tables
    }
