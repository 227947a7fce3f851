"""The store's functions for producers: one method per SQL function, same name, same argument order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from millrace.errors import KeyGone
from millrace.event_store import Json, StreamEvents, all_passed_on, batch_json, parsed
from millrace.event_store.json_text import jsonb
from millrace.event_store.sealing import Sealing


@dataclass(frozen=True)
class RegisteredProducer:
    """An instance of a producer: its epoch, and its next sequence."""

    producer_id: str
    partition: int
    epoch: int
    next_sequence: int


@dataclass(frozen=True)
class ReceivedMessage:
    """The store's answer to a message.

    Attributes:
        status: 'opened' or 'committed'; 'duplicate'; or the reason of a refusal: 'gap', 'fenced', 'unknown_epoch'.
        transaction_id: The transaction of an opened message.
        expires_at: The deadline of that transaction.
        outcome: The first outcome of a duplicate.
        result: The first result of a duplicate, or the result of a committed message.
        offsets: The offsets of the message's events; None for a duplicate after its answer was purged.
        appended: For each of these events whether it was new; the others were stored before.
        next_sequence: The sequence that the producer must send next.
        epoch: The epoch of the instance that registered last.
    """

    status: str
    transaction_id: UUID | None
    expires_at: datetime | None
    outcome: str | None
    result: Any
    offsets: list[int] | None
    appended: list[bool] | None
    next_sequence: int
    epoch: int


@dataclass(frozen=True)
class SettledMessage:
    """The outcome of a message; `duplicate` if another transaction of the same message ended it before."""

    duplicate: bool
    outcome: str
    result: Any
    offsets: list[int]
    appended: list[bool]
    next_sequence: int


@dataclass(frozen=True)
class StateEntry:
    """A value that a producer keeps beside its events."""

    key: str
    value_json: str

    @cached_property
    def value(self) -> Any:  # noqa: ANN401 - it is what JSON holds
        """The value; raises `UnreadableData` if Python cannot read it."""
        return parsed(self.value_json, f"state {self.key!r} of a producer")


@dataclass(frozen=True)
class ExpiredTransactions:
    """The number of transactions that a call ended after their deadline, and of those removed long after their end."""

    expired: int
    removed: int


@dataclass(frozen=True)
class ProducerStatistics:
    """The epoch and next sequence of a producer, and counts of its messages by outcome.

    `received` is the sum of `duplicates`, `refused` and `opened`; `opened` is the sum of `committed` to `open`, unless
    the server crashed.
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


@dataclass(frozen=True)
class ProducerTotals:
    """Totals over all producers: their number, and counts of their messages by outcome."""

    producers: int
    received: int
    duplicates: int
    refused: int
    committed: int
    aborted: int
    abandoned: int
    expired: int
    superseded: int
    open: int


@dataclass(frozen=True)
class OverdueTransaction:
    """An open transaction after its deadline."""

    producer_id: str
    partition: int
    transaction_id: UUID
    sequence: int
    begun_at: datetime
    expires_at: datetime


class ProducerStore(Sealing):
    """The functions for producers. Every method raises the `MillraceError` of its SQL function."""

    def register_producer(
        self, producer_id: str, partition: int = 0, owner: str | None = None, initial_sequence: int = 0
    ) -> RegisteredProducer:
        """Register an instance and fence earlier ones; a new producer begins with `initial_sequence`."""
        return self._one(
            RegisteredProducer,
            "select * from event_store.register_producer(%s, %s, %s, %s)",
            (producer_id, partition, owner, initial_sequence),
        )

    def begin_transaction(
        self,
        producer_id: str,
        partition: int,
        epoch: int,
        sequence: int,
        timeout_s: int = 60,
        digest: bytes | None = None,
    ) -> ReceivedMessage:
        """Open a transaction for a message if it is the next one; it expires after `timeout_s` seconds."""
        return self._one(
            ReceivedMessage,
            "select * from event_store.begin_transaction(%s, %s, %s, %s, %s, %s)",
            (producer_id, partition, epoch, sequence, timeout_s, digest),
        )

    def add_state_change(self, transaction_id: UUID, key: str, value: Json) -> None:
        """Stage a value of the producer's state; None removes the key."""
        self._value(
            str,
            "select event_store.add_state_change(%s, %s, %s)",
            (transaction_id, key, None if value is None else jsonb(value)),
        )

    def add_events(self, transaction_id: UUID, events: Iterable[StreamEvents]) -> None:
        """Stage events for the commit, which appends them."""
        batch = batch_json(self._sealed(all_passed_on(events)))
        self._value(str, "select event_store.add_events(%s, %s::jsonb)", (transaction_id, batch))

    def commit_transaction(self, transaction_id: UUID, result: Json = None) -> SettledMessage:
        """Apply all staged changes atomically; or return the answer of another transaction of the same message."""
        try:
            return self._one(
                SettledMessage,
                "select * from event_store.commit_transaction(%s, %s)",
                (transaction_id, None if result is None else jsonb(result)),
            )
        except KeyGone:
            if self.sealer is not None:
                self.sealer.drop_keys()
            raise

    def abort_transaction(self, transaction_id: UUID) -> None:
        """Give up a transaction; its message may begin again."""
        self._value(str, "select event_store.abort_transaction(%s)", (transaction_id,))

    def abandon_transaction(self, transaction_id: UUID, reason: str) -> SettledMessage:
        """Give up a message for good, so that the next one is accepted."""
        return self._one(
            SettledMessage, "select * from event_store.abandon_transaction(%s, %s)", (transaction_id, reason)
        )

    def ingest_events(
        self,
        producer_id: str,
        partition: int,
        epoch: int,
        sequence: int,
        events: Iterable[StreamEvents] = (),
        state: Mapping[str, Json] | None = None,
        result: Json = None,
        digest: bytes | None = None,
    ) -> ReceivedMessage:
        """Do a whole message in one call: append events, change the state (None removes a key), store the result."""
        batch = all_passed_on(events)
        rest = jsonb(dict(state)) if state is not None else None, None if result is None else jsonb(result), digest

        def ingested(sealed: Sequence[StreamEvents]) -> ReceivedMessage:
            call = "select * from event_store.ingest_events(%s, %s, %s, %s, %s::jsonb, %s, %s, %s)"
            text = batch_json(sealed) if sealed else None
            return self._one(ReceivedMessage, call, (producer_id, partition, epoch, sequence, text, *rest))

        try:
            return ingested(self._sealed(batch))
        except KeyGone:
            return ingested(self._sealed_anew(batch))

    def get_producer_state(self, producer_id: str, partition: int, key: str | None = None) -> list[StateEntry]:
        """Return one value of a producer's state, or all in the order of their keys."""
        return self._all(
            StateEntry, "select * from event_store.get_producer_state(%s, %s, %s)", (producer_id, partition, key)
        )

    def producer_statistics(self, producer_id: str | None = None) -> list[ProducerStatistics]:
        """Return one row per partition of a producer, None for all producers."""
        return self._all(
            ProducerStatistics, "select * from event_store_platform.producer_statistics(%s)", (producer_id,)
        )

    def producer_totals(self) -> ProducerTotals:
        """Return the numbers of all producers together."""
        rows = self.producer_statistics()
        counted = [field.name for field in fields(ProducerTotals) if field.name != "producers"]
        return ProducerTotals(
            len({row.producer_id for row in rows}),
            **{name: sum(getattr(row, name) for row in rows) for name in counted},
        )

    def overdue_transactions(self, late_s: int = 120, limit: int = 100) -> list[OverdueTransaction]:
        """Return the open transactions at least `late_s` seconds past their deadline, the oldest first."""
        return self._all(
            OverdueTransaction, "select * from event_store_platform.overdue_transactions(%s, %s)", (late_s, limit)
        )

    def expire_transactions(self, keep_s: int = 86400, limit: int = 1000) -> ExpiredTransactions:
        """End overdue transactions, and remove those that ended without an effect `keep_s` seconds ago."""
        return self._one(
            ExpiredTransactions, "select * from event_store_platform.expire_transactions(%s, %s)", (keep_s, limit)
        )

    def hold_producers(self) -> str:
        """Block every producer's messages until this transaction ends; return a snapshot with all they committed."""
        return self._value(str, "select event_store_platform.hold_producers()::text")

    def is_sequenced(self, committed: str) -> bool:
        """Return whether every event that a snapshot sees has its position."""
        return self._value(bool, "select event_store_platform.is_sequenced(%s::pg_snapshot)", (committed,))
