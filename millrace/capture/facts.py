"""Looks at a capture's source and at the store, and changes nothing on either; `decide` makes the plan from it.

Slot and source are looked at under the lease only: the owner before may have moved them until then.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import psycopg

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.source.connection import SourceIdentity, flush_lsn, source_identity
from millrace.capture.source.patterns import fitting, with_tables
from millrace.capture.source.publication import probed_tables, withdrawn_tables
from millrace.capture.source.readiness import Readiness, check_readiness
from millrace.capture.source.slot import SlotState, slot_state
from millrace.capture.source.timelines import Timelines, TimelinesUnknown, read_timelines
from millrace.capture.store import CaptureLease, CaptureStore, RegisteredTable
from millrace.event_store.platform import PlatformStore


@dataclass(frozen=True)
class Tables:
    """What there is to capture.

    Attributes:
        declared: What is declared, with the tables that fit its patterns.
        slot: The name of its slot and of its publication.
        readiness: What there is of the tables, and what keeps them from being captured.
        withdrawn: Those that a run has taken out of the publication, since when nothing of them is captured.
    """

    declared: Capture
    slot: str
    readiness: Readiness
    withdrawn: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    """Where a leased capture stands, and its source.

    Attributes:
        lease: The lease, with what the store says of the capture.
        identity: Which database the source is.
        timelines: Which way its log came, or why it does not say so.
        flushed: Up to where its log is safe.
        slot: The capture's slot; None if there is none.
    """

    lease: CaptureLease
    identity: SourceIdentity
    timelines: Timelines | TimelinesUnknown
    flushed: Lsn
    slot: SlotState | None

    def history(self) -> Timelines:
        """Return which way the source's log came.

        Raises:
            TimelinesUnknown: It does not say so.
        """
        if isinstance(self.timelines, TimelinesUnknown):
            raise self.timelines
        return self.timelines


def read_tables(source: psycopg.Connection, store: CaptureStore, capture: Capture) -> Tables:
    """Look at what there is to capture; that needs no lease.

    Raises:
        NotReady: It declares no table, and none fits its patterns.
    """
    declared = with_tables(source, capture)
    name = slot_name(store, capture.name)
    published = {table.name for table in store.captured_tables(capture.name) if table.published_xid is not None}
    has_slot = slot_state(source, name) is not None
    probed = probed_tables(source, name)
    readiness = check_readiness(source, declared, has_slot=has_slot, probed=probed, published=published)
    return Tables(declared, name, readiness, withdrawn_tables(source, name, published))


def with_registered(capture: Capture, registered: Iterable[RegisteredTable]) -> Capture:
    """Return the capture with the tables that fitted its patterns when it ran last; the source is not asked."""
    return fitting(capture, (CapturedTable(table.table_name, table.schema_name) for table in registered))


def read_facts(source: psycopg.Connection, lease: CaptureLease) -> Facts:
    """Look at the source of a leased capture."""
    identity = source_identity(source)
    try:
        timelines: Timelines | TimelinesUnknown = read_timelines(source)
    except TimelinesUnknown as unknown:
        timelines = unknown
    # its log ends behind what a slot has given out
    flushed, _ = flush_lsn(source)
    return Facts(lease, identity, timelines, flushed, slot_state(source, lease.slot))


def slot_name(store: CaptureStore, capture: str) -> str:
    """Return the name of a capture's slot and publication: no other event store has it, not even a copy of this one."""
    events = PlatformStore(store.connection)
    database = events.database_identity()
    store_id = f"{events.backup_cut().archive_id} {(database.system_identifier, database.database)}"
    return f"millrace_{capture}_{sha256(store_id.encode()).hexdigest()[:8]}"
