"""Consuming views: registering them, and getting their events, one at a time (`rows`) or by leases (`bulk`).

Not here: the calls of Millrace's own processes and of operators (`platform`).
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from millrace.errors import Malformed
from millrace.event_store.json_text import jsonb
from millrace.event_store.lease_rows import Lease, StreamFailure
from millrace.event_store.rows import NEWEST_SHAPE, RECORDED, STORED, DeadLetter, Delivery, Event, Lock, View
from millrace.event_store.sealing import Sealing
from millrace.event_store.status_rows import PartitionLag, ViewInfo
from millrace.times import ACCEPTED_FORMS, bound


class RowsViews(Sealing):
    """The calls of a consumer of `rows` views, which get events one at a time; also as coroutines."""

    def register_view(
        self,
        view: str,
        start_at: datetime | str | None = None,
        lock_timeout_s: int | None = None,
        pooling_delay_s: int | None = None,
        edge_function_url: str | None = None,
        *,
        mode: str | None = None,
        deciders: Sequence[str] | None = None,
        events: Sequence[str] | None = None,
        max_attempts: int | None = None,
        owner: str | None = None,
        version: int | None = None,
        push_format: str | None = None,
        push_upcast: bool | None = None,
        push_unseal: bool | None = None,
    ) -> View:
        """Register a view, or change the settings that are not None; its progress never changes.

        Args:
            view: Its name.
            start_at: The time from which it wants events; '-infinity' for all, None for now. The first call sets it.
            lock_timeout_s: How long a lock or a lease lasts by default, in seconds; at first 300.
            pooling_delay_s: The wait between two polls that found nothing, in seconds.
            edge_function_url: The URL that events are pushed to; '' clears it.
            mode: 'rows' or 'bulk', which never changes; at first 'rows'.
            deciders: The deciders it wants; [] for all, as at first.
            events: The events it wants; [] for all, as at first.
            max_attempts: The number of failed attempts after which a stream is parked; at first 5.
            owner: The role that owns it: only its members may change and consume it. At first the login, or
                event_store_consumer if the login is a member of event_store_owner.
            version: The version of the registering program; a lower version than the view's changes no settings.
            push_format: The format of pushed events, 'json' or 'cloudevents'; at first 'json'.
            push_upcast: Whether data are pushed in the newest shape of their event; at first not.
            push_unseal: Whether personal values are pushed opened; at first not. Only members of event_store_personal
                change such a view.
        """
        return self._one(
            View,
            "select * from event_store.register_view(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                view,
                moment_of(start_at),
                lock_timeout_s,
                pooling_delay_s,
                edge_function_url,
                mode,
                listed(deciders),
                listed(events),
                max_attempts,
                owner,
                version,
                push_format,
                push_upcast,
                push_unseal,
            ),
        )

    def is_registered(self, view: str) -> bool:
        """Return whether a view of this name is registered."""
        return self._value(bool, "select event_store.is_registered(%s)", (view,))

    def stream_events(self, view_name: str, limit: int = 1, seconds: int | None = None) -> list[Event]:
        """Lock free streams of a rows view and return the next event of each."""
        query = "select {} from event_store.stream_events(%s, %s, %s)"
        return self._opened(self._all(Event, query.format(RECORDED), (view_name, limit, seconds)))

    def lease_events(
        self, view: str, limit: int = 1, seconds: int | None = None, *, ahead: bool = False, upcast: bool = False
    ) -> list[Delivery]:
        """Lock and return events like `stream_events`, each with the token that fences its lock.

        With `ahead` a lock that ends without an answer counts as an attempt only if `extend_lock` was called for it.
        With `upcast` data come in the newest shape of their event.
        """
        query = "select {} from event_store.lease_events(%s, %s, %s, %s)"
        columns = f"{NEWEST_SHAPE if upcast else STORED}, lease_token, attempt, suspect"
        return self._opened(self._all(Delivery, query.format(columns), (view, limit, seconds, ahead)))

    def ack_event(self, view: str, decider_id: str | UUID, offset: int, lease_token: int | None = None) -> list[Lock]:
        """Acknowledge the event in flight and free its stream."""
        return self._all(
            Lock, "select * from event_store.ack_event(%s, %s, %s, %s)", (view, decider_id, offset, lease_token)
        )

    def ack_events(self, view: str, offsets: Sequence[int], lease_tokens: Sequence[int] | None = None) -> set[int]:
        """Acknowledge many events; return the acknowledged offsets. All others are delivered again."""
        acknowledged = self._values(
            int,
            "select * from event_store.ack_events(%s, %s::bigint[], %s::bigint[])",
            (view, list(offsets), list(lease_tokens) if lease_tokens is not None else None),
        )
        return set(acknowledged)

    def nack_event(
        self,
        view: str,
        decider_id: str | UUID,
        offset: int | None = None,
        lease_token: int | None = None,
        error: str | None = None,
    ) -> list[Lock]:
        """Release the event in flight; it is delivered again at once. `error` tells operators why."""
        return self._all(
            Lock,
            "select * from event_store.nack_event(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, lease_token, error),
        )

    def schedule_nack_event(
        self,
        view: str,
        decider_id: str | UUID,
        milliseconds: int,
        offset: int | None = None,
        lease_token: int | None = None,
        error: str | None = None,
    ) -> list[Lock]:
        """Release the event in flight; it is delivered again after `milliseconds`. `error` tells operators why."""
        return self._all(
            Lock,
            "select * from event_store.schedule_nack_event(%s, %s, %s, %s, %s, %s)",
            (view, decider_id, milliseconds, offset, lease_token, error),
        )

    def fail_event(
        self, view: str, decider_id: str | UUID, offset: int, error: str, lease_token: int | None = None
    ) -> list[Lock]:
        """Report that the event in flight failed: its stream is retried with growing backoff, and then parked."""
        return self._all(
            Lock,
            "select * from event_store.fail_event(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, error, lease_token),
        )

    def extend_lock(
        self, view: str, decider_id: str | UUID, offset: int, seconds: int | None = None, lease_token: int | None = None
    ) -> list[Lock]:
        """Extend the lock of the event in flight to `seconds` from now, and record that it is being handled."""
        return self._all(
            Lock,
            "select * from event_store.extend_lock(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, seconds, lease_token),
        )


class Views(RowsViews):
    """The calls of a consumer of views, on a connection or a pool. Every method raises the errors of its function."""

    def dead_letters(self, view: str | None = None, *, waiting: bool = False) -> list[DeadLetter]:
        """Return the parked streams of a view, None for all views; with `waiting` those that wait for a retry."""
        return self._all(DeadLetter, "select * from event_store.dead_letters(%s, %s)", (view, waiting))

    def retry_dead_letters(
        self, view: str, decider: str | None = None, decider_id: str | None = None, *, reason: str | None = None
    ) -> int:
        """Retry parked streams: all of a view, of a decider, or one; return their number."""
        return self._value(
            int, "select event_store_platform.retry_dead_letters(%s, %s, %s, %s)", (view, decider, decider_id, reason)
        )

    def claim_batch(self, view: str, owner: str, limit: int = 100_000, lease_s: int | None = None) -> list[Lease]:
        """Lease log partitions with pending events, `limit` positions in all; none if nothing is pending."""
        return self._all(Lease, "select * from event_store.claim_batch(%s, %s, %s, %s)", (view, owner, limit, lease_s))

    def read_batch(self, view: str, lease: Lease) -> list[Event]:
        """Return the events that a lease delivers, each stream's in order."""
        query = "select {}, position from event_store.read_batch(%s, %s, %s)"
        return self._all(Event, query.format(STORED), (view, lease.partition, lease.lease_token))

    def fail_streams(self, view: str, lease: Lease, failures: Sequence[StreamFailure]) -> int:
        """Lock failed streams for a retry, before `commit_batch` in its transaction; return how many are parked."""
        return self._value(
            int,
            "select event_store.fail_streams(%s, %s, %s, %s)",
            (view, lease.partition, lease.lease_token, jsonb([vars(failure) for failure in failures])),
        )

    def commit_batch(self, view: str, leases: Sequence[Lease]) -> None:
        """Move the checkpoints to the ends of the leases, and end the leases: all, or none with `LeaseLost`."""
        self._value(
            str,
            "select event_store.commit_batch(%s, %s, %s, %s)",
            (
                view,
                [lease.partition for lease in leases],
                [lease.to_position for lease in leases],
                [lease.lease_token for lease in leases],
            ),
        )

    def extend_lease(self, view: str, leases: Sequence[Lease], lease_s: int | None = None) -> datetime:
        """Extend live leases to `lease_s` seconds from now; return their new end."""
        return self._value(
            datetime, "select event_store.extend_lease(%s, %s, %s, %s)", (view, *tokens_of(leases), lease_s)
        )

    def set_max_lag(self, view: str, max_lag_s: int) -> None:
        """Set the age of a pending event from which the view counts as late."""
        self._value(str, "select event_store.set_max_lag(%s, %s)", (view, max_lag_s))

    def release_batch(self, view: str, leases: Sequence[Lease]) -> int:
        """Release leases without moving checkpoints; return how many were still held."""
        return self._value(int, "select event_store.release_batch(%s, %s, %s)", (view, *tokens_of(leases)))

    def view_info(self, view: str | None = None, most: int = 100_000) -> list[ViewInfo]:
        """Return one row per view, or the row of one view; `most` limits the events read to count lags."""
        return self._all(ViewInfo, "select * from event_store.view_info(%s, %s)", (view, most))

    def view_lag(self, view: str) -> list[PartitionLag]:
        """Return the lag of a view, per log partition."""
        return self._all(PartitionLag, "select * from event_store.view_lag(%s)", (view,))


def tokens_of(leases: Sequence[Lease]) -> tuple[list[int], list[int]]:
    """Return the log partitions of leases, and their tokens."""
    return [lease.partition for lease in leases], [lease.lease_token for lease in leases]


def moment_of(time: datetime | str | None) -> datetime | str | None:
    """Return a time for psycopg. Texts are parsed here: in Postgres forms and zone would depend on the session.

    Raises:
        Malformed: A text has none of the forms of `millrace.times`.
    """
    if not isinstance(time, str):
        return time
    found = bound(time)
    if found is None:
        raise Malformed(
            "A text is not a time of a known form.",
            detail=f"The text is {time[:100]!r}.",
            hint=f"Write it as {ACCEPTED_FORMS}; or -infinity, infinity.",
        )
    return found


def listed(names: Sequence[str] | None) -> list[str] | None:
    """Return names as a list, which psycopg sends as an array; None stays None."""
    return None if names is None else list(names)
