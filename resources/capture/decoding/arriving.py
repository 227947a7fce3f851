"""The changes of one look into the slot, decoded as they come, some hundred messages at a time.

Belongs here: batches of messages, counts of what came. Not here: what a message means (`changes`), the loop (`drain`).
"""

from collections.abc import Iterable, Iterator
from datetime import datetime

from millrace.resources.capture.decoding.change import Change
from millrace.resources.capture.decoding.changes import ChangeDecoder
from millrace.resources.capture.decoding.pgoutput import Lsn

# Messages that are decoded together, and about how many bytes they have
BATCH = 500
BATCH_BYTES = 1_000_000


class Arriving:
    """The changes of one peek, decoded as they come, and counts of what came."""

    def __init__(self, decoder: ChangeDecoder) -> None:
        self._decoder = decoder
        self.messages = 0
        self.changed = 0
        self.committed_at: datetime | None = None

    @property
    def end_lsn(self) -> Lsn | None:
        """The end of the last transaction; None if there was none."""
        return self._decoder.end_lsn

    def changes(self, messages: Iterable[bytes]) -> Iterator[Change]:
        """Decode the messages."""
        for some in batches(messages):
            self.messages += len(some)
            changes = self._decoder.feed_all(some)
            self.changed += len(changes)
            if changes:
                self.committed_at = changes[-1].committed_at
            yield from changes


def batches(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Pass on the messages in batches of `BATCH`, or of about `BATCH_BYTES`."""
    batch: list[bytes] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message)
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
