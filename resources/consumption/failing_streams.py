"""Finds the streams that fail a batch, and in each the event that it fails at, by building parts of the batch.

Belongs here: which part is built next, as a search that knows neither Spark nor Postgres. Not here: building a part
(`read_model_build`), what happens to a stream that fails (`consumer`).

A part that can be built is kept, so each stream that is well is built once more, whatever its number; only the halves that hold a
failing stream are divided again, by a hash of the stream as long as they are many, then by name. To find one stream of n takes
about 1.5 log2(n) + 3 builds, each further one as much for what it does not share with those before.

The search gives up where it would not end soon, or where what fails is not a stream: see `End`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, Literal, Protocol, TypeVar

Built_co = TypeVar("Built_co", covariant=True)
Kept = TypeVar("Kept")

# as many streams are told by name
NAMED = 32
# found in one search at most; those that are left are found in the next batch
MOST_FAILURES = 100
MOST_BUILDS = 400
# so many that fail, and nothing else that does not: then it is not the streams
ALL_FAIL = 8

# the ranges without the streams that have a lock, the events that are tried again, or both
Source = Literal["all", "range", "retries"]

_HASHES = (-(2**63), 2**63)


@dataclass(frozen=True, order=True)
class Stream:
    """A stream and its log partition."""

    partition: int
    decider: str
    decider_id: str


@dataclass(frozen=True)
class Part:
    """A part of what leases deliver.

    Attributes:
        of: Where its events come from.
        hashes: Only streams whose hash, a bigint, lies in [first, second).
        streams: Only these.
        up_to: Only events up to this offset.
    """

    of: Source
    hashes: tuple[int, int] | None = None
    streams: tuple[Stream, ...] | None = None
    up_to: int | None = None


@dataclass(frozen=True)
class Failure:
    """A stream that fails, the offset of the event that it fails at, and why."""

    stream: Stream
    offset: int
    error: str


class PartFails(Exception):
    """A part cannot be built because of its events; the text is the reason, in one line."""


class Batch(Protocol[Built_co]):
    """What the search asks of a batch."""

    def build(self, part: Part) -> Built_co:
        """Build a part; raise `PartFails` if its events do not let it."""

    def count(self, part: Part) -> int:
        """About how many streams a part has."""

    def streams(self, part: Part, limit: int) -> list[Stream]:
        """The streams of a part, `limit` at most."""

    def offsets(self, part: Part) -> Sequence[int]:
        """Rising numbers, all offsets of a part's events among them."""


class End(Enum):
    """How a search ended.

    FOUND: All that fails is named, all else is built. None named: the parts can be built, and only all together cannot.
    MANY: More fail than are named; what else there is, is not known.
    ALL: So many fail that it is not the streams: nothing could be built.
    """

    FOUND = "found"
    MANY = "many"
    ALL = "all"


@dataclass
class Findings(Generic[Kept]):
    """What a search found, and what it built: what is not named in `failures`, and of these what comes before the failing event.

    `before` is the latter alone: whatever else there is, that much of the streams in `failures` can be built.
    """

    failures: list[Failure] = field(default_factory=list)
    built: list[Kept] = field(default_factory=list)
    before: list[Kept] = field(default_factory=list)
    builds: int = 0
    end: End = End.FOUND


class _GivenUpError(Exception):
    pass


def find_failing_streams(batch: Batch[Kept], *, ranges: bool = True, retries: bool) -> Findings[Kept]:
    """Divide a batch that cannot be built until each stream that fails is found, or the search gives up.

    `ranges` says whether the batch has new events, `retries` whether it tries streams again. Those are looked at by themselves,
    for they are likely to fail again.
    """
    search = _Search(batch)
    try:
        well = not ranges or search.divide(Part("range"), count=None, fails=not retries)
        if retries:
            search.divide(Part("retries"), count=None, fails=well)
    except _GivenUpError:
        pass
    return search.findings


class _Search(Generic[Kept]):
    def __init__(self, batch: Batch[Kept]) -> None:
        self.findings: Findings[Kept] = Findings()
        self._batch = batch

    def divide(self, part: Part, count: int | None, *, fails: bool) -> bool:
        """Name what fails in a part and build the rest; return whether nothing fails.

        `count` is about how many streams it has. `fails`: it is known to, or else it is built first.
        """
        error = None
        if not fails:
            error = self._build(part)
            if error is None:
                return True
        if part.streams is None:
            part, count = self._looked_at(part, count)
        if part.streams is not None and len(part.streams) <= 1:
            return not part.streams or self._name(part, part.streams[0], error)
        left, right = _halves(part)
        half = None if count is None else -(-count // 2)
        left_is_well = self.divide(left, half, fails=False)
        return self.divide(right, half, fails=left_is_well) and left_is_well

    def _looked_at(self, part: Part, count: int | None) -> tuple[Part, int | None]:
        """The part with its streams by name if they are few, else about how many they are."""
        only_one_hash = part.hashes is not None and part.hashes[1] - part.hashes[0] == 1
        if count is None or count <= NAMED or only_one_hash:
            limit = 2**31 - 1 if only_one_hash else 2 * NAMED
            streams = sorted(self._batch.streams(part, limit), key=_shuffled)
            if len(streams) < limit:
                return replace(part, hashes=None, streams=tuple(streams)), len(streams)
            return part, self._batch.count(part)
        return part, count

    def _name(self, part: Part, stream: Stream, error: str | None) -> bool:
        """Find the event that one stream fails at, and build what comes before it."""
        if error is None:
            error = self._build(part)
            if error is None:
                return True
        offsets = self._batch.offsets(part)
        before: Kept | None = None
        # what lies below first is well, what reaches to last fails
        first, last = 0, len(offsets) - 1
        while first < last:
            middle = (first + last) // 2
            try:
                before = self._count_build(replace(part, up_to=offsets[middle]))
                first = middle + 1
            except PartFails as fails:
                error = str(fails)
                last = middle
        if before is not None:
            self.findings.built.append(before)
            self.findings.before.append(before)
        self.findings.failures.append(Failure(stream, offsets[last], error))
        if part.of == "range" and len(self.findings.failures) >= ALL_FAIL and not self.findings.built:
            self._give_up(End.ALL)
        if len(self.findings.failures) >= MOST_FAILURES:
            self._give_up(End.MANY)
        return False

    def _build(self, part: Part) -> str | None:
        try:
            self.findings.built.append(self._count_build(part))
        except PartFails as fails:
            return str(fails)
        return None

    def _count_build(self, part: Part) -> Kept:
        if self.findings.builds >= MOST_BUILDS:
            self._give_up(End.MANY)
        self.findings.builds += 1
        return self._batch.build(part)

    def _give_up(self, end: End) -> None:
        self.findings.end = end
        raise _GivenUpError


def _shuffled(stream: Stream) -> bytes:
    # the same in each search, and not by log partition or name: what fails together must not stand together before all others
    return hashlib.sha256(repr(stream).encode()).digest()


def _halves(part: Part) -> tuple[Part, Part]:
    if part.streams is not None:
        middle = len(part.streams) // 2
        return replace(part, streams=part.streams[:middle]), replace(part, streams=part.streams[middle:])
    first, last = part.hashes or _HASHES
    middle = (first + last) // 2
    return replace(part, hashes=(first, middle)), replace(part, hashes=(middle, last))
