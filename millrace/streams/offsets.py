"""Places in a stream, and the offsets that clients keep: texts that sort as the places do."""

import re
from dataclasses import dataclass, field, replace
from typing import Self

from starlette.exceptions import HTTPException

# of a number: a trillion events in a log partition
WIDTH = 12
OFFSET = re.compile(rf"([0-9a-f]{{8}})\.([0-9]{{6}})\.((?:[0-9]{{{WIDTH}}})+)", re.ASCII)


@dataclass(frozen=True)
class Place:
    """Where a reader stands.

    Attributes:
        store: The store, as `log_place` names it.
        at: The version of the last event that was read, or the next position of each log partition.
        epoch: The epoch of the read model's rows; 0 for others.
        passed: Offsets of events to come that the rows have already; until they came, the place has no text.
        partition: The log partition of the stream; None where all count.
    """

    store: str
    at: tuple[int, ...]
    epoch: int = 0
    passed: frozenset[int] = frozenset()
    partition: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.store}.{self.epoch:06d}.{''.join(f'{number:0{WIDTH}d}' for number in self.at)}"

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the place of an offset.

        Raises:
            HTTPException: The text is no offset.
        """
        found = OFFSET.fullmatch(text)
        if found is None:
            raise HTTPException(400, "The offset must be -1, now, or a Stream-Next-Offset of this stream.")
        store, epoch, numbers = found.groups()
        at = tuple(int(numbers[start : start + WIDTH]) for start in range(0, len(numbers), WIDTH))
        return cls(store, at, int(epoch))

    def after(self, at: tuple[int, ...], came: frozenset[int]) -> Self:
        """Return the place behind some events, of which `came` are offsets."""
        return replace(self, at=at, passed=self.passed - came)
