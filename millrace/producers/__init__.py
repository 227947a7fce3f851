"""Exactly-once producers: messages that are stored once, however often they are sent."""

from millrace.producers.exactly_once import Answer, ExactlyOnce, MessageInDoubt, Transaction
from millrace.producers.stamps import IdempotentProducer, ProducerStamp
from millrace.producers.store import (
    ExpiredTransactions,
    OverdueTransaction,
    ProducerStatistics,
    ProducerStore,
    ProducerTotals,
    ReceivedMessage,
    RegisteredProducer,
    SettledMessage,
    StateEntry,
)

__all__ = [
    "Answer",
    "ExactlyOnce",
    "ExpiredTransactions",
    "IdempotentProducer",
    "MessageInDoubt",
    "OverdueTransaction",
    "ProducerStamp",
    "ProducerStatistics",
    "ProducerStore",
    "ProducerTotals",
    "ReceivedMessage",
    "RegisteredProducer",
    "SettledMessage",
    "StateEntry",
    "Transaction",
]
