"""Making a capture ready, beginning it anew, removing it.

Belongs here: slot, publication and registration, in an order in which the next try repairs what a kill leaves. Not
here: the loop (`drain`), looking without repairing (`health`).

    registered -> claimed -> published -> slot made -> generation begun

A slot without a generation is left from a killed try. It is made anew: nothing was read from it.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from millrace.resources.capture.claim import ClaimedCapture, claim, fingerprint, release, slot_name
from millrace.resources.capture.declaration import ACTIONS, Capture, CapturedTable
from millrace.resources.capture.decoding.declared_names import DeclaredName
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.decoding.schemas import Schemas
from millrace.resources.capture.schema_changes import TYPES, SchemaStore, look_at_schemas
from millrace.resources.capture.source.connection import (
    SourceIdentity,
    connect_source,
    flush_lsn,
    next_xid,
    source_identity,
)
from millrace.resources.capture.source.publication import (
    drop_publication,
    ensure_publication,
    is_as_made,
    mark_probed,
    withdraw_tables,
)
from millrace.resources.capture.source.slot import BUSY_S, advance, create_slot, drop_slot, slot_state
from millrace.resources.capture.source.timelines import Timelines, read_timelines
from millrace.resources.capture.store import CaptureLease, CaptureStore, RegisteredTable
from millrace.resources.connecting import connect
from millrace.resources.errors import MillraceError, UnknownCapture

# The lease of a restart: a killed one keeps the capture from others for that long.
RESTART_LEASE_S = 30
# why a table waits that is to be published
UNPUBLISHED = "it is published once nobody has locked a table of the publication, or vacuums it"
# Enough to drop a slot. While one is made, which waits for others, the lease is extended again and again.
BEGIN_LEASE_S = 80 + int(BUSY_S)

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
        CaptureInUse: Another process has the lease.
        GapOpen: Changes are lost: the slot is gone, or it begins behind the store's last change, or the source is one
            that took over without the last changes, or somebody else changed the publication. The gap is recorded.
        TimelinesUnknown: The source does not say which way its log came.
    """
    claimed = claim(source, store, capture, owner, lease_s)
    lease = claimed.lease
    try:
        if lease.gap:
            raise _gap(store, capture)
        if lease.source_generation is None or lease.stored_lsn is None:
            ensure_publication(source, lease.publication, claimed.capture)
            generation, stored_lsn = begin(source, store, lease)
            registered = _look(source, store, claimed)
        else:
            generation = lease.source_generation
            stored_lsn = _followed(source, store, capture, lease, lease.stored_lsn)
            if lost := _loss(source, lease, stored_lsn):
                store.record_gap(capture.name, stored_lsn, None, lost)
                raise _gap(store, capture)
            claimed, registered = _go_on(source, store, claimed, stored_lsn)
        mark_probed(source, lease.publication, claimed.probed)
        schemas = SchemaStore(store.connection).captured_schemas(capture.name)
        flushed, _ = flush_lsn(source)
    except BaseException:
        release(store, lease)
        raise
    return ReadyCapture(
        capture=capture.name,
        lease_token=lease.lease_token,
        source_generation=generation,
        slot=lease.slot,
        publication=lease.publication,
        stored_lsn=stored_lsn,
        tables=claimed.tables,
        fingerprints={
            (table.schema, table.table): fingerprint(capture, table, oids)
            for table, oids in zip(claimed.tables, claimed.oids, strict=True)
        },
        xid_reference=next_xid(source),
        stopped=claimed.stopped,
        declared_names=_declared_names(claimed, registered, flushed),
        schemas=Schemas(schemas, generation, TYPES),
    )


def _followed(
    source: psycopg.Connection, store: CaptureStore, capture: Capture, lease: CaptureLease, stored_lsn: Lsn
) -> Lsn:
    """Follow the source where another server took over; return up to where this one's changes are stored.

    Raises:
        GapOpen: It is not the captured database, or lacks changes that are stored. The gap is recorded.
    """
    identity = source_identity(source)
    if (identity.system_identifier, identity.database) != (lease.system_identifier, lease.database):
        store.record_gap(capture.name, stored_lsn, None, _another(identity, lease))
        raise _gap(store, capture)
    timelines = read_timelines(source)
    known = None if lease.timelines is None else Timelines.parse(lease.timelines)
    if timelines == known:
        return stored_lsn
    common = known.common(timelines) if known else None
    # What no event says may have been read by a backfill nevertheless: then there is no telling that nothing is stored.
    if common is None or common >= stored_lsn or set(capture.actions) == set(ACTIONS):
        followed = store.follow_timelines(capture.name, lease.lease_token, str(timelines), common)
        if followed is not None:
            return followed
    store.record_gap(
        capture.name,
        common,
        stored_lsn,
        f"Another server took over at {common}, without what was captured from there to {stored_lsn}: the source's log came"
        f" through timelines {timelines}; captured were {known}.",
    )
    raise _gap(store, capture)


def _go_on(
    source: psycopg.Connection, store: CaptureStore, claimed: ClaimedCapture, stored_lsn: Lsn
) -> tuple[ClaimedCapture, list[RegisteredTable]]:
    """Publish what is declared now, with the slot that there is; return what is captured, and what is registered.

    Raises:
        GapOpen: A table that was published before is not published as declared any more. The gap is recorded.
    """
    capture, lease = claimed.capture, claimed.lease
    registered = _look(source, store, claimed)
    # Tables that were registered since the last run, or are read anew. If we are killed, the next try finds them so
    # again; their backfill, which has not begun, sees what happens to them until then.
    unpublished = {table.name for table in registered if table.published_xid is None and table.stopped_reason is None}
    if claimed.changed or unpublished or claimed.stopped:
        # Stored changes of another declaration have other numbers than the slot would give now, so they cannot be
        # compared with a replay. Skip it. A stopped table may be so since a run that was killed before this.
        advance(source, lease.slot, stored_lsn)
    if claimed.stopped:
        withdraw_tables(source, lease.publication, capture)
    try:
        with source.transaction():
            lost = sorted((ensure_publication(source, lease.publication, capture) or frozenset()) - unpublished)
            if lost:
                # before the repair commits: after it nothing shows that there was a gap
                store.record_gap(
                    capture.name,
                    stored_lsn,
                    None,
                    f"Publication {lease.publication} was changed or dropped by somebody else: {', '.join(lost)}.",
                )
    except psycopg.errors.LockNotAvailable:
        if not is_as_made(source, lease.publication):
            raise
        # The publication stays as it is for this run. Somebody has locked a table of it, which keeps those from being
        # captured that are to be published, and no others.
        return claimed.without(dict.fromkeys(unpublished, UNPUBLISHED)), registered
    if lost:
        raise _gap(store, capture)
    if unpublished:
        # Ask for the id after the publication has changed: older transactions may not have noticed the change.
        store.publish_tables(capture.name, lease.lease_token, next_xid(source))
        registered = store.captured_tables(capture.name)
    return claimed, registered


def _look(source: psycopg.Connection, store: CaptureStore, claimed: ClaimedCapture) -> list[RegisteredTable]:
    found = list(zip(claimed.tables, claimed.oids, claimed.schemas, strict=True))
    return look_at_schemas(source, store, claimed.lease, claimed.looked_lsn, found)


def _declared_names(
    claimed: ClaimedCapture, registered: Sequence[RegisteredTable], flushed: Lsn
) -> dict[int, DeclaredName]:
    """Return `ReadyCapture.declared_names`: a backfill that has not begun will see all that was done before now."""
    unread = {
        (table.schema_name, table.table_name)
        for table in registered
        if table.backfill_generation is None and table.backfill_key is None and not table.rows_read
    }
    return {
        oids[0]: DeclaredName(
            table.name,
            since=flushed if (table.schema, table.table) in unread else Lsn(0),
            seen=claimed.looked_lsn,
        )
        for table, oids in zip(claimed.tables, claimed.oids, strict=True)
        if oids
    }


def begin(source: psycopg.Connection, store: CaptureStore, lease: CaptureLease) -> tuple[int, Lsn]:
    """Make a slot and begin a generation with it; return the generation's number and the position where it starts."""
    identity, timelines = source_identity(source), str(read_timelines(source))
    drop_slot(source, lease.slot)
    start = create_slot(source, lease.slot, _Waiting(store, lease))
    generation = store.begin_generation(
        lease.capture,
        lease.lease_token,
        identity.system_identifier,
        identity.database,
        start,
        next_xid(source),
        timelines,
    )
    return generation, start


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


def restart(dsn: str, capture: Capture, reason: str) -> int:
    """Restart a capture: with a new slot, and a backfill of every table that also finds the rows that are gone.

    The stored changes become events first. If it is killed anywhere, call it again. Return the new generation.

    Raises:
        CaptureInUse: Another process captures: stop it first.
    """
    with _both(dsn, capture) as (source, store):
        claimed = claim(source, store, capture, f"restart by process {os.getpid()}", RESTART_LEASE_S)
        lease = claimed.lease
        try:
            store.restart_capture(capture.name, reason)
            while store.emit_changes(capture.name, lease.lease_token).behind:
                store.extend_capture(capture.name, lease.lease_token, RESTART_LEASE_S)
            ensure_publication(source, lease.publication, claimed.capture)
            store.extend_capture(capture.name, lease.lease_token, BEGIN_LEASE_S)
            return begin(source, store, lease)[0]
        finally:
            release(store, lease)


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


def _loss(source: psycopg.Connection, lease: CaptureLease, stored_lsn: Lsn) -> str | None:
    """Return why the slot cannot go on where the store is, a sentence; None if it can."""
    flushed, _ = flush_lsn(source)
    if flushed < stored_lsn:
        return f"The source was set back to an earlier time: its log ends at {flushed}; stored is {stored_lsn}."
    state = slot_state(source, lease.slot)
    if state is None:
        return f"There is no slot {lease.slot} any more."
    if state.lost:
        return f"Slot {lease.slot} is lost: {state.lost}."
    if state.confirmed_flush_lsn is None or state.confirmed_flush_lsn > stored_lsn:
        return f"Slot {lease.slot} was moved to {state.confirmed_flush_lsn} by somebody else; stored is {stored_lsn}."
    return None


def _another(identity: SourceIdentity, lease: CaptureLease) -> str:
    return (
        f"The source is database {identity.database} of cluster {identity.system_identifier}; the slot was made in"
        f" {lease.database} of {lease.system_identifier}."
    )


def _gap(store: CaptureStore, capture: Capture) -> GapOpen:
    gap = store.capture_gaps(capture.name)[0]
    lost = f"from {gap.from_lsn}" + (f" to {gap.to_lsn}" if gap.to_lsn is not None else "")
    return GapOpen(
        f"Capture {capture.name} lacks changes of its source.",
        detail=f"since {gap.detected_at:%Y-%m-%d %H:%M:%S} UTC, {lost}: {gap.reason}",
        hint=f"Correct the source if it is the wrong one; then: millrace capture restart {capture.name} --reason WHY",
    )
