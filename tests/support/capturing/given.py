"""The messages that our own reader gets from a slot, without consuming them."""

from threading import Event

import psycopg

from millrace.capture.source.connection import flush_lsn
from millrace.capture.source.stream import SlotStream


def given(source: psycopg.Connection, slot: str) -> list[bytes]:
    """Return the messages of all committed transactions; the publication has the slot's name."""
    flushed, _ = flush_lsn(source)
    found: list[bytes] = []
    with SlotStream(source, slot, slot) as stream:
        while stream.passed_lsn < flushed:
            found += stream.messages(flushed, Event())
    return found
