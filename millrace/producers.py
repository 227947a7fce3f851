"""Producers whose events are stored exactly once, whatever is sent again."""

from millrace.resources.producers import IdempotentProducer, ProducerStamp, ProducerStore
from millrace.resources.producers.exactly_once import Answer, ExactlyOnce, Transaction

__all__ = ["Answer", "ExactlyOnce", "IdempotentProducer", "ProducerStamp", "ProducerStore", "Transaction"]
