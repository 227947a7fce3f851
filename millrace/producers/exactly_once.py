"""Exactly once: a message that is sent again, even after a kill, changes nothing and gets the first answer.

A producer numbers its messages from 0. Events, state, result and the next message's number change in one transaction
of Postgres. Not here: the decision whether a message is new (`judge_stamp.sql`).
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure

from millrace.errors import (
    KeyGone,
    MillraceError,
    ProducerFenced,
    SequenceGap,
    UnknownProducer,
    UnknownTransaction,
)
from millrace.event_store import Json, StreamEvents
from millrace.patience import anew
from millrace.postgres.connecting import connect
from millrace.producers.stamps import IdempotentProducer, ProducerStamp
from millrace.producers.store import ProducerStore, ReceivedMessage, SettledMessage
from millrace.user_code import finished

if TYPE_CHECKING:
    from millrace.personal.sealer import Sealer

logger = logging.getLogger(__name__)

ATTEMPTS = 10

# The server ended the session, or is starting; 57P05 and 25P03: the session was idle.
_ENDED = {"57P01", "57P02", "57P03", "57P04", "57P05", "25P03"}


class MessageInDoubt(MillraceError):
    """The store could not be reached: the message may or may not be stored.

    Attributes:
        stamp: The message: send it again with this stamp, before any other of its producer.
    """

    def __init__(self, stamp: ProducerStamp) -> None:
        self.stamp = stamp
        super().__init__(
            "message is in doubt",
            detail=f"message {stamp.message_id}: the store did not say whether it was stored",
            hint="Send the same message again with the same stamp: process(error.stamp, work).",
        )


@dataclass(frozen=True)
class Answer:
    """The answer to a message: of this call, or, if `duplicate`, of the first call.

    Attributes:
        kept: Whether the first call's answer is still kept. If not, `result` is None and `offsets` is empty.
    """

    result: Any
    duplicate: bool
    outcome: str
    offsets: list[int]
    appended: list[bool]
    kept: bool = True


@dataclass(frozen=True)
class _Message:
    """The parts of a message other than its work."""

    stamp: ProducerStamp
    timeout_s: int = 60
    digest: bytes | None = None


class Transaction:
    """The changes of one message. Other transactions see none of them before the commit, and all of them after it."""

    def __init__(self, store: ProducerStore, transaction_id: UUID, stamp: ProducerStamp) -> None:
        self.stamp = stamp
        self._store = store
        self._id = transaction_id

    def append_all(self, streams: Iterable[StreamEvents]) -> None:
        """Append events at the commit, all or nothing; `streams` may be empty."""
        if batch := list(streams):
            self._store.add_events(self._id, batch)

    def set_state(self, key: str, value: Json) -> None:
        """Change a value of the producer's state; None removes the key."""
        self._store.add_state_change(self._id, key, value)

    def state(self, key: str) -> Any:  # noqa: ANN401 - it is what JSON holds
        """Return a value of the producer's state as of the previous message, or None."""
        entries = self._store.get_producer_state(self.stamp.producer_id, self.stamp.partition, key)
        return entries[0].value if entries else None


Work = Callable[[Transaction], Json]
Settle = Callable[[ProducerStore, UUID], SettledMessage]


class ExactlyOnce:
    """Does the work of messages exactly once, over a connection of its own, which it replaces when it is lost.

    Threads may share it. A `sealer` seals the personal values of its events.
    """

    def __init__(self, dsn: str, *, sealer: "Sealer | None" = None) -> None:
        self._dsn, self._sealer = dsn, sealer
        self._store: ProducerStore | None = None
        self._connecting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            self._store.connection.close()

    @property
    def store(self) -> ProducerStore:
        """The store's client behind a live connection."""
        with self._connecting:
            if self._store is None or self._store.connection.closed:
                self._store = ProducerStore(connect(self._dsn), sealer=self._sealer)
            return self._store

    def register(self, producer_id: str, partition: int = 0, *, initial_sequence: int = 0) -> IdempotentProducer:
        """Register an instance of a producer; it fences earlier instances.

        Args:
            producer_id: The producer's own name.
            partition: The partition of the producer's source.
            initial_sequence: The number of the first message, for a source that does not begin at 0. It applies only if
                the producer is new to the store.
        """
        return IdempotentProducer.register(self.store, producer_id, partition, initial_sequence=initial_sequence)

    def process_next(
        self, producer: IdempotentProducer, work: Work, *, timeout_s: int = 60, digest: bytes | None = None
    ) -> Answer:
        """Do the work of the producer's next message. Threads may share the producer: they take turns.

        If the work raises, the next message gets the number.

        Raises:
            MessageDiffers: As in `process`; another sender used the number.
            MessageInDoubt: The message may or may not be stored: the store does not answer.
            SequenceGap: A message before this one is in doubt, and must be sent again first.
            ProducerFenced: Another instance of the producer has registered.
            UnknownProducer: The producer is not registered with that epoch.
            TransactionEnded: The work took longer than `timeout_s`.
        """
        with producer.turn:
            stamp = producer.issue()
            opened: set[UUID] = set()
            try:
                return self._settle(_Message(stamp, timeout_s, digest), self._commit(stamp, work), opened)
            except BaseException as error:
                if not opened:
                    producer.give_back(stamp)
                elif isinstance(error, Exception):
                    raise MessageInDoubt(stamp) from error
                raise

    def process(self, stamp: ProducerStamp, work: Work, *, timeout_s: int = 60, digest: bytes | None = None) -> Answer:
        """Do the work of a message, unless it was done before; the return value of the work becomes the result.

        The work may run several times, but the changes of only one run are committed; effects outside its transaction
        are not covered. If the work raises, none of its changes are visible, and the message may be processed again.
        After a lost connection or a serialization failure the work runs again under the same stamp.

        `digest`, such as `sha256(line).digest()` of the source's message, distinguishes a repeated message from another
        one with the same number.

        Raises:
            MessageDiffers: The number came before with another `digest`.
            SequenceGap: Another message must come first.
            ProducerFenced: Another instance of the producer has registered.
            UnknownProducer: The producer is not registered with that epoch.
            TransactionEnded: The work took longer than `timeout_s`.
        """
        return self._settle(_Message(stamp, timeout_s, digest), self._commit(stamp, work), set())

    def abandon(self, stamp: ProducerStamp, reason: str) -> Answer:
        """Give a message up for good, so that the next one is accepted. Raises the errors of `process`."""
        return self._settle(_Message(stamp), lambda store, id_: store.abandon_transaction(id_, reason), set())

    def _commit(self, stamp: ProducerStamp, work: Work) -> Settle:
        return lambda store, id_: store.commit_transaction(id_, finished(work(Transaction(store, id_, stamp))))

    def _settle(self, message: _Message, settle: Settle, opened: set[UUID]) -> Answer:
        return anew(self._passes, ATTEMPTS)(self._attempt, message, settle, opened)

    def _attempt(self, message: _Message, settle: Settle, opened: set[UUID]) -> Answer:
        store, stamp = self.store, message.stamp
        received = store.begin_transaction(
            stamp.producer_id, stamp.partition, stamp.epoch, stamp.sequence, message.timeout_s, message.digest
        )
        if received.status == "duplicate":
            assert received.outcome is not None
            logger.debug("message %s came before: %s", stamp.message_id, received.outcome)
            kept, offsets, appended = received.offsets is not None, received.offsets or [], received.appended or []
            return Answer(received.result, True, received.outcome, offsets, appended, kept)
        if received.transaction_id is None:
            raise _refusal(stamp, received)
        opened.add(received.transaction_id)
        try:
            settled = settle(store, received.transaction_id)
        except BaseException as error:
            # it is raised, and its text may quote the message
            logger.warning("message %s was given up: %s", stamp.message_id, type(error).__name__)
            self._abort(opened)
            raise
        logger.debug("message %s is %s: %s events", stamp.message_id, settled.outcome, len(settled.offsets))
        return Answer(settled.result, settled.duplicate, settled.outcome, settled.offsets, settled.appended)

    def _abort(self, opened: set[UUID]) -> None:
        """Abort transactions, and remove those from `opened` that certainly have no effect, now or later."""
        for transaction_id in list(opened):
            try:
                # this waits for a commit that is still under way; then the store knows how it ended
                self.store.abort_transaction(transaction_id)
            except UnknownTransaction:
                pass
            except (psycopg.Error, MillraceError):
                # its outcome is unknown, or it was committed; an open transaction ends at its deadline
                continue
            opened.discard(transaction_id)

    def _passes(self, error: BaseException) -> bool:
        """Return whether a retry may succeed: after a lost race, a lost connection, a crash of the server."""
        if isinstance(error, SerializationFailure | DeadlockDetected | UnknownTransaction | KeyGone):
            return True
        if not isinstance(error, psycopg.Error):
            return False
        if self._store is not None and self._store.connection.closed:
            return True
        if error.sqlstate is None:
            # another connection that the work uses broke, or no connection could be opened
            return isinstance(error, psycopg.OperationalError)
        return error.sqlstate in _ENDED or error.sqlstate.startswith("08")


def _refusal(stamp: ProducerStamp, received: ReceivedMessage) -> MillraceError:
    """Return the exception for a message that the store did not take."""
    detail = (
        f"producer {stamp.producer_id!r}, partition {stamp.partition}: the message has epoch {stamp.epoch} and sequence"
        f" {stamp.sequence}, the producer epoch {received.epoch} and next sequence {received.next_sequence}"
    )
    if received.status == "gap":
        return SequenceGap(
            "message leaves a gap",
            expected=received.next_sequence,
            detail=detail,
            hint="Send the messages from the expected one on.",
        )
    if received.status == "fenced":
        return ProducerFenced(
            "producer is fenced",
            detail=detail,
            hint="Another instance took over: stop this one, or register it again.",
        )
    return UnknownProducer(
        "the producer was not registered with this epoch",
        detail=detail,
        hint="Register the producer again: the store was set back to an earlier time.",
    )
