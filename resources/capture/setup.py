"""Sets a capture up, finds out whether it can go on, begins it anew, takes it down.

Belongs here: slot, publication and registration, in an order in which a kill anywhere leaves what the next try repairs. Not here:
capturing (`capture`).

    registered -> claimed -> published -> slot made -> generation begun

A slot without a generation is a leftover of a killed try and is made anew: nothing was read from it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256

import psycopg

from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.source.publication import drop_publication, ensure_publication
from millrace.resources.capture.source.readiness import require_ready
from millrace.resources.capture.source.slot import (
    BUSY_S,
    advance,
    connect_source,
    create_slot,
    drop_slot,
    flush_lsn,
    next_xid,
    slot_state,
    source_identity,
)
from millrace.resources.capture.source.tables import table_oids, with_key
from millrace.resources.capture.store import CaptureLease, CaptureStore, RegisteredTable, TableRegistration
from millrace.resources.errors import MillraceError, UnknownCapture

# of a restart: a killed one locks nobody out for long
RESTART_LEASE_S = 30
# to drop a slot and make one, which waits for a minute at most
BEGIN_LEASE_S = 80 + int(BUSY_S)


class GapOpen(MillraceError):
    """Changes of the source are lost, and nobody has begun the capture anew yet."""


@dataclass(frozen=True)
class ReadyCapture:
    """A capture that can go on.

    Attributes:
        lease_token: The token of its lease.
        source_generation: The slot that is read.
        slot: That one's name.
        publication: What it publishes.
        stored_lsn: All that the source committed below this is stored.
        tables: What is captured, with the columns that name a row.
        fingerprints: Of each schema and table, what tells its declaration from others.
        xid_reference: A transaction id of the source of about now.
        oids: Of each table's id, its name, and from which position on it must bear that name: before, a backfill finds what happened.
    """

    lease_token: int
    source_generation: int
    slot: str
    publication: str
    stored_lsn: Lsn
    tables: tuple[CapturedTable, ...]
    fingerprints: dict[tuple[str, str], str]
    xid_reference: int
    oids: dict[int, tuple[str, Lsn]]


@dataclass(frozen=True)
class ClaimedCapture:
    """A capture that is registered and leased.

    Attributes:
        lease: Where it stands.
        changed: Whether it was registered otherwise before, or not at all.
        tables: What is captured, with the columns that name a row.
        oids: The ids of each one and of its partitions.
    """

    lease: CaptureLease
    changed: bool
    tables: tuple[CapturedTable, ...]
    oids: tuple[tuple[int, ...], ...]


def prepare(
    source: psycopg.Connection, store: CaptureStore, capture: Capture, owner: str, lease_s: int
) -> ReadyCapture:
    """Claim a capture and make whatever it lacks: its registration, its publication, the first time its slot.

    Raises:
        NotReady: The source lacks something that only its administrator can give.
        CaptureInUse: Another process has the lease.
        GapOpen: Changes are lost: the slot is gone or does not go on where the store is, or the publication was changed by somebody
            else. The gap is recorded.
    """
    claimed = claim(source, store, capture, owner, lease_s)
    lease = claimed.lease
    try:
        if lease.gap:
            raise _gap(store, capture)
        if lease.source_generation is None or lease.stored_lsn is None:
            ensure_publication(source, lease.publication, capture)
            generation, stored_lsn = begin(source, store, lease)
        else:
            generation, stored_lsn = lease.source_generation, lease.stored_lsn
            if lost := _loss(source, lease, stored_lsn):
                store.record_gap(capture.name, stored_lsn, None, lost)
                raise _gap(store, capture)
            _go_on(source, store, capture, claimed, stored_lsn)
        registered = store.captured_tables(capture.name)
        flushed, _ = flush_lsn(source)
    except BaseException:
        release(store, lease)
        raise
    return ReadyCapture(
        lease.lease_token,
        generation,
        lease.slot,
        lease.publication,
        stored_lsn,
        claimed.tables,
        {
            (table.schema, table.table): fingerprint(capture, table, oids)
            for table, oids in zip(claimed.tables, claimed.oids, strict=True)
        },
        next_xid(source),
        _named(claimed, registered, flushed),
    )


def _go_on(
    source: psycopg.Connection, store: CaptureStore, capture: Capture, claimed: ClaimedCapture, stored_lsn: Lsn
) -> None:
    """Publish what is declared now.

    Raises:
        GapOpen: Tables that are declared and registered as before were published otherwise. The gap is recorded.
    """
    lease = claimed.lease
    # killed, the next try finds them so again; what they changed until then, their backfill finds
    unpublished = {
        f"{table.schema_name}.{table.table_name}"
        for table in store.captured_tables(capture.name)
        if table.published_xid is None
    }
    with source.transaction():
        lost = sorted((ensure_publication(source, lease.publication, capture) or frozenset()) - unpublished)
        if lost:
            # before the repair can be seen: after it nobody would know
            store.record_gap(
                capture.name,
                stored_lsn,
                None,
                f"Publication {lease.publication} was changed or dropped by somebody else: {', '.join(lost)}.",
            )
    if lost:
        raise _gap(store, capture)
    if claimed.changed or unpublished:
        # what is stored was numbered by the declaration before, and cannot be compared; without a new one it is
        advance(source, lease.slot, stored_lsn)
    if unpublished:
        # asked after the publication has changed: a transaction that is older may not have noticed
        store.publish_tables(capture.name, lease.lease_token, next_xid(source))


def _named(claimed: ClaimedCapture, registered: Sequence[RegisteredTable], flushed: Lsn) -> dict[int, tuple[str, Lsn]]:
    """The name of each table's id, and since when: a backfill that has not begun will see all that was done before now."""
    unread = {
        (table.schema_name, table.table_name)
        for table in registered
        if table.backfill_generation is None and table.backfill_key is None and not table.rows_read
    }
    return {
        oids[0]: (table.name, flushed if (table.schema, table.table) in unread else Lsn(0))
        for table, oids in zip(claimed.tables, claimed.oids, strict=True)
        if oids
    }


def claim(
    source: psycopg.Connection, store: CaptureStore, capture: Capture, owner: str, lease_s: int
) -> ClaimedCapture:
    """Register a capture as it is declared, and lease it.

    Raises:
        NotReady: The source lacks something.
        CaptureInUse: Another process has the lease.
    """
    name = slot_name(store, capture.name)
    require_ready(source, capture, has_slot=slot_state(source, name) is not None)
    tables = tuple(with_key(source, table) for table in capture.tables)
    oids = tuple(table_oids(source, table.schema, table.table) for table in tables)
    changed = store.register_capture(
        capture.name,
        name,
        name,
        [
            TableRegistration(t.schema, t.table, t.stream_decider, list(t.key or ()), fingerprint(capture, t, ids))
            for t, ids in zip(tables, oids, strict=True)
        ],
    )
    return ClaimedCapture(store.claim_capture(capture.name, owner, lease_s), changed, tables, oids)


def slot_name(store: CaptureStore, capture: str) -> str:
    """The name of a capture's slot and of its publication: no other event store's, not even that of a copy of this one."""
    row = store.connection.execute(
        "select archive_id::text, system_identifier::text, current_database()"
        " from event_store.backup_cut(), pg_control_system()"
    ).fetchone()
    assert row is not None
    archive_id, *database = row
    store_id = f"{archive_id} {tuple(database)}"
    return f"millrace_{capture}_{sha256(store_id.encode()).hexdigest()[:8]}"


def release(store: CaptureStore, lease: CaptureLease) -> None:
    """Give a lease back; where the store does not answer, it expires."""
    with suppress(psycopg.OperationalError):
        store.release_capture(lease.capture, lease.lease_token)


def begin(source: psycopg.Connection, store: CaptureStore, lease: CaptureLease) -> tuple[int, Lsn]:
    """Make a slot and begin a generation with it; return its number and where it starts."""
    drop_slot(source, lease.slot)
    start = create_slot(source, lease.slot)
    identity = source_identity(source)
    generation = store.begin_generation(
        lease.capture, lease.lease_token, identity.system_identifier, identity.database, start, next_xid(source)
    )
    return generation, start


def restart(dsn: str, capture: Capture, reason: str) -> int:
    """Begin a capture anew: with a new slot, and a backfill of every table that also finds the rows that are gone.

    What is stored becomes events first. Killed anywhere, it is done again.

    Raises:
        CaptureInUse: Another process captures: stop it first.
    """
    with _both(dsn, capture) as (source, store):
        lease = claim(source, store, capture, f"restart by process {os.getpid()}", RESTART_LEASE_S).lease
        try:
            store.restart_capture(capture.name, reason)
            while store.emit_changes(capture.name, lease.lease_token).behind:
                store.extend_capture(capture.name, lease.lease_token, RESTART_LEASE_S)
            ensure_publication(source, lease.publication, capture)
            store.extend_capture(capture.name, lease.lease_token, BEGIN_LEASE_S)
            return begin(source, store, lease)[0]
        finally:
            release(store, lease)


def remove(dsn: str, capture: Capture, reason: str) -> None:
    """Remove a capture with its slot and its publication; its events stay. Killed anywhere, it is done again.

    Raises:
        UnknownCapture: It is not registered, and left nothing on the source.
        CaptureInUse: A process captures.
    """
    with _both(dsn, capture) as (source, store):
        try:
            (info,) = store.capture_info(capture.name)
            # first in the store, which refuses while somebody captures; without it the rest is a leftover
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


def fingerprint(capture: Capture, table: CapturedTable, oids: Sequence[int]) -> str:
    """Tells two declarations of a table apart, in what of its rows they capture, and two tables that are declared the same."""
    declared = repr((table.columns, table.where, table.key, sorted(capture.actions), oids))
    return sha256(declared.encode()).hexdigest()[:32]


@contextmanager
def _both(dsn: str, capture: Capture) -> Iterator[tuple[psycopg.Connection, CaptureStore]]:
    with connect_source(capture.source()) as source, psycopg.connect(dsn, autocommit=True) as connection:
        yield source, CaptureStore(connection)


def _loss(source: psycopg.Connection, lease: CaptureLease, stored_lsn: Lsn) -> str | None:
    """Why the slot does not go on where the store is; None if it does."""
    identity = source_identity(source)
    if (identity.system_identifier, identity.database) != (lease.system_identifier, lease.database):
        return (
            f"The source is database {identity.database} of cluster {identity.system_identifier}; the slot was made in"
            f" {lease.database} of {lease.system_identifier}."
        )
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


def _gap(store: CaptureStore, capture: Capture) -> GapOpen:
    gap = store.capture_gaps(capture.name)[0]
    return GapOpen(
        f"Capture {capture.name} lacks changes of its source.",
        detail=f"since {gap.detected_at:%Y-%m-%d %H:%M:%S} UTC, from {gap.from_lsn}: {gap.reason}",
        hint=f"Correct the source if it is the wrong one; then: millrace capture restart {capture.name} --reason WHY",
    )
