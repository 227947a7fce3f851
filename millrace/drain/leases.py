"""Leases kept alive while Spark builds."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from millrace.errors import LeaseLost, UnknownView
from millrace.event_store import Lease
from millrace.event_store.platform import PlatformStore
from millrace.postgres.connecting import PASSING, connect


def owner_keeper(dsn: str, owner: str, lease_s: int) -> AbstractContextManager[None]:
    """Extend all leases in force of an owner, of any view, in a `with` block."""
    return _keeper(dsn, lease_s, lambda store: store.extend_owner(owner, lease_s))


def lease_keeper(
    dsn: str, view: str, leases: Callable[[], Sequence[Lease]], lease_s: int
) -> AbstractContextManager[None]:
    """Extend leases of a view in a `with` block: those that `leases` returns each time, also expired ones."""

    def extend(store: PlatformStore) -> None:
        if found := leases():
            store.extend_lease(view, found, lease_s)

    return _keeper(dsn, lease_s, extend)


@contextmanager
def _keeper(dsn: str, lease_s: int, extend: Callable[[PlatformStore], object]) -> Iterator[None]:
    """Extend leases of `lease_s` seconds in a `with` block, each third of that time.

    A thread does it, with connections of its own: the caller waits for Spark meanwhile. If a lease was taken over,
    the store refuses the caller's commit.
    """
    stop = threading.Event()

    def extend_until_stopped() -> None:
        while not stop.wait(lease_s / 3):
            try:
                # a call that hangs is abandoned, so that the next turn comes while the lease lasts
                with connect(dsn, answer_s=lease_s / 3, stop=stop) as connection:
                    extend(PlatformStore(connection))
            except (LeaseLost, UnknownView, *PASSING):
                continue  # the next turn tries again, without leases that a commit has ended meanwhile

    thread = threading.Thread(target=extend_until_stopped, name="lease keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
