"""Ranges of the log, as pure functions: the ranges that options name, the part that the log holds, the tasks' parts."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from .options import Bound, EventLogOptions, InvalidOption


@dataclass(frozen=True, order=True)
class LogRange:
    """The positions [from_position, to_position) of one log partition."""

    partition: int
    from_position: int
    to_position: int

    @property
    def size(self) -> int:
        """The number of positions."""
        return self.to_position - self.from_position


@dataclass(frozen=True)
class LogState:
    """The ranges of the log, as one statement saw them.

    Attributes:
        held: For each log partition the range from its first kept position to its high-water mark.
        at: For each requested time and each log partition, the first position appended at or after that time.
    """

    held: Mapping[int, LogRange]
    at: Mapping[datetime, Mapping[int, int]]


class DataLoss(RuntimeError):
    """The log does not hold all positions to read, and `failOnDataLoss` is true."""

    def __init__(self, wanted: str, held: str) -> None:
        super().__init__(
            f"event_log: {wanted}, and {held}: history was removed, or this is another event store, or a replica that is"
            " behind. Option 'failOnDataLoss' is 'true'; allowed: true, or false to go on with what is there"
        )


def warn(wanted: str, held: str) -> None:
    """Warn through Python's logger `event_log` that data is skipped."""
    logging.getLogger("event_log").warning("event_log: %s, and %s; going on, as failOnDataLoss is false", wanted, held)


def stated_ranges(options: EventLogOptions) -> list[LogRange] | None:
    """Return the ranges of a batch if both ends are stated by position, which needs no query of Postgres; else None.

    Raises:
        InvalidOption: The two ends do not fit each other.
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
    ranges = [LogRange(partition, start[partition], end[partition]) for partition in sorted(end)]
    _require_forward(ranges)
    return [wanted for wanted in ranges if wanted.size]


def wanted_ranges(options: EventLogOptions, state: LogState) -> list[LogRange]:
    """Return the ranges of a batch. They are exact: no event that is appended later is in them.

    Raises:
        InvalidOption: A log partition does not exist, or a position lies outside of it.
    """
    starting = positions("startingOffsets", options.start, options.partitions, state)
    ending = positions("endingOffsets", options.end, options.partitions, state)
    ranges = [LogRange(partition, first, ending[partition]) for partition, first in starting.items()]
    if isinstance(options.start, Mapping) and isinstance(options.end, Mapping):
        _require_forward(ranges)
    # if a time lies beyond the other end, there is no event between them
    return [wanted for wanted in ranges if wanted.size > 0]


def positions(option: str, bound: Bound, partitions: Sequence[int] | None, state: LogState) -> dict[int, int]:
    """Return the position that an option names in each chosen log partition, or the option's default.

    Raises:
        InvalidOption: A log partition does not exist or is not chosen, or a position lies beyond the log's end.
    """
    held = state.held
    chosen = chosen_partitions(partitions, held)
    ends = {p: held[p].from_position if option == "startingOffsets" else held[p].to_position for p in chosen}
    if isinstance(bound, datetime):
        at = {p: state.at[bound][p] for p in chosen}
        if option == "startingOffsets":
            # If the time's first event is the first kept one, removed events before it may be of that time, too. With
            # the position before it failOnDataLoss decides.
            at = {p: first - 1 if 0 < first == held[p].from_position else first for p, first in at.items()}
        return at
    if not isinstance(bound, Mapping):
        return {p: held[p].from_position if bound == "earliest" else held[p].to_position for p in chosen}
    for partition, named in bound.items():
        if partition not in ends:
            raise InvalidOption(option, partition, f"log partitions {_names(chosen)}")
        # for a position below the first kept one failOnDataLoss decides
        if named > held[partition].to_position:
            raise InvalidOption(option, named, held_text(held[partition]))
    return ends | dict(bound)


def chosen_partitions(partitions: Sequence[int] | None, held: Mapping[int, LogRange]) -> list[int]:
    """Return the log partitions to read, in order.

    Raises:
        InvalidOption: A log partition does not exist.
    """
    unknown = set(partitions or ()) - set(held)
    if unknown:
        raise InvalidOption("partitions", min(unknown), f"log partitions {_names(held)}")
    return sorted(held if partitions is None else partitions)


def require_end(ranges: Iterable[LogRange], held: Mapping[int, LogRange]) -> None:
    """Refuse stated ranges that end beyond the log's end: reading them would give fewer rows than requested.

    Raises:
        InvalidOption: A log partition does not exist, or ends before its range does.
    """
    for wanted in ranges:
        if wanted.partition not in held:
            raise InvalidOption("endingOffsets", wanted.partition, f"log partitions {_names(held)}")
        if wanted.to_position > held[wanted.partition].to_position:
            raise InvalidOption("endingOffsets", wanted.to_position, held_text(held[wanted.partition]))


def held_ranges(ranges: Iterable[LogRange], held: Mapping[int, LogRange], *, fail_on_data_loss: bool) -> list[LogRange]:
    """Return the part of each range that the log holds; if that is less than the range, `failOnDataLoss` decides.

    A range with its end before its beginning counts as missing: its real beginning is not known any more.

    Raises:
        DataLoss: Something is missing, and `fail_on_data_loss` is true.
    """
    readable = []
    for wanted in ranges:
        available = held.get(wanted.partition, LogRange(wanted.partition, 0, 0))
        first = max(wanted.from_position, available.from_position)
        last = min(wanted.to_position, available.to_position)
        if wanted.size < 0 or (first, last) != (wanted.from_position, wanted.to_position):
            lost = f"positions {wanted.from_position} to {wanted.to_position} of log partition {wanted.partition} are to be read"
            if fail_on_data_loss:
                raise DataLoss(lost, f"it holds {held_text(available)}")
            warn(lost, f"it holds {held_text(available)}")
        if first < last:
            readable.append(LogRange(wanted.partition, first, last))
    return readable


def split(ranges: Sequence[LogRange], max_records: int, min_tasks: int) -> list[tuple[LogRange, ...]]:
    """Split ranges of different log partitions evenly over as few tasks as allowed: each position once, no task empty.

    Tasks differ by one position at most. Each has a slice of every range: events that were appended at about the same
    time are neighbours in Postgres, in any log partition, and are read faster together.

    Args:
        ranges: At most one of each log partition.
        max_records: The greatest number of positions in a task.
        min_tasks: The least number of tasks, unless there are fewer positions.
    """
    total = sum(wanted.size for wanted in ranges)
    if total == 0:
        return []
    full_tasks, rest = divmod(total, max_records)
    tasks = min(total, max(min_tasks, full_tasks + 1 if rest else full_tasks))
    target = {wanted.partition: wanted.to_position for wanted in ranges}
    start = {wanted.partition: wanted.from_position for wanted in ranges}
    slices = []
    shared = 0
    for task in range(1, tasks + 1):
        # the number of positions assigned after this task
        until = total * task // tasks
        end = advance(start, target, until - shared)
        slices.append(tuple(LogRange(p, first, end[p]) for p, first in start.items() if first < end[p]))
        start, shared = end, until
    return slices


def advance(start: Mapping[int, int], target: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Return the end of a batch that begins at `start`, with `limit` positions at most, and none beyond `target`.

    Each log partition gets a share in proportion to its pending positions, and at least one position. If the limit is
    smaller than the number of log partitions with pending positions, they take turns.
    """
    pending = {p: target[p] - first for p, first in sorted(start.items()) if target[p] > first}
    if limit is None or sum(pending.values()) <= limit:
        shares = pending
    elif limit < len(pending):
        shares = dict.fromkeys(_next_in_turn(start, pending, limit), 1)
    else:
        shares = _proportional(pending, limit)
    return {p: first + shares.get(p, 0) for p, first in sorted(start.items())}


def _next_in_turn(start: Mapping[int, int], pending: Mapping[int, int], number: int) -> list[int]:
    """Return the next `number` log partitions with pending positions, round-robin from batch to batch."""
    order = sorted(start)
    # the current turn is not stored: each turn advanced one position, so their sum gives it
    turn = sum(start.values()) % len(order)
    return [p for p in order[turn:] + order[:turn] if p in pending][:number]


def _proportional(pending: Mapping[int, int], limit: int) -> dict[int, int]:
    """Split `limit` positions, fewer than are pending: one for each log partition, the rest in proportion."""
    rest = limit - len(pending)
    others = sum(pending.values()) - len(pending)
    exact = {p: divmod(rest * (size - 1), others) for p, size in pending.items()}
    shares = {p: 1 + whole for p, (whole, _) in exact.items()}
    # positions left by rounding down go to the log partitions that lost most
    left = limit - sum(shares.values())
    by_loss = sorted(pending, key=lambda p: (-exact[p][1], p))
    for p in by_loss[:left]:
        shares[p] += 1
    return shares


def held_text(held: LogRange) -> str:
    """Return a text about the range that a log partition holds, for an error."""
    return f"positions {held.from_position} to {held.to_position} of log partition {held.partition}"


def _require_forward(ranges: Iterable[LogRange]) -> None:
    for wanted in ranges:
        if wanted.size < 0:
            allowed = (
                f"positions up to {wanted.to_position} of log partition {wanted.partition}, where endingOffsets ends"
            )
            raise InvalidOption("startingOffsets", wanted.from_position, allowed)


def _names(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"


def _text(positions_: Mapping[int, int]) -> str:
    return "{" + ", ".join(f'"{partition}": {position}' for partition, position in sorted(positions_.items())) + "}"
