"""Leases kept alive while Spark builds.

Belongs here: the thread that extends them. Not here: claiming and giving back (`consumer`, `rebuild`, `rounds`).
"""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from millrace.resources.connecting import PASSING, connect
from millrace.resources.errors import LeaseLost, UnknownView
from millrace.resources.event_store import EventStore, Lease


class Keeper:
    """Extends leases, from the beginning to the end of a `with` block.

    The keeper has a thread and connections of its own: the caller waits for Spark meanwhile. If a lease was taken
    over, the keeper stops without an error: the store refuses the caller's commit.

    Args:
        dsn: The event store.
        lease_s: How long a lease lasts, in seconds; it is extended three times as often.
        extend: Extends them; raises LeaseLost where there is nothing more to extend.
    """

    def __init__(self, dsn: str, lease_s: int, extend: Callable[[EventStore], object]) -> None:
        self._dsn = dsn
        self._lease_s = lease_s
        self._extend = extend
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._extend_until_done, name="lease keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _extend_until_done(self) -> None:
        while not self._done.wait(self._lease_s / 3):
            try:
                # a call that hangs is left, so that the next turn comes while the lease lasts
                with connect(self._dsn, answer_s=self._lease_s / 3, stop=self._done) as connection:
                    self._extend(EventStore(connection))
            except (LeaseLost, UnknownView):
                return
            except PASSING:
                continue  # the next turn tries again


class LeaseKeeper(Keeper):
    """Extends leases of one view.

    Args:
        dsn: The event store.
        view: The view.
        lease_s: How long a lease lasts, in seconds.
        leases: The leases to begin with.
    """

    def __init__(self, dsn: str, view: str, lease_s: int, leases: Sequence[Lease] = ()) -> None:
        super().__init__(dsn, lease_s, self._extend_own)
        self._view = view
        # never changed, only replaced: the thread reads either the old ones or the new ones
        self._leases = tuple(leases)

    def add(self, lease: Lease) -> None:
        """Extend another lease, too, from now on."""
        self._leases = (*self._leases, lease)

    def drop(self, lease: Lease) -> None:
        """Extend a lease no more, which is about to end."""
        self._leases = tuple(one for one in self._leases if one != lease)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All leases that are extended."""
        return self._leases

    def _extend_own(self, store: EventStore) -> None:
        leases = self._leases
        if not leases:
            return
        try:
            store.extend_lease(self._view, leases, self._lease_s)
        except LeaseLost:
            # one that ended meanwhile is none that was lost
            if leases is self._leases:
                raise


def owner_keeper(dsn: str, owner: str, lease_s: int) -> Keeper:
    """Return a keeper of all leases of an owner, whatever views they are of."""
    return Keeper(dsn, lease_s, lambda store: store.extend_owner(owner, lease_s))
