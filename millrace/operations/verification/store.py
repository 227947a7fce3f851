"""The store's functions that check promises: one method per SQL function, same name, same argument order."""

from dataclasses import dataclass

from millrace.event_store.sql_functions import SqlFunctions


@dataclass(frozen=True)
class Checked:
    """The result of one call that checks promises, all as of one moment.

    Attributes:
        looked: How much it checked; 0 at the end.
        reached: The last position or offset that it checked; None for none.
        found: How many faults it found.
        faults: The first of them: kind and place of each.
    """

    looked: int
    reached: int | None
    found: int
    faults: list[tuple[str, str]]


class VerificationStore(SqlFunctions):
    """The SQL functions that check promises. Every method raises the `MillraceError` of its SQL function."""

    def verify_positions(self, partition: int, from_: int, limit: int) -> Checked:
        """Check positions of a log partition: whether they are dense, and have their events."""
        return self._one(
            Checked, "select * from event_store_platform.verify_positions(%s, %s, %s)", (partition, from_, limit)
        )

    def verify_events(self, from_: int, limit: int) -> Checked:
        """Check events from an offset on: whether they have positions, and follow each other in their streams."""
        return self._one(Checked, "select * from event_store_platform.verify_events(%s, %s)", (from_, limit))

    def verify_views(self) -> Checked:
        """Check checkpoints, locks, recorded moments and versions of read models."""
        return self._one(Checked, "select * from event_store_platform.verify_views()")
