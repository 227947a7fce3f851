"""Leases kept alive while Spark builds.

Belongs here: the thread that extends them. Not here: claiming and giving back (`round`, `rebuild`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.resources.connecting import PASSING, connect
from millrace.resources.event_store import EventStore


@contextmanager
def owner_keeper(dsn: str, owner: str, lease_s: int) -> Iterator[None]:
    """Extend all leases in force of an owner in a `with` block, whatever views they are of.

    A thread does it, with connections of its own: the caller waits for Spark meanwhile. A lease that was taken over is
    none of the owner's any more: the store refuses the caller's commit.

    Args:
        dsn: The event store.
        owner: The owner.
        lease_s: How long a lease lasts, in seconds; it is extended three times as often.
    """
    done = threading.Event()

    def extend() -> None:
        while not done.wait(lease_s / 3):
            try:
                # a call that hangs is left, so that the next turn comes while the lease lasts
                with connect(dsn, answer_s=lease_s / 3, stop=done) as connection:
                    EventStore(connection).extend_owner(owner, lease_s)
            except PASSING:
                continue  # the next turn tries again

    thread = threading.Thread(target=extend, name="lease keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
