"""The calls of Millrace's own processes and of operators, in addition to those of services: never exported."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from millrace.event_store.client import EventStore
from millrace.event_store.lease_rows import ExpiredLease, Lease, LockedPartition
from millrace.event_store.rounds import RoundFunctions
from millrace.event_store.rows import (
    RECORDED,
    STORED,
    AppendedCount,
    AuditEntry,
    BackupCut,
    DatabaseIdentity,
    Event,
    LogMark,
    Seek,
    StreamView,
    View,
)
from millrace.event_store.sealing import TextSealing
from millrace.event_store.status_rows import (
    FiredEvents,
    OldestWriter,
    Problem,
    ScheduledStatistics,
    SequencerHolder,
    ViewBeyondLog,
    WaitingTimers,
)
from millrace.event_store.views import Views, moment_of, tokens_of


class PlatformStore(EventStore, Views, RoundFunctions, TextSealing):
    """All calls about events, the log and views."""

    def append_json(self, events: str) -> AppendedCount:
        """Append a batch that is JSON text already, like `append_events`, and only count: for callers with many events.

        No metadata are passed on: the text is stored as it is.
        """
        return self._one(
            AppendedCount,
            "select count(*) filter (where appended) as appended, count(*) filter (where previous_id is null) as first "
            "from event_store.append_events(%s::jsonb)",
            (events,),
        )

    def set_decider_owner(self, decider: str, owner: str | None, reason: str | None = None) -> bool:
        """Give a decider to a role: only its members append to it and register its events. None: every writer may.

        Returns whether the owner changed.
        """
        return self._value(bool, "select event_store_platform.set_decider_owner(%s, %s, %s)", (decider, owner, reason))

    def withdraw_registration(
        self,
        decider: str,
        event: str,
        event_version: int,
        what: Literal["schema", "upcast", "event"],
        reason: str | None = None,
    ) -> bool:
        """Withdraw a schema, a last upcast, or a registration that no event uses; return whether it existed."""
        return self._value(
            bool,
            "select event_store_platform.withdraw_registration(%s, %s, %s, %s, %s)",
            (decider, event, event_version, what, reason),
        )

    def sequence_events(self) -> int:
        """Give committed events their positions; return their number, 0 while another session sequences."""
        return self._value(int, "select event_store_platform.sequence_events()")

    def fire_scheduled_events(self, expected: datetime | None = None, limit: int = 100) -> FiredEvents:
        """Append scheduled events that are due; `expected` is what the server's clock should be."""
        call = "select * from event_store_platform.fire_scheduled_events(%s, %s)"
        return self._one(FiredEvents, call, (limit, expected))

    def hold_scheduled_events(self, until: datetime | None, reason: str) -> None:
        """Let no scheduled event be appended until then; None lets them be appended, also in a copy of the database."""
        self._value(str, "select event_store_platform.hold_scheduled_events(%s, %s)", (until, reason))

    def retry_scheduled_events(
        self, decider: str | None = None, decider_id: str | None = None, reason: str | None = None
    ) -> int:
        """Try scheduled events again that were refused: all, those of a decider, or of a stream; return how many."""
        call = "select event_store_platform.retry_scheduled_events(%s, %s, %s)"
        return self._value(int, call, (decider, decider_id, reason))

    def scheduled_statistics(self) -> ScheduledStatistics:
        """Return how many scheduled events wait and were refused, the next one, and how late they are."""
        return self._one(ScheduledStatistics, "select * from event_store_platform.scheduled_statistics()")

    def waiting_timers(self, decider: str) -> list[WaitingTimers]:
        """Return the names under which scheduled events of a decider wait."""
        return self._all(WaitingTimers, "select * from event_store_platform.waiting_timers(%s)", (decider,))

    def mark_log(self, reason: str) -> LogMark:
        """Record the present moment of the log with a reason, for ever."""
        return self._one(LogMark, "select * from event_store_platform.mark_log(%s)", (reason,))

    def marks_at(self, time: datetime | str) -> LogMark | None:
        """Return the last recorded moment of the log at or before a time; None if there is none."""
        return self._first(LogMark, "select * from event_store_platform.marks_at(%s)", (moment_of(time),))

    def is_attended(self) -> bool:
        """Whether a sequencer is running, so that no other process needs to give events their positions."""
        return self._value(bool, "select event_store_platform.is_attended()")

    def attend_log(self, attended_s: int, sleeps: bool = False) -> bool:
        """Declare the caller a sequencer for some seconds, asleep or not; return whether it must look again soon."""
        return self._value(bool, "select event_store_platform.attend_log(%s, %s)", (attended_s, sleeps))

    def announce_positions(self, marks: Sequence[int]) -> list[int]:
        """Wake waiting consumers if there are positions beyond the marks; return the current marks."""
        return self._value(list, "select event_store_platform.announce_positions(%s::bigint[])", (list(marks),))

    def enable_view(self, view: str, enabled: bool = True, *, reason: str | None = None) -> View:
        """Deliver events to a view from now on, or stop the delivery."""
        return self._one(View, "select * from event_store_platform.enable_view(%s, %s, %s)", (view, enabled, reason))

    def unregister_view(self, view: str, reason: str | None = None) -> None:
        """Remove a view with its progress, its locks and its dead letters."""
        self._value(str, "select event_store_platform.unregister_view(%s, %s)", (view, reason))

    def has_caught_up(self, view: str, other: str) -> bool:
        """Return whether a view is nowhere behind another; if so, the other stays there until the transaction ends."""
        return self._value(bool, "select event_store_platform.has_caught_up(%s, %s)", (view, other))

    def dispatch_events(self, view: str, window: int = 5000, max_waiting: int = 2000) -> int:
        """Make locks for streams with new events; return the number of positions that the dispatch passed.

        A call passes at most `window` positions of each log partition, and none while `max_waiting` streams already
        wait for a consumer.
        """
        return self._value(int, "select event_store_platform.dispatch_events(%s, %s, %s)", (view, window, max_waiting))

    def fail_dispatch(self, view: str, error: str) -> None:
        """Note why a view's new events cannot be dispatched; the note lasts until they are dispatched."""
        self._value(str, "select event_store_platform.fail_dispatch(%s, %s)", (view, error))

    def end_locks(
        self, view: str, decider: str | None = None, decider_id: str | None = None, *, reason: str | None = None
    ) -> int:
        """End live locks: all of a rows view, of a decider, or of one stream; return their number."""
        return self._value(
            int, "select event_store_platform.end_locks(%s, %s, %s, %s)", (view, decider, decider_id, reason)
        )

    def discard_dead_letter(
        self, view: str, decider: str, decider_id: str, reason: str, offset: int | None = None
    ) -> Event | None:
        """Discard the failed event of a parked stream, and return it; None if the view does not want it any more."""
        query = "select {} from event_store_platform.discard_dead_letter(%s, %s, %s, %s, %s)"
        return self._first(Event, query.format(RECORDED), (view, decider, decider_id, reason, offset))

    def seek_view(
        self,
        view: str,
        kind: str,
        position: int | None = None,
        timestamp: datetime | str | None = None,
        partition: int | None = None,
        *,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> list[Seek]:
        """Move a view to another position, in one log partition or in all; `seek_view.sql` names the kinds."""
        return self._all(
            Seek,
            "select * from event_store_platform.seek_view(%s, %s, %s, %s, %s, %s, %s)",
            (view, kind, position, moment_of(timestamp), partition, dry_run, reason),
        )

    def attach_consumer(self, view: str, consumer: str | None = None, seconds: int = 900) -> None:
        """Mark this connection as a live consumer of a view, for some seconds or until the connection closes."""
        self._value(str, "select event_store_platform.attach_consumer(%s, %s, %s)", (view, consumer, seconds))

    def detach_consumer(self, view: str, consumer: str | None = None) -> None:
        """End the mark of `attach_consumer`; nothing happens if the connection is not attached."""
        self._value(str, "select event_store_platform.detach_consumer(%s, %s)", (view, consumer))

    def pass_over_unwanted(self, view: str) -> None:
        """Move a bulk view's checkpoints past events that it does not want, where no consumer holds a lease."""
        self._value(list, "select event_store_platform.pass_over_unwanted(%s)", (view,))

    def claim_partition(self, view: str, partition: int, owner: str, lease_s: int | None = None) -> Lease:
        """Lease one log partition for a rebuild, over the whole range that it holds."""
        return self._one(
            Lease,
            "select * from event_store_platform.claim_partition(%s, %s, %s, %s)",
            (view, partition, owner, lease_s),
        )

    def locked_partitions(self, view: str, leases: Sequence[Lease]) -> list[LockedPartition]:
        """Return the leased log partitions with locked streams; the others deliver their whole range."""
        return self._all(
            LockedPartition,
            "select * from event_store_platform.locked_partitions(%s, %s, %s)",
            (view, *tokens_of(leases)),
        )

    def standing(self, most: int = 100_000) -> list[Problem]:
        """Return what is wrong in the store now, the worst first; `most` limits the events read to count lags."""
        return self._all(Problem, "select * from event_store_platform.standing(%s)", (most,))

    def expired_leases(self) -> list[ExpiredLease]:
        """Return the owners with expired leases of log partitions, in all views."""
        return self._all(ExpiredLease, "select * from event_store_platform.expired_leases()")

    def views_beyond_log(self) -> list[ViewBeyondLog]:
        """Return the checkpoints beyond the end of their log partition."""
        return self._all(ViewBeyondLog, "select * from event_store_platform.views_beyond_log()")

    def sequencer_holder(self) -> SequencerHolder | None:
        """Return the session with an open transaction that holds the sequencer's row, if there is one."""
        return next(iter(self._all(SequencerHolder, "select * from event_store_platform.sequencer_holder()")), None)

    def end_log_holder(self, reason: str | None = None) -> SequencerHolder | None:
        """End the session that blocks the log, if it idles or a reason is given; return it, None for none."""
        found = self._all(SequencerHolder, "select * from event_store_platform.end_log_holder(%s)", (reason,))
        return next(iter(found), None)

    def oldest_writer(self) -> OldestWriter | None:
        """Return the longest open transaction of all that have written, if there is one."""
        return self._first(OldestWriter, "select * from event_store_platform.oldest_writer()")

    def last_sequenced(self) -> datetime:
        """Return when events without a position were last looked for; the last of all times during a restore."""
        return self._value(datetime, "select event_store_platform.last_sequenced()")

    def lease_owners(self, view: str) -> list[str]:
        """Return the owners of a view's live leases."""
        return self._values(str, "select * from event_store_platform.lease_owners(%s)", (view,))

    def latest_events(
        self,
        limit: int = 20,
        decider: str | None = None,
        decider_id: str | None = None,
        event: str | None = None,
        since: datetime | None = None,
        correlation_id: str | None = None,
        before_offset: int | None = None,
    ) -> list[Event]:
        """Return the newest events that fit all filters, the newest first; None does not filter."""
        query = "select {}, position, partition from event_store_platform.latest_events(%s, %s, %s, %s, %s, %s, %s)"
        return self._all(
            Event, query.format(STORED), (limit, decider, decider_id, event, since, correlation_id, before_offset)
        )

    def stream_views(self, decider: str, decider_id: str, most: int = 100_000) -> list[StreamView]:
        """Return, per view that wants a decider, its state of one stream, and its lag in the newest `most` events."""
        call = "select * from event_store_platform.stream_views(%s, %s, %s)"
        return self._all(StreamView, call, (decider, decider_id, most))

    def log_gaps(self, recent: int = 10_000) -> list[int]:
        """Return the log partitions with a gap among their newest positions: none, unless something is broken."""
        return self._values(int, "select event_store_platform.log_gaps(%s)", (recent,))

    def database_identity(self) -> DatabaseIdentity:
        """Return the identity of this database; no copy of it has the same."""
        return self._one(DatabaseIdentity, "select * from event_store_platform.database_identity()")

    def backup_cut(self) -> BackupCut:
        """Return the identity that this store shares with its copies, and the numbers that a restored one continues."""
        return self._one(BackupCut, "select * from event_store_platform.backup_cut()")

    def audit_log(self, view: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the last entries of the table audit_log, the newest first: of one view, None for all."""
        return self._all(AuditEntry, "select * from event_store_platform.audit_log(%s, %s)", (view, limit))
