"""The changes of one look into the slot, decoded as they come, a few hundred messages at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from math import inf

from millrace.capture.decoding.change import Change
from millrace.capture.decoding.changes import ChangeDecoder
from millrace.capture.decoding.pgoutput import Lsn, is_commit

# Messages decoded together, and about how many bytes they have
BATCH = 250
BATCH_BYTES = 1_000_000


class Arriving:
    """The changes of one look, decoded as they come, and counts of what came.

    Args:
        decoder: The decoder of the slot's stream.
        messages: The messages of the slot.
        seal: Seals the personal values of changes, before they are passed on.

    Attributes:
        messages: Messages that came so far.
        changed: Their changes.
        committed_at: When the last change was committed.
        ended: Whether no message is left.
    """

    def __init__(
        self,
        decoder: ChangeDecoder,
        messages: Iterable[bytes],
        seal: Callable[[Sequence[Change]], object] = lambda _: None,
    ) -> None:
        self._decoder = decoder
        self._seal = seal
        self._messages = iter(messages)
        self.messages = 0
        self.changed = 0
        self.committed_at: datetime | None = None
        self.ended = False

    @property
    def end_lsn(self) -> Lsn | None:
        """The end of the last transaction; None if there was none."""
        return self._decoder.end_lsn

    def piece(self, least: float = inf) -> Iterator[Change]:
        """Decode the next messages: `least` of them and the rest of the last one's transaction, or all."""
        batch: list[bytes] = []
        size = 0
        for number, message in enumerate(self._messages, 1):
            batch.append(message)
            size += len(message)
            last = number >= least and is_commit(message)
            if last or len(batch) == BATCH or size >= BATCH_BYTES:
                yield from self._decoded(batch)
                batch, size = [], 0
            if last:
                return
        yield from self._decoded(batch)
        self.ended = True

    def _decoded(self, messages: Sequence[bytes]) -> Sequence[Change]:
        self.messages += len(messages)
        changes = self._decoder.feed_all(messages)
        self._seal(changes)
        self.changed += len(changes)
        if changes:
            self.committed_at = changes[-1].committed_at
        return changes
