"""Producers whose messages count exactly once: the store's functions for them, and numbering messages.

Belongs here: calls and the shapes they return. Not here: the rule of what a message is; that is `sql/functions/judge_stamp.sql`.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from psycopg.types.json import Jsonb

from millrace.resources.event_store import Json, NewEvent, events_json
from millrace.resources.event_store.sql_functions import SqlFunctions


@dataclass(frozen=True)
class ProducerStamp:
    """Names one message: the same stamp is the same message, whoever sends it."""

    producer_id: str
    partition: int
    epoch: int
    sequence: int


@dataclass(frozen=True)
class RegisteredProducer:
    """An instance of a producer: its epoch, and the sequence that it goes on with."""

    producer_id: str
    partition: int
    epoch: int
    next_sequence: int


@dataclass(frozen=True)
class ReceivedMessage:
    """What the store says to a message: 'opened' or 'committed', 'duplicate', or why it is refused.

    `outcome`, `result` and `offsets` are what a duplicate was answered at first; `next_sequence` and `epoch` are the producer's.
    """

    status: str
    transaction_id: UUID | None
    expires_at: datetime | None
    outcome: str | None
    result: Any
    offsets: list[int] | None
    next_sequence: int
    epoch: int


@dataclass(frozen=True)
class SettledMessage:
    """How a message ended; `duplicate` if another transaction of it was first."""

    duplicate: bool
    outcome: str
    result: Any
    offsets: list[int]
    next_sequence: int


@dataclass(frozen=True)
class StateEntry:
    """A value that a producer keeps beside its events."""

    key: str
    value: Any


@dataclass(frozen=True)
class ExpiredTransactions:
    """How many transactions were ended after their deadline, and how many that ended long ago were forgotten."""

    expired: int
    removed: int


@dataclass(frozen=True)
class ProducerStatistics:
    """Where a producer stands, and what became of its messages.

    `received` is the sum of `duplicates`, `refused` and `opened`; `opened` that of `committed` to `open`, unless the server crashed.
    """

    producer_id: str
    partition: int
    epoch: int
    next_sequence: int
    received: int
    duplicates: int
    refused: int
    opened: int
    committed: int
    aborted: int
    abandoned: int
    expired: int
    superseded: int
    open: int
    registered_at: datetime
    updated_at: datetime


class ProducerStore(SqlFunctions):
    """The functions for producers. Every method raises the `MillraceError` of its SQL function."""

    def register_producer(self, producer_id: str, partition: int = 0) -> RegisteredProducer:
        """Register an instance of a producer and fence those of before."""
        return self._one(
            RegisteredProducer, "select * from event_store.register_producer(%s, %s)", (producer_id, partition)
        )

    def begin_transaction(
        self, producer_id: str, partition: int, epoch: int, sequence: int, timeout_s: int = 60
    ) -> ReceivedMessage:
        """Open a transaction for a message, if it is the next one, which it has so many seconds to commit."""
        return self._one(
            ReceivedMessage,
            "select * from event_store.begin_transaction(%s, %s, %s, %s, %s)",
            (producer_id, partition, epoch, sequence, timeout_s),
        )

    def add_state_change(self, transaction_id: UUID, key: str, value: Json) -> None:
        """Stage a value of the producer's state; None removes the key."""
        self._value(
            str,
            "select event_store.add_state_change(%s, %s, %s)",
            (transaction_id, key, None if value is None else Jsonb(value)),
        )

    def add_events(self, transaction_id: UUID, events: Iterable[NewEvent]) -> None:
        """Stage events, which are appended at the commit."""
        self._value(str, "select event_store.add_events(%s, %s::jsonb)", (transaction_id, events_json(events)))

    def commit_transaction(self, transaction_id: UUID, result: Json = None) -> SettledMessage:
        """Do all that was staged, at once; or return what another transaction of the same message did."""
        return self._one(
            SettledMessage,
            "select * from event_store.commit_transaction(%s, %s)",
            (transaction_id, None if result is None else Jsonb(result)),
        )

    def abort_transaction(self, transaction_id: UUID) -> None:
        """Give a transaction up; its message may be begun again."""
        self._value(str, "select event_store.abort_transaction(%s)", (transaction_id,))

    def abandon_transaction(self, transaction_id: UUID, reason: str) -> SettledMessage:
        """Give a message up for good, and let the next one come."""
        return self._one(
            SettledMessage, "select * from event_store.abandon_transaction(%s, %s)", (transaction_id, reason)
        )

    def ingest_events(
        self,
        producer_id: str,
        partition: int,
        epoch: int,
        sequence: int,
        events: Iterable[NewEvent] = (),
        state: Mapping[str, Json] | None = None,
        result: Json = None,
    ) -> ReceivedMessage:
        """Do a whole message in one call: append its events, change the state (None removes a key), keep the result."""
        batch = list(events)
        return self._one(
            ReceivedMessage,
            "select * from event_store.ingest_events(%s, %s, %s, %s, %s::jsonb, %s, %s)",
            (
                producer_id,
                partition,
                epoch,
                sequence,
                events_json(batch) if batch else None,
                Jsonb(dict(state)) if state is not None else None,
                None if result is None else Jsonb(result),
            ),
        )

    def get_producer_state(self, producer_id: str, partition: int, key: str | None = None) -> list[StateEntry]:
        """Return one value of a producer's state, or all in the order of their keys."""
        return self._all(
            StateEntry, "select * from event_store.get_producer_state(%s, %s, %s)", (producer_id, partition, key)
        )

    def producer_statistics(self, producer_id: str | None = None) -> list[ProducerStatistics]:
        """Return one row per partition of a producer, None for all producers."""
        return self._all(ProducerStatistics, "select * from event_store.producer_statistics(%s)", (producer_id,))

    def expire_transactions(self, keep_s: int = 86400, limit: int = 1000) -> ExpiredTransactions:
        """End transactions after their deadline, and forget those that ended without an effect so many seconds ago."""
        return self._one(ExpiredTransactions, "select * from event_store.expire_transactions(%s, %s)", (keep_s, limit))

    def hold_producers(self) -> str:
        """Let no message of any producer be judged or committed until this transaction ends; return what is committed then."""
        return self._value(str, "select event_store.hold_producers()::text")

    def is_sequenced(self, committed: str) -> bool:
        """Whether every event of what is committed has its position."""
        return self._value(bool, "select event_store.is_sequenced(%s::pg_snapshot)", (committed,))


class IdempotentProducer:
    """Numbers the messages of one instance of a producer. Threads may share it: no number is issued twice."""

    def __init__(self, registered: RegisteredProducer) -> None:
        self.producer_id = registered.producer_id
        self.partition = registered.partition
        self.epoch = registered.epoch
        self._next = registered.next_sequence
        self._lock = threading.Lock()

    @classmethod
    def register(cls, store: ProducerStore, producer_id: str, partition: int = 0) -> Self:
        """Register an instance, which fences those of before; it goes on where they were."""
        return cls(store.register_producer(producer_id, partition))

    def issue(self) -> ProducerStamp:
        """Return the stamp of a new message."""
        with self._lock:
            stamp = self._stamp(self._next)
            self._next += 1
            return stamp

    def reissue(self, sequence: int) -> ProducerStamp:
        """Return the stamp of a message that is sent again; the next new one comes after it."""
        with self._lock:
            self._next = max(self._next, sequence + 1)
            return self._stamp(sequence)

    def was_issued(self, sequence: int) -> bool:
        """Whether a number was given out, by this instance or one before, however long ago."""
        with self._lock:
            return 0 <= sequence < self._next

    @property
    def current_sequence(self) -> int:
        """The number that `issue` gives next."""
        with self._lock:
            return self._next

    def _stamp(self, sequence: int) -> ProducerStamp:
        return ProducerStamp(self.producer_id, self.partition, self.epoch, sequence)
