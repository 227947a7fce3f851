"""Decides what a capture does before it resumes: turns the facts of `read_facts` into steps for `setup`, or a refusal.

    tables -> `admit`: which are captured, which are stopped -> leased
    slot and source -> `decide`: resume, follow another server, make a slot, or record what is lost
    registered tables -> `decide_tables`: which of them are published

Nothing here talks to a database.
"""

import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from millrace.capture.declaration import ACTIONS, Capture, CapturedTable
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.decoding.schemas import Schema
from millrace.capture.facts import Facts, Tables
from millrace.capture.schema_changes import schema_now
from millrace.capture.source.connection import SourceIdentity
from millrace.capture.source.probe import LOCKED
from millrace.capture.source.readiness import NotReady
from millrace.capture.source.tables import keyed
from millrace.capture.source.timelines import Timelines
from millrace.capture.store import RegisteredTable, TableRegistration

# why a table waits to be published
UNPUBLISHED = "it is published once no session locks or vacuums a table of the publication"


@dataclass(frozen=True)
class AdmittedTable:
    """A table that can be captured: its declaration, the columns that identify a row, and its present state.

    `oids` are its id, then those of its partitions. A new `fingerprint` means another declaration or another table.
    """

    table: CapturedTable
    oids: tuple[int, ...]
    schema: Schema
    fingerprint: str


@dataclass(frozen=True)
class Admitted:
    """What can be captured.

    Attributes:
        capture: The declaration.
        slot: The name of its slot and of its publication.
        tables: The tables that are captured now.
        stopped: Why a declared table cannot be captured now, by its name.
        registrations: Each declared table as the store is to register it.
        read_lsn: The position of the source's log before its tables were looked at.
        probed: Digests of the tables that need no probe the next time.
    """

    capture: Capture
    slot: str
    tables: tuple[AdmittedTable, ...]
    stopped: Mapping[str, str]
    registrations: tuple[TableRegistration, ...]
    read_lsn: Lsn
    probed: frozenset[str]

    @property
    def published(self) -> Capture:
        """The capture as the publication is to have it."""
        return replace(self.capture, tables=tuple(each.table for each in self.tables))

    def without(self, names: Collection[str], why: str) -> "Admitted":
        """Return what is captured without the named tables, which wait."""
        tables = tuple(each for each in self.tables if each.table.name not in names)
        return replace(self, tables=tables, stopped={**self.stopped, **dict.fromkeys(names, why)})


@dataclass(frozen=True)
class Lose:
    """Record that changes are lost, and refuse to continue."""

    from_lsn: Lsn | None
    to_lsn: Lsn | None
    reason: str


@dataclass(frozen=True)
class Refuse:
    """Refuse to continue: the loss of changes is already recorded."""


@dataclass(frozen=True)
class Begin:
    """Make the publication, then the slot, and begin a generation; a slot of a killed attempt was never read."""

    identity: SourceIdentity
    timelines: Timelines


@dataclass(frozen=True)
class Follow:
    """Follow the source to another server: its log equals the captured one up to `common`.

    If the store has changes after `common`, those changes are lost.
    """

    timelines: Timelines
    common: Lsn | None
    otherwise: Lose


@dataclass(frozen=True)
class Skip:
    """Move the slot: the changes that it would repeat below `to_lsn` are stored as another declaration made them."""

    to_lsn: Lsn


@dataclass(frozen=True)
class Publish:
    """Make the publication as declared, and record since when the `due` tables are in it.

    A table that is not due was in it: if its entry has changed since, its changes from `from_lsn` on are lost.
    """

    due: frozenset[str]
    from_lsn: Lsn


Step = Lose | Refuse | Begin | Follow | Skip | Publish


def admit(tables: Tables) -> Admitted:
    """Admit tables that can be captured, and stop the others with a reason each; mended tables are read anew.

    Raises:
        NotReady: The server or our role there is not ready; the error has all that the source lacks.
        InvalidCapture: A table is to be hashed, but there is no key.
    """
    declared, state = tables.declared, tables.readiness
    if len(state.tables) == len(declared.tables):
        # no table would be captured meanwhile: publishing waits for the locks instead
        state = replace(state, tables={name: faults for name, faults in state.tables.items() if faults != [LOCKED]})
    if state.server:
        raise NotReady(declared.name, state.problems)
    # only a standby has no flush position, and a standby is not ready
    assert state.flushed is not None
    stopped = {name: "; ".join(faults) for name, faults in state.tables.items()}
    admitted, registrations = [], []
    for each in declared.tables:
        found = state.found.get((each.schema, each.table))
        table, oids = keyed(found, each), () if found is None else found.oids
        digest, why = fingerprint(declared, table, oids), stopped.get(table.name)
        registrations.append(TableRegistration(table.schema, table.table, table.stream_decider, table.key, digest, why))
        if found is not None and why is None:
            admitted.append(AdmittedTable(table, oids, schema_now(found, table), digest))
    return Admitted(
        declared, tables.slot, tuple(admitted), stopped, tuple(registrations), Lsn.parse(state.flushed), state.probed
    )


def fingerprint(capture: Capture, table: CapturedTable, oids: Sequence[int]) -> str:
    """Return a digest of what is captured of a table's rows and of which table it is; its partitions may change."""
    declared = repr((table.columns, table.where, table.key, sorted(capture.actions), tuple(oids[:1])))
    if table.hidden:
        # of the key only a digest, enough to tell it from another key
        digest = hmac.digest(table.secret(), b"millrace", "sha256") if table.hash else b""
        declared += repr((sorted(table.mask), sorted(table.hash), digest))
    if table.personal:
        declared += repr(sorted(table.people.items()))
    return sha256(declared.encode()).hexdigest()[:32]


def decide(facts: Facts, actions: Collection[str]) -> tuple[Step, ...]:
    """Decide the steps until the slot resumes where the store is; none if it already does.

    Args:
        facts: The facts of `read_facts`.
        actions: The actions that are captured.

    Raises:
        TimelinesUnknown: The source does not tell the timelines of its log.
    """
    lease, identity = facts.lease, facts.identity
    if lease.gap:
        return (Refuse(),)
    if lease.source_generation is None or lease.stored_lsn is None:
        return (Begin(identity, facts.history()),)
    if (identity.system_identifier, identity.database) != (lease.system_identifier, lease.database):
        reason = (
            f"The source is database {identity.database} of cluster {identity.system_identifier}; the slot was made in"
            f" {lease.database} of {lease.system_identifier}."
        )
        return (Lose(lease.stored_lsn, None, reason),)
    steps: tuple[Step, ...] = ()
    stored, timelines = lease.stored_lsn, facts.history()
    captured = None if lease.timelines is None else Timelines.parse(lease.timelines)
    if timelines != captured:
        common = captured.common(timelines) if captured else None
        lose = Lose(
            common,
            stored,
            f"Another server took over at {common}, without what was captured from there to {stored}: the source's log came"
            f" through timelines {timelines}; captured were {captured}.",
        )
        # A backfill may have read a change of an uncaptured action: the store may have it without an event for it.
        if common is not None and common < stored and set(actions) != set(ACTIONS):
            return (lose,)
        steps = (Follow(timelines, common, lose),)
        stored = stored if common is None else min(stored, common)
    loss = _loss(facts, stored)
    return steps if loss is None else (*steps, Lose(stored, None, loss))


def decide_tables(
    admitted: Admitted, registered: Collection[RegisteredTable], stored_lsn: Lsn, *, changed: bool
) -> tuple[Step, ...]:
    """Decide the steps until the declaration is published.

    Args:
        admitted: What can be captured.
        registered: What the store knows, once it has the present columns of the tables.
        stored_lsn: Up to where the source is stored.
        changed: Whether the capture had another registration before, or none.
    """
    # Tables that were registered since the last run, or are read anew. If we are killed, the next attempt finds them
    # again; their backfill, which has not begun, sees what happens to them until then.
    due = frozenset(t.name for t in registered if t.published_xid is None and t.stopped_reason is None)
    publish = Publish(due, stored_lsn)
    # Stored changes of another declaration have other numbers than the slot would give now, so they cannot be compared
    # with a replay. A table may have been stopped by a run that was killed before this step.
    return (Skip(stored_lsn), publish) if changed or due or admitted.stopped else (publish,)


def _loss(facts: Facts, stored: Lsn) -> str | None:
    """Return why the slot cannot resume where the store is, as a sentence; None if it can."""
    slot, name = facts.slot, facts.lease.slot
    if facts.flushed < stored:
        return f"The source was set back to an earlier time: its log ends at {facts.flushed}; stored is {stored}."
    if slot is None:
        return f"There is no slot {name} any more."
    if slot.lost:
        return f"Slot {name} is lost: {slot.lost}."
    if slot.confirmed_flush_lsn is None or slot.confirmed_flush_lsn > stored:
        return f"Slot {name} was moved to {slot.confirmed_flush_lsn} by another program; stored is {stored}."
    return None
