"""Ranges of the log: what an option names of it, what is kept of that, and who reads which part.

Belongs here: plans, as pure functions of what Postgres said. Not here: asking Postgres (`log`), reading (`reading`).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from .options import EventLogOptions, InvalidOption, Position


@dataclass(frozen=True)
class OffsetRange:
    """The positions [from_offset, to_offset) of one log partition."""

    partition: int
    from_offset: int
    to_offset: int

    @property
    def size(self) -> int:
        """How many positions."""
        return self.to_offset - self.from_offset


@dataclass(frozen=True)
class LogState:
    """What the log held when one statement looked.

    Attributes:
        held: For each log partition, from its first kept offset to its high-water mark.
        at: For each time that was asked for and each log partition, the first offset appended at or after it.
    """

    held: Mapping[int, OffsetRange]
    at: Mapping[datetime, Mapping[int, int]]


class DataLoss(RuntimeError):
    """The log does not hold what is to be read, and `failOnDataLoss` is true."""

    def __init__(self, wanted: str, held: str) -> None:
        super().__init__(
            f"event_log: {wanted}, and {held}: history was removed, or this is another event store, or a replica that is"
            " behind. Option 'failOnDataLoss' is 'true'; allowed: true, or false to go on with what is there"
        )


def warn(wanted: str, held: str) -> None:
    """Say in the log that data were passed over."""
    logging.getLogger("event_log").warning("event_log: %s, and %s; going on, as failOnDataLoss is false", wanted, held)


def stated_ranges(options: EventLogOptions) -> list[OffsetRange] | None:
    """The ranges of a batch where both options name them, so that nobody needs to ask Postgres; else None.

    Raises:
        InvalidOption: The two do not fit each other.
    """
    start, end = options.start, options.end
    if not isinstance(start, Mapping) or not isinstance(end, Mapping):
        return None
    named = _names(end)
    if set(start) != set(end):
        raise InvalidOption("startingOffsets", _text(start), f"exactly those that endingOffsets names: {named}")
    if options.partitions is not None and set(options.partitions) != set(end):
        allowed = f"exactly those that endingOffsets names: {named}"
        raise InvalidOption("partitions", list(options.partitions), allowed)
    ranges = [OffsetRange(partition, start[partition], end[partition]) for partition in sorted(end)]
    _require_forward(ranges)
    return [wanted for wanted in ranges if wanted.size]


def wanted_ranges(options: EventLogOptions, state: LogState) -> list[OffsetRange]:
    """The ranges of a batch, exact: whatever is appended later is not in them.

    Raises:
        InvalidOption: A log partition does not exist, or an offset lies outside of it.
    """
    starting = positions("startingOffsets", options.start, options.partitions, state)
    ending = positions("endingOffsets", options.end, options.partitions, state)
    ranges = [OffsetRange(partition, first, ending[partition]) for partition, first in starting.items()]
    if isinstance(options.start, Mapping) and isinstance(options.end, Mapping):
        _require_forward(ranges)
    # a time may lie beyond the other end: that is no event
    return [wanted for wanted in ranges if wanted.size > 0]


def positions(option: str, position: Position, partitions: Sequence[int] | None, state: LogState) -> dict[int, int]:
    """The partition offset that an option names in each chosen log partition, where it names none its default.

    Raises:
        InvalidOption: A log partition does not exist or is not chosen, or an offset lies beyond the log's end.
    """
    held = state.held
    chosen = chosen_partitions(partitions, held)
    ends = {p: held[p].from_offset if option == "startingOffsets" else held[p].to_offset for p in chosen}
    if isinstance(position, datetime):
        at = {p: state.at[position][p] for p in chosen}
        if option == "startingOffsets":
            # What was removed before the first kept event may be of that time, too: failOnDataLoss decides.
            at = {p: offset - 1 if 0 < offset == held[p].from_offset else offset for p, offset in at.items()}
        return at
    if not isinstance(position, Mapping):
        return {p: held[p].from_offset if position == "earliest" else held[p].to_offset for p in chosen}
    for partition, offset in position.items():
        if partition not in ends:
            raise InvalidOption(option, partition, f"log partitions {_names(chosen)}")
        # below the first kept one is a matter of failOnDataLoss
        if offset > held[partition].to_offset:
            raise InvalidOption(option, offset, held_text(held[partition]))
    return ends | dict(position)


def chosen_partitions(partitions: Sequence[int] | None, held: Mapping[int, OffsetRange]) -> list[int]:
    """The log partitions to read, in order.

    Raises:
        InvalidOption: One does not exist.
    """
    unknown = set(partitions or ()) - set(held)
    if unknown:
        raise InvalidOption("partitions", min(unknown), f"log partitions {_names(held)}")
    return sorted(held if partitions is None else partitions)


def require_end(ranges: Iterable[OffsetRange], held: Mapping[int, OffsetRange]) -> None:
    """Refuse stated ranges that end where the log is not yet, rather than read fewer rows.

    Raises:
        InvalidOption: A log partition does not exist, or does not reach so far.
    """
    for wanted in ranges:
        if wanted.partition not in held:
            raise InvalidOption("endingOffsets", wanted.partition, f"log partitions {_names(held)}")
        if wanted.to_offset > held[wanted.partition].to_offset:
            raise InvalidOption("endingOffsets", wanted.to_offset, held_text(held[wanted.partition]))


def held_ranges(
    ranges: Iterable[OffsetRange], held: Mapping[int, OffsetRange], *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """The part of each range that the log holds; where that is less than the range, `failOnDataLoss` decides.

    A range whose end lies before its beginning is one whose beginning nobody knows any more.

    Raises:
        DataLoss: Something is missing, and that is not to be passed over.
    """
    kept = []
    for wanted in ranges:
        there = held.get(wanted.partition, OffsetRange(wanted.partition, 0, 0))
        first = max(wanted.from_offset, there.from_offset)
        last = min(wanted.to_offset, there.to_offset)
        if wanted.size < 0 or (first, last) != (wanted.from_offset, wanted.to_offset):
            lost = (
                f"offsets {wanted.from_offset} to {wanted.to_offset} of log partition {wanted.partition} are to be read"
            )
            if fail_on_data_loss:
                raise DataLoss(lost, f"it holds {held_text(there)}")
            warn(lost, f"it holds {held_text(there)}")
        if first < last:
            kept.append(OffsetRange(wanted.partition, first, last))
    return kept


def split(ranges: Sequence[OffsetRange], max_records: int, min_tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Share ranges of different log partitions evenly over as few tasks as allowed: each position once, no task empty.

    Tasks differ by one position at most. Each has a slice of every range, as a batch has: events that were appended at about
    the same time lie side by side in Postgres, whatever their log partition is, and are read faster together.
    """
    total = sum(wanted.size for wanted in ranges)
    tasks = min(total, max(min_tasks, -(-total // max_records)))
    target = {wanted.partition: wanted.to_offset for wanted in ranges}
    start = {wanted.partition: wanted.from_offset for wanted in ranges}
    slices = []
    for task in range(tasks):
        end = advance(start, target, (task + 1) * total // tasks - task * total // tasks)
        slices.append(tuple(OffsetRange(p, first, end[p]) for p, first in start.items() if first < end[p]))
        start = end
    return slices


def advance(start: Mapping[int, int], target: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Where a batch ends that begins at `start`, reads `limit` positions at most, and none beyond `target`.

    Each log partition gets a share in proportion to what it has pending, and one position at least. Where the limit is
    smaller than the number of log partitions that have something, they take turns.
    """
    pending = {p: target[p] - first for p, first in sorted(start.items()) if target[p] > first}
    total = sum(pending.values())
    if limit is None or total <= limit:
        shares = pending
    elif limit < len(pending):
        # the sum of offsets is how often it was somebody's turn
        turn = sum(start.values()) % len(start)
        order = sorted(start)
        circle = [p for p in order[turn:] + order[:turn] if p in pending]
        shares = dict.fromkeys(circle[:limit], 1)
    else:
        rest, others = limit - len(pending), total - len(pending)
        shares = {p: 1 + rest * (size - 1) // others for p, size in pending.items()}
        # what rounding down left goes where it took most
        by_remainder = sorted(pending, key=lambda p: (-(rest * (pending[p] - 1) % others), p))
        for p in by_remainder[: limit - sum(shares.values())]:
            shares[p] += 1
    return {p: first + shares.get(p, 0) for p, first in sorted(start.items())}


def held_text(held: OffsetRange) -> str:
    """What a log partition holds, for an error."""
    return f"offsets {held.from_offset} to {held.to_offset} of log partition {held.partition}"


def _require_forward(ranges: Iterable[OffsetRange]) -> None:
    for wanted in ranges:
        if wanted.size < 0:
            allowed = f"offsets up to {wanted.to_offset} of log partition {wanted.partition}, where endingOffsets ends"
            raise InvalidOption("startingOffsets", wanted.from_offset, allowed)


def _names(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"


def _text(offsets: Mapping[int, int]) -> str:
    return "{" + ", ".join(f'"{partition}": {offset}' for partition, offset in sorted(offsets.items())) + "}"
