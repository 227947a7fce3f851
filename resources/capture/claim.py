"""Registering a capture as it is declared and leasing it: which of its tables can be captured, and which are stopped.

Belongs here: what is decided before anything on the source is changed. Not here: what a table may lack
(`source.readiness`), making slot and publication (`setup`).
"""

import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256

import psycopg

from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.decoding.schemas import Schema
from millrace.resources.capture.schema_changes import schema_now
from millrace.resources.capture.source.patterns import with_tables
from millrace.resources.capture.source.publication import probed_tables
from millrace.resources.capture.source.readiness import ready_tables
from millrace.resources.capture.source.slot import slot_state
from millrace.resources.capture.source.tables import keyed
from millrace.resources.capture.store import CaptureLease, CaptureStore, TableRegistration
from millrace.resources.event_store import EventStore


@dataclass(frozen=True)
class ClaimedCapture:
    """A capture that is registered and leased.

    Attributes:
        capture: What is captured now: what is declared, without the tables that are stopped.
        lease: Where it stands.
        changed: Whether it was registered otherwise before, or not at all.
        stopped: Why a declared table cannot be captured now, by its name.
        tables: What is captured, with the columns that name a row.
        oids: For each table its id, then those of its partitions.
        schemas: The columns of each table as they are now.
        looked_lsn: Where the source's log was before its tables were looked at.
        probed: What `ready_tables` need not ask the server again.
    """

    capture: Capture
    lease: CaptureLease
    changed: bool
    stopped: Mapping[str, str]
    tables: tuple[CapturedTable, ...]
    oids: tuple[tuple[int, ...], ...]
    schemas: tuple[Schema, ...]
    looked_lsn: Lsn
    probed: frozenset[str]

    def without(self, waiting: Mapping[str, str]) -> "ClaimedCapture":
        """Return what is captured without these tables, which wait: why, by their names."""
        kept = [at for at, table in enumerate(self.tables) if table.name not in waiting]
        return replace(
            self,
            capture=replace(self.capture, tables=tuple(self.capture.tables[at] for at in kept)),
            stopped={**self.stopped, **waiting},
            tables=tuple(self.tables[at] for at in kept),
            oids=tuple(self.oids[at] for at in kept),
            schemas=tuple(self.schemas[at] for at in kept),
        )


def claim(
    source: psycopg.Connection, store: CaptureStore, capture: Capture, owner: str, lease_s: int
) -> ClaimedCapture:
    """Register a capture as it is declared, and lease it.

    A table that cannot be captured now is registered as stopped, with the reason. It is left out until nothing is wrong
    with it any more, and is read anew then.

    Raises:
        NotReady: The source lacks something that concerns every table.
        InvalidCapture: A table is to be hashed, and there is no key.
        CaptureInUse: Another process has the lease.
    """
    capture = with_tables(source, capture)
    name = slot_name(store, capture.name)
    published = {table.name for table in store.captured_tables(capture.name) if table.published_xid is not None}
    ready = ready_tables(
        source,
        capture,
        has_slot=slot_state(source, name) is not None,
        probed=probed_tables(source, name),
        published=published,
    )
    registrations, tables, oids, schemas = [], [], [], []
    for declared in capture.tables:
        found = ready.found.get((declared.schema, declared.table))
        table = keyed(found, declared)
        ids = () if found is None else found.oids
        registrations.append(
            TableRegistration(
                table.schema,
                table.table,
                table.stream_decider,
                table.key,
                fingerprint(capture, table, ids),
                ready.stopped.get(table.name),
            )
        )
        if found is not None and table.name not in ready.stopped:
            tables.append(table)
            oids.append(ids)
            schemas.append(schema_now(found, table))
    changed = store.register_capture(capture.name, name, name, registrations)
    lease = store.claim_capture(capture.name, owner, lease_s)
    return ClaimedCapture(
        capture=replace(capture, tables=tuple(t for t in capture.tables if t.name not in ready.stopped)),
        lease=lease,
        changed=changed,
        stopped=ready.stopped,
        tables=tuple(tables),
        oids=tuple(oids),
        schemas=tuple(schemas),
        looked_lsn=ready.looked_lsn,
        probed=ready.probed,
    )


def slot_name(store: CaptureStore, capture: str) -> str:
    """Return the name of a capture's slot and publication: no other event store has it, not even a copy of this one."""
    events = EventStore(store.connection)
    database = events.database_identity()
    store_id = f"{events.backup_cut().archive_id} {(database.system_identifier, database.database)}"
    return f"millrace_{capture}_{sha256(store_id.encode()).hexdigest()[:8]}"


def release(store: CaptureStore, lease: CaptureLease) -> None:
    """Give a lease back; if the store does not answer, it expires."""
    with suppress(psycopg.OperationalError):
        store.release_capture(lease.capture, lease.lease_token)


def fingerprint(capture: Capture, table: CapturedTable, oids: Sequence[int]) -> str:
    """Return a digest of what is captured of a table's rows, and which table it is: its partitions come and go."""
    declared = repr((table.columns, table.where, table.key, sorted(capture.actions), tuple(oids[:1])))
    if table.hidden:
        # of the key only what tells it from another one
        key = hmac.digest(table.secret(), b"millrace", "sha256") if table.hash else b""
        declared += repr((sorted(table.mask), sorted(table.hash), key))
    return sha256(declared.encode()).hexdigest()[:32]
