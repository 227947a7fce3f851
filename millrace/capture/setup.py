"""Does the steps that `decide` returns for a capture: its publication, its slot, its generation, its gaps."""

import logging
from collections.abc import Iterable
from contextlib import suppress

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
)
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.source.connection import next_xid
from millrace.capture.source.publication import (
    ensure_publication,
    is_as_made,
)
from millrace.capture.source.slot import advance, create_slot, drop_slot
from millrace.capture.store import CaptureLease, CaptureStore, RegisteredTable
from millrace.errors import MillraceError
from millrace.patience import BUSY_S

# Enough to publish and to drop a slot. Making a slot waits for other transactions; the lease is extended meanwhile.
BEGIN_LEASE_S = 90 + BUSY_S

logger = logging.getLogger(__name__)


class GapOpen(MillraceError):
    """Changes of the source are lost, and the capture was not restarted since."""


class Setup:
    """Does steps for a leased capture. Any step may be the last before a kill; the next try repairs what that leaves.

    Attributes:
        admitted: What is captured; a step may leave out tables that have to wait.
        lease: The lease of the capture.
        changed: Whether this registration of the capture differs from the one before, or is the first.
        registered: What the store knows of the tables.
        generation: The number of the slot's life; 0 before the first slot.
        stored_lsn: All that the source committed below this is stored.
    """

    def __init__(
        self, source: psycopg.Connection, store: CaptureStore, admitted: Admitted, lease: CaptureLease, *, changed: bool
    ) -> None:
        self.admitted = admitted
        self.lease = lease
        self.changed = changed
        self.registered: list[RegisteredTable] = []
        # used once a slot is made
        self.generation, self.stored_lsn = lease.source_generation or 0, lease.stored_lsn or Lsn(0)
        self._source = source
        self._store = store
        self._capture = lease.capture

    def apply(self, plan: Iterable[Step]) -> None:
        """Do the steps in their order.

        Raises:
            GapOpen: Changes are lost; the gap is recorded.
        """
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
        """Make the publication; only that tells what was lost, for the server stores filters in a form of its own."""
        name = self.lease.publication
        due = [each.table for each in self.admitted.tables if each.table.name in step.due]
        anew = any(table.columns or table.where for table in due)
        try:
            with self._source.transaction():
                changed = ensure_publication(self._source, name, self.admitted.published, anew=anew)
                lost = sorted((changed or frozenset()) - step.due)
                if lost:
                    # before the repair commits: after it nothing shows that there was a gap
                    reason = f"Publication {name} was changed or dropped by another program: {', '.join(lost)}."
                    self._lose(Lose(step.from_lsn, None, reason))
        except psycopg.errors.LockNotAvailable:
            if not is_as_made(self._source, name):
                raise
            # Another session has locked a table of the publication, which stays as it is for this run. Tables that are
            # due are not captured; all others are.
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
    """Extends the lease while a slot is made, and logs which transactions that waits for."""

    def __init__(self, store: CaptureStore, lease: CaptureLease) -> None:
        self._store, self._lease = store, lease
        self._logged = ""

    def __call__(self, transactions: str) -> None:
        self._store.extend_capture(self._lease.capture, self._lease.lease_token, BEGIN_LEASE_S)
        if transactions != self._logged:
            self._logged = transactions
            logger.warning("%s: slot %s waits for the end of %s", self._lease.capture, self._lease.slot, transactions)
