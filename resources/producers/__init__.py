"""Exactly-once producers: messages that are stored once, however often they are sent."""

from millrace.resources.producers.store import (
    ExpiredTransactions,
    IdempotentProducer,
    ProducerStamp,
    ProducerStatistics,
    ProducerStore,
    ReceivedMessage,
    RegisteredProducer,
    SettledMessage,
)

__all__ = [
    "ExpiredTransactions",
    "IdempotentProducer",
    "ProducerStamp",
    "ProducerStatistics",
    "ProducerStore",
    "ReceivedMessage",
    "RegisteredProducer",
    "SettledMessage",
]
