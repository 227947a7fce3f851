"""The rows of leases: what bulk consumers claim of the log, and the streams that they leave out or fail."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lease:
    """A claimed range [from_position, to_position) of one log partition and the token that fences it."""

    partition: int
    from_position: int
    to_position: int
    lease_token: int


@dataclass(frozen=True)
class ViewLease(Lease):
    """A lease, and the bulk view that it is of."""

    view: str


@dataclass(frozen=True)
class LockedStream:
    """A stream of a bulk view that has a lock, and its log partition."""

    view: str
    partition: int
    decider: str
    decider_id: str


@dataclass(frozen=True)
class StreamFailure:
    """A stream of a batch that failed, and why; `offset` is the event that failed, if the ones before it did not."""

    decider: str
    decider_id: str
    error: str
    offset: int | None = None


@dataclass(frozen=True)
class LockedPartition:
    """A leased log partition where streams have locks, and how many of these streams the lease tries again."""

    partition: int
    retries: int


@dataclass(frozen=True)
class ExpiredLease:
    """An owner that ended without giving its leases of a view back, and the number of their log partitions."""

    view: str
    lease_owner: str
    partitions: int
