"""Stamps: the numbers with which an instance of a producer names its messages."""

import threading
from dataclasses import dataclass
from typing import Self

from millrace.producers.store import ProducerStore, RegisteredProducer


@dataclass(frozen=True)
class ProducerStamp:
    """Names one message: the same stamp is the same message, from any sender."""

    producer_id: str
    partition: int
    epoch: int
    sequence: int

    @property
    def message_id(self) -> str:
        """The message as a text, such as 'orders.csv/0/41': the same for every instance."""
        return f"{self.producer_id}/{self.partition}/{self.sequence}"


class IdempotentProducer:
    """Numbers the messages of one instance of a producer. Threads may share it: no number is issued twice.

    Attributes:
        turn: Its holder sends the next message. The store takes messages in their order, so threads take turns.
    """

    def __init__(self, registered: RegisteredProducer) -> None:
        self.producer_id = registered.producer_id
        self.partition = registered.partition
        self.epoch = registered.epoch
        self.turn = threading.Lock()
        self._next = registered.next_sequence
        self._lock = threading.Lock()

    @classmethod
    def register(cls, store: ProducerStore, producer_id: str, partition: int = 0, *, initial_sequence: int = 0) -> Self:
        """Register an instance, which fences earlier instances and continues their numbers.

        A producer that is new to the store begins with the number `initial_sequence`.
        """
        return cls(store.register_producer(producer_id, partition, initial_sequence=initial_sequence))

    def issue(self) -> ProducerStamp:
        """Return the stamp of a new message."""
        with self._lock:
            stamp = self._stamp(self._next)
            self._next += 1
            return stamp

    def give_back(self, stamp: ProducerStamp) -> None:
        """Take back the number of a message that was not stored, unless a later number was issued since."""
        with self._lock:
            if self._next == stamp.sequence + 1:
                self._next = stamp.sequence

    def reissue(self, sequence: int) -> ProducerStamp:
        """Return the stamp of a message that is sent again; new messages get later numbers."""
        with self._lock:
            self._next = max(self._next, sequence + 1)
            return self._stamp(sequence)

    def was_issued(self, sequence: int) -> bool:
        """Return whether a number was ever issued, by this instance or an earlier one."""
        with self._lock:
            return 0 <= sequence < self._next

    @property
    def current_sequence(self) -> int:
        """The number that `issue` returns next."""
        with self._lock:
            return self._next

    def _stamp(self, sequence: int) -> ProducerStamp:
        return ProducerStamp(self.producer_id, self.partition, self.epoch, sequence)
