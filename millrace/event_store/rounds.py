"""The calls about many views at once, for a poller and for a consumer that serves many bulk views in rounds."""

from collections.abc import Iterable, Sequence

from millrace.event_store.lease_rows import Lease, LockedStream, ViewLease
from millrace.event_store.sql_functions import SqlFunctions
from millrace.event_store.status_rows import DrainState, ViewPoll, WantingView


class RoundFunctions(SqlFunctions):
    """The part of `PlatformStore` about many views at once."""

    def poll_views(self, views: Sequence[str] | None = None) -> list[ViewPoll]:
        """Return one row per view for a poller; None for all views.

        A name that is not registered gives no row.
        """
        return self._all(
            ViewPoll, "select * from event_store_platform.poll_views(%s)", (None if views is None else list(views),)
        )

    def wanting_views(self, marks: Sequence[int]) -> list[WantingView]:
        """Return the enabled rows views that want an event beyond the marks; without marks all of them."""
        return self._all(WantingView, "select * from event_store_platform.wanting_views(%s::bigint[])", (list(marks),))

    def claim_views(
        self, views: Sequence[str], owner: str, limit: int = 20_000, lease_s: int | None = None
    ) -> dict[str, list[Lease]]:
        """Lease log partitions with new events of many bulk views, `limit` positions of each; return them by view.

        The answer leaves out views that get nothing, are not registered, or are not enabled.
        """
        return by_view(
            self._all(
                ViewLease,
                "select * from event_store_platform.claim_views(%s, %s, %s, %s)",
                (list(views), owner, limit, lease_s),
            )
        )

    def owned_leases(self, owner: str) -> dict[str, list[Lease]]:
        """Return the live leases of an owner, by view."""
        return by_view(self._all(ViewLease, "select * from event_store_platform.owned_leases(%s)", (owner,)))

    def locked_streams(self, owner: str) -> list[LockedStream]:
        """Return the locked streams in an owner's leased log partitions: a reader of the ranges leaves them out."""
        return self._all(LockedStream, "select * from event_store_platform.locked_streams(%s)", (owner,))

    def drain_states(self, *drains: str) -> dict[str, DrainState]:
        """Return the states of drains by name: of a view, of a capture, or, with the empty name, of all views."""
        states = self._all(DrainState, "select * from event_store_platform.drain_states(%s)", (list(drains),))
        return {state.drain: state for state in states}

    def begin_drain(self, drain: str, owner: str | None = None) -> bool:
        """Ask for a drain, or begin it as its owner; return whether the caller alone has it."""
        return self._value(bool, "select event_store_platform.begin_drain(%s, %s)", (drain, owner))

    def end_drain(self, drain: str, owner: str, error: str | None = None) -> None:
        """Record the end of a drain: a success, or an error, which counts as a failure."""
        self._value(str, "select event_store_platform.end_drain(%s, %s, %s)", (drain, owner, error))

    def extend_owner(self, owner: str, lease_s: int | None = None) -> int:
        """Extend every live lease of an owner to `lease_s` seconds from now; return their number."""
        return self._value(int, "select event_store_platform.extend_owner(%s, %s)", (owner, lease_s))

    def release_owner(self, owner: str) -> int:
        """Release every lease of an owner that is known to be dead; return their number."""
        return self._value(int, "select event_store_platform.release_owner(%s)", (owner,))


def by_view(leases: Iterable[ViewLease]) -> dict[str, list[Lease]]:
    """Return leases by their view, in order."""
    views: dict[str, list[Lease]] = {}
    for one in leases:
        lease = Lease(one.partition, one.from_position, one.to_position, one.lease_token)
        views.setdefault(one.view, []).append(lease)
    return views
