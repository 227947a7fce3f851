"""The model of one view: pending events, their holders, and changes that open transactions may roll back."""

from dataclasses import dataclass, field, replace
from typing import Any

from millrace.event_store import Lease
from millrace.event_store.platform import PlatformStore

PARTITIONS = 4
NEVER = 10**9
Name = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    position: int
    offset: int
    wanted: bool
    at: int


Log = dict[Name, list[Entry]]


@dataclass
class Stream:
    """The view's progress with a stream, the holder of its event, and the time from which another may take it."""

    partition: int
    since: int = 0  # the position of the view's last seek
    acknowledged: int = -1
    in_flight: int | None = None
    token: int | None = None
    until: int = 0
    attempts: int = 0
    parked: bool = False

    def is_free(self, now: int) -> bool:
        return not self.parked and self.until <= now

    def holds(self, offset: int | None, token: int | None, now: int) -> bool:
        """Return whether an answer counts: by its token, or without a token while the lock lasts."""
        if self.in_flight is None or offset not in (None, self.in_flight):
            return False
        if token is not None:
            return token == self.token
        return self.until > now

    def acknowledge(self, offset: int, now: int) -> None:
        assert offset > self.acknowledged, "acknowledged twice"
        self.acknowledged, self.parked = offset, False
        self.go_on(now)

    def go_on(self, now: int) -> None:
        self.in_flight, self.attempts, self.until = None, 0, now

    def fail(self, attempts: int, max_attempts: int, now: int) -> None:
        self.in_flight, self.attempts, self.parked = None, attempts, attempts >= max_attempts
        self.until = NEVER if self.parked else now + 5 * 2 ** (attempts - 1)


@dataclass(frozen=True)
class Taken:
    stream: Name
    offset: int
    token: int | None


@dataclass(eq=False)
class Held:
    """The leases of a bulk view's owner: the events of each stream, and the streams delivered by their locks."""

    lease: Lease
    owner: str
    until: int
    delivers: dict[Name, list[Entry]]
    retries: set[Name]
    rebuilds: bool = False


@dataclass
class Transaction:
    """The earlier state of everything that a consumer's open transaction changed."""

    streams: dict[Name, Stream] = field(default_factory=dict)
    leases: dict[int, Held | None] = field(default_factory=dict)
    used: bool = False
    looked: bool = False  # may have dispatched, and so holds checkpoints
    leased: bool = False


@dataclass
class Consumer:
    name: str
    store: PlatformStore
    transaction: Transaction | None = None

    @property
    def session(self) -> int:
        return self.store.connection.info.backend_pid


class Model:
    """The view's events as appended, acknowledged, delivered or failed, and changes that transactions may roll back."""

    consumers: list[Consumer]
    enabled: bool
    now: int
    max_attempts: int
    filters: dict[str, Any]
    streams: dict[Name, Stream]
    appended: dict[Name, list[tuple[int, str, int]]]
    uncommitted: dict[Name, list[tuple[int, str, int]]]
    log: dict[Name, list[Entry]]
    marks: dict[int, int]
    earliest: dict[int, int]
    archived: dict[int, int]
    purged: dict[int, int]
    positions: dict[int, int]
    deliveries: list[Taken]
    claims: list[list[Held]]
    leases: dict[int, Held]

    def wanted(self, name: Name, event: str) -> bool:
        deciders, events = self.filters["deciders"], self.filters["events"]
        return (deciders is None or name[0] in deciders) and (events is None or event in events)

    def pending(self, name: Name, state: Stream | None = None, log: Log | None = None) -> list[Entry]:
        state = state or self.streams[name]
        return [
            entry
            for entry in (log or self.log)[name]
            if entry.wanted and entry.offset > state.acknowledged and entry.position >= state.since
        ]

    def streams_of(self, partition: int) -> list[Name]:
        return [name for name, state in self.streams.items() if state.partition == partition]

    def committed(self, name: Name) -> Stream:
        for transaction in self.transactions():
            if name in transaction.streams:
                return transaction.streams[name]
        return self.streams[name]

    def transactions(self) -> list[Transaction]:
        return [consumer.transaction for consumer in self.consumers if consumer.transaction]

    def held_by_others(self, consumer: Consumer | None, name: Name) -> bool:
        """Return whether another transaction changed the stream, so that an answer would wait for it."""
        return any(name in t.streams for t in self.transactions() if consumer is None or t is not consumer.transaction)

    def leased_by_others(self, consumer: Consumer, partition: int) -> bool:
        return any(partition in t.leases for t in self.transactions() if t is not consumer.transaction)

    def touch(self, consumer: Consumer, name: Name) -> Stream:
        if consumer.transaction:
            consumer.transaction.used = True
            consumer.transaction.streams.setdefault(name, replace(self.streams[name]))
        return self.streams[name]

    def touch_lease(self, consumer: Consumer, partition: int) -> None:
        if consumer.transaction:
            consumer.transaction.used = True
            consumer.transaction.leases.setdefault(partition, self.leases.get(partition))

    def in_use(self) -> bool:
        return (
            any(transaction.used for transaction in self.transactions())
            or any(state.in_flight is not None and state.until > self.now for state in self.streams.values())
            or any(held.until > self.now for held in self.leases.values())
        )

    def end_deliveries(self) -> None:
        """End the deliveries and leases of a view that is moved; all have expired by now."""
        for state in self.streams.values():
            if state.in_flight is not None:
                state.in_flight = None
        self.leases.clear()

    def target(self, kind: str, partition: int, offset: int, at: int) -> int:
        if kind == "RESET_TO_EARLIEST":
            return self.earliest[partition]
        if kind == "RESET_TO_LATEST":
            return self.marks[partition]
        if kind == "EXACT_TIMESTAMP":
            return min(
                (
                    entry.position
                    for name, entries in self.log.items()
                    for entry in entries
                    if self.streams[name].partition == partition
                    and entry.at >= at
                    and entry.position >= self.purged[partition]
                ),
                default=self.marks[partition],
            )
        return offset if kind in ("EXACT_OFFSET", "RESET_TO_OFFSET") else self.positions[partition]

    def nobody_sequences(self) -> bool:
        """Return whether the marks are free: an open transaction that sequenced holds them."""
        return not any(transaction.leased for transaction in self.transactions())

    def undo(self, transaction: Transaction) -> None:
        self.streams |= transaction.streams
        for partition, held in transaction.leases.items():
            self.leases.pop(partition, None)
            if held:
                self.leases[partition] = held
