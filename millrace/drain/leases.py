"""Leases kept alive while Spark builds."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from millrace.errors import LeaseLost, UnknownView
from millrace.event_store import Lease
from millrace.event_store.platform import PlatformStore
from millrace.postgres.connecting import PASSING, connect


def owner_keeper(dsn: str, owner: str, lease_s: int) -> AbstractContextManager[None]:
    """Extend all leases in force of an owner in a `with` block, whatever views they are of."""
    return _keeper(dsn, lease_s, lambda store: store.extend_owner(owner, lease_s))


def lease_keeper(
    dsn: str, view: str, leases: Callable[[], Sequence[Lease]], lease_s: int
) -> AbstractContextManager[None]:
    """Extend some leases of a view in a `with` block, those that there are each time; also ones that have expired."""

    def extend(store: PlatformStore) -> None:
        if found := leases():
            store.extend_lease(view, found, lease_s)

    return _keeper(dsn, lease_s, extend)


@contextmanager
def _keeper(dsn: str, lease_s: int, extend: Callable[[PlatformStore], object]) -> Iterator[None]:
    """Extend leases of `lease_s` seconds in a `with` block, three times as often as they end.

    A thread does it, with connections of its own: the caller waits for Spark meanwhile. If a lease was taken over,
    the store refuses the caller's commit.
    """
    done = threading.Event()

    def extend_until_done() -> None:
        while not done.wait(lease_s / 3):
            try:
                # a call that hangs is left, so that the next turn comes while the lease lasts
                with connect(dsn, answer_s=lease_s / 3, stop=done) as connection:
                    extend(PlatformStore(connection))
            except (LeaseLost, UnknownView, *PASSING):
                continue  # the next turn tries again; of leases that a commit ends meanwhile, it tries the others

    thread = threading.Thread(target=extend_until_done, name="lease keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
