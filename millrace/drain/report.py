"""The outcome of a drain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.drain.commit import Commit


class PartitionsFailed(MillraceError):
    """Log partitions made no progress because their events cannot be built.

    Attributes:
        causes: The reason of each log partition.
    """

    def __init__(
        self, message: str, *, causes: Mapping[int, str], detail: str | None = None, hint: str | None = None
    ) -> None:
        self.causes = causes
        super().__init__(message, detail=detail, hint=hint)


@dataclass
class DrainReport:
    """The work of a drain so far.

    Attributes:
        batches: Batches that were committed as a whole, without the streams that fail.
        events: Log positions that the view moved forward by.
        rows: Rows of the model's state that changed.
        busy_s: How long building and committing took, in seconds.
        failed_streams: Streams that were handed over to their locks; each failure counts.
        failed: The log partitions that made no progress, and why.
        moved: The log partitions that made progress.
        in_the_way: Why the model's version cannot serve although it has caught up, or why a rollup cannot be made.
    """

    batches: int = 0
    events: int = 0
    rows: int = 0
    busy_s: float = 0.0
    failed_streams: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    in_the_way: MillraceError | None = None

    def add(self, commit: "Commit") -> None:
        """Count a commit; the log partitions that it moved have not failed."""
        if commit.whole:
            self.batches += 1
        self.failed_streams += len(commit.failures)
        self.events += commit.events
        self.rows += commit.rows
        self.busy_s += commit.seconds
        for lease in commit.leases:
            self.failed.pop(lease.partition, None)
            self.moved.add(lease.partition)


def no_progress(model: str, failed: Mapping[int, str]) -> PartitionsFailed:
    """Return the error of a read model's log partitions that made no progress, each with its reason."""
    return PartitionsFailed(
        f"Read model {model}: {len(failed)} log partition(s) made no progress.",
        causes=dict(failed),
        detail="\n".join(f"p{partition:02}: {error}" for partition, error in sorted(failed.items())),
        hint="Correct the declaration or the environment; the events are kept and are read again.",
    )
