"""Makes a capture ready, restarts it, removes it: looks, decides, and has `setup` act, in turn.

    registered -> claimed -> published -> slot made -> generation begun

In this order the next try repairs what a kill leaves.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg

from millrace.capture.decide import Admitted, Begin, admit, decide, decide_tables
from millrace.capture.declaration import Capture, CapturedTable, table_name
from millrace.capture.decoding.declared_names import DeclaredName
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.decoding.schemas import Schemas
from millrace.capture.facts import read_facts, read_tables, slot_name
from millrace.capture.schema_changes import TYPES, SchemaStore, update_schemas
from millrace.capture.setup import BEGIN_LEASE_S, Setup
from millrace.capture.source.connection import connect_source, flush_lsn, next_xid
from millrace.capture.source.publication import (
    drop_publication,
    mark_probed,
    withdraw_refused,
)
from millrace.capture.source.readiness import NotReady
from millrace.capture.source.slot import drop_slot, slot_state
from millrace.capture.store import CaptureStore, RegisteredTable
from millrace.errors import UnknownCapture
from millrace.postgres.connecting import connect

# The lease of a restart: after a kill, other processes wait for the capture this long.
RESTART_LEASE_S = 30


@dataclass(frozen=True)
class ReadyCapture:
    """A capture that can go on, and its lease.

    Attributes:
        capture: Its name.
        lease_token: The token of its lease.
        source_generation: The number of the slot's life.
        slot: The slot's name.
        publication: The publication's name.
        stored_lsn: All changes that the source committed below this are stored.
        tables: What is captured, with the columns that name a row.
        fingerprints: (schema, table) -> what tells this declaration of the table from others.
        admitted: What it was decided from.
        xid_reference: A transaction id of the source of about now.
        stopped: Why a declared table is not captured, by its name: what is wrong with it, and the remedy.
        declared_names: By table id. Changes of a table under another name are its own if it made them before it was
            found under its declared name, unless a backfill will see them; later ones are refused.
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
        Malformed, KeyGone: Columns are personal, and the store has no keys, or others than the sealer.
        CaptureInUse: Another process has the lease.
        GapOpen: Changes are lost, and the gap is recorded: the slot is gone, or begins behind the store's last change,
            or the source took over without the last changes, or another program changed the publication.
        TimelinesUnknown: The source does not say which way its log came.
    """
    with _claimed(source, store, capture, owner, lease_s) as setup:
        for each in setup.admitted.tables:
            if each.table.personal:
                store.require_keys(each.table.stream_decider)
        setup.apply(decide(read_facts(source, setup.lease), capture.actions))
        # before a table is published anew: its backfill waits for all transactions that commit below this LSN
        flushed, _ = flush_lsn(source)
        # A look that writes: the store tells from what it knows which tables are read anew.
        setup.registered = update_schemas(source, store, setup.lease, setup.admitted)
        setup.apply(decide_tables(setup.admitted, setup.registered, setup.stored_lsn, changed=setup.changed))
        mark_probed(source, setup.lease.publication, setup.admitted.probed)
        schemas = SchemaStore(store.connection).captured_schemas(capture.name)
        return ReadyCapture(
            capture=capture.name,
            lease_token=setup.lease.lease_token,
            source_generation=setup.generation,
            slot=setup.lease.slot,
            publication=setup.lease.publication,
            stored_lsn=setup.stored_lsn,
            tables=tuple(each.table for each in setup.admitted.tables),
            fingerprints={(t.table.schema, t.table.table): t.fingerprint for t in setup.admitted.tables},
            admitted=setup.admitted,
            xid_reference=next_xid(source),
            stopped=setup.admitted.stopped,
            declared_names=_declared_names(setup.admitted, setup.registered, flushed),
            schemas=Schemas(schemas, setup.generation, TYPES),
        )


def schedule_reread(store: CaptureStore, admitted: Admitted, tables: Collection[str], why: str) -> None:
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
        _connections(dsn, capture) as (source, store),
        _claimed(source, store, capture, f"restart by process {os.getpid()}", RESTART_LEASE_S) as setup,
    ):
        token = setup.lease.lease_token
        store.restart_capture(capture.name, reason)
        while store.emit_changes(capture.name, token).behind:
            store.extend_capture(capture.name, token, RESTART_LEASE_S)
        facts = read_facts(source, setup.lease)
        store.extend_capture(capture.name, token, BEGIN_LEASE_S)
        setup.apply((Begin(facts.identity, facts.history()),))
        setup.release()
        return setup.generation


def remove(dsn: str, capture: Capture, reason: str) -> None:
    """Remove a capture with its slot and its publication; its events stay. If it is killed anywhere, call it again.

    Raises:
        UnknownCapture: It is not registered, and left nothing on the source.
        CaptureInUse: A process captures.
    """
    with _connections(dsn, capture) as (source, store):
        try:
            (info,) = store.capture_info(capture.name)
            # The store first: it refuses while a process captures. Without its registration the rest is a leftover.
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
def _connections(dsn: str, capture: Capture) -> Iterator[tuple[psycopg.Connection, CaptureStore]]:
    with connect_source(capture.source()) as source, connect(dsn) as connection:
        yield source, CaptureStore(connection)


@contextmanager
def _claimed(
    source: psycopg.Connection, store: CaptureStore, capture: Capture, owner: str, lease_s: int
) -> Iterator[Setup]:
    """Register a capture as it is declared, and lease it; give the lease back where the body fails."""
    # the application first, whatever keeps us from capturing
    withdrawn = withdraw_refused(source, slot_name(store, capture.name))
    tables = read_tables(source, store, capture)
    admitted = admit(tables)
    if withdrawn := withdrawn | tables.withdrawn:
        schedule_reread(store, admitted, withdrawn, "the source refused updates and deletes while it was published")
    if not admitted.tables:
        raise NotReady(capture.name, tables.readiness.problems)
    changed = store.register_capture(capture.name, admitted.slot, admitted.slot, admitted.registrations)
    setup = Setup(source, store, admitted, store.claim_capture(capture.name, owner, lease_s), changed=changed)
    try:
        yield setup
    except BaseException:
        setup.release()
        raise


def _declared_names(admitted: Admitted, registered: Iterable[RegisteredTable], flushed: Lsn) -> dict[int, DeclaredName]:
    """Return `ReadyCapture.declared_names`: a backfill that has not begun will see every change before now."""
    unread = {
        (table.schema_name, table.table_name)
        for table in registered
        if table.backfill_generation is None and table.backfill_key is None and not table.rows_read
    }
    return {
        each.oids[0]: DeclaredName(
            each.table.name,
            since=flushed if (each.table.schema, each.table.table) in unread else Lsn(0),
            found_at=admitted.read_lsn,
        )
        for each in admitted.tables
    }
