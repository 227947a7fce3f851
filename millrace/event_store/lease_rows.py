"""The rows of leases: the ranges that bulk consumers claim, and the streams that they leave out or fail."""

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
    """A lease and its bulk view."""

    view: str


@dataclass(frozen=True)
class LockedStream:
    """A locked stream of a bulk view, and its log partition."""

    view: str
    partition: int
    decider: str
    decider_id: str


@dataclass(frozen=True)
class StreamFailure:
    """A failed stream of a batch and its error; `offset` is the failed event, if the events before it succeeded."""

    decider: str
    decider_id: str
    error: str
    offset: int | None = None


@dataclass(frozen=True)
class LockedPartition:
    """A leased log partition with locked streams, and the number of these streams that the lease retries."""

    partition: int
    retries: int


@dataclass(frozen=True)
class ExpiredLease:
    """An owner that ended without releasing its leases of a view, and the number of their log partitions."""

    view: str
    lease_owner: str
    partitions: int
