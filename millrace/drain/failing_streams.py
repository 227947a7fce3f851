"""Finds the streams that make a batch fail, and the event that each fails at: a search without Spark and Postgres.

Not here: looking at a part and building it (`parts`), events that a build misreads (`misread`).

The search builds one half of a part, then the other. A half that can be built is kept, so that each good stream is
built once. A half that fails is divided again: by a hash of the stream while its streams are many, then by name. One
failing stream among n takes about 1.5 log2(n) + 3 builds; each further one as much, less the divisions that it shares.
So a search names some tens of streams, and the next batch continues. A rebuild has no next batch: its search continues
until its time is spent.

Among many streams it first tries a few, each by itself: if all of these fail, they share the reason (`End`).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, Literal, Protocol, TypeVar

Built_co = TypeVar("Built_co", covariant=True)
BuiltPart = TypeVar("BuiltPart")

# a part of up to about this many streams is divided by their names
MOST_NAMED = 32
# the most failing streams, and builds, of one search by halves that a next batch continues
MOST_FAILURES = 100
MOST_BUILDS = 400
# if this many streams fail and nothing was built, the cause is shared: no stream is blamed
ALL_FAIL = 8
# if this many builds fail for a reason that may be outside, and nothing was built, single streams are not the cause
MOST_UNCERTAIN = 16

# new events without those of streams that have a lock; events of locked streams that are tried again; or both
Source = Literal["all", "range", "retries"]

_HASHES = (-(2**63), 2**63)
_ALL_STREAMS = 2**31 - 1
_LAST_OFFSET = 2**63 - 1


@dataclass(frozen=True, order=True)
class Stream:
    """A stream and its log partition."""

    partition: int
    decider: str
    decider_id: str


@dataclass(frozen=True)
class Failure:
    """A stream that fails, the offset of the event that it fails at, why, and whether nothing else can be the cause."""

    stream: Stream
    offset: int
    error: str
    certain: bool = True


@dataclass(frozen=True)
class Part:
    """A part of the events that leases deliver.

    Attributes:
        of: The source of its events.
        hashes: Only streams with a hash, a bigint, in [first, second).
        streams: Only these.
        up_to: Only events up to this offset.
    """

    of: Source
    hashes: tuple[int, int] | None = None
    streams: tuple[Stream, ...] | None = None
    up_to: int | None = None


class PartFails(Exception):
    """A part cannot be built; the text is the reason, in one line.

    Attributes:
        certain: Whether its events are the reason; otherwise a server may be.
    """

    def __init__(self, reason: str, *, certain: bool = True) -> None:
        self.certain = certain
        super().__init__(reason)


class OutOfTime(Exception):
    """The time budget of the search is spent."""


class Batch(Protocol[Built_co]):
    """A batch as the search sees it. Each method raises `OutOfTime` when the time budget is spent."""

    def build(self, part: Part) -> Built_co:
        """Build a part; raise `PartFails` if its events prevent that."""

    def count(self, part: Part) -> int:
        """Return about how many streams a part has."""

    def streams(self, part: Part, limit: int) -> list[Stream]:
        """Return the streams of a part, `limit` at most."""

    def offsets(self, part: Part) -> Sequence[int]:
        """Return rising numbers that include all offsets of a part's events."""


class End(Enum):
    """How a search ended.

    FOUND: Every failing stream is named, everything else is built. If none is named, each part can be built, but not
        all of them together.
    MANY: More streams fail than are named; the rest of the batch was not looked at.
    LATE: The time budget is spent; the rest of the batch was not looked at.
    ALL: No part could be built, and enough streams fail to conclude that they share a cause.
    """

    FOUND = "found"
    MANY = "many"
    LATE = "late"
    ALL = "all"


@dataclass
class Findings(Generic[BuiltPart]):
    """The result of a search.

    Attributes:
        failures: The streams that fail, each with its event and the reason.
        built: The parts that were built: other streams, and the events of failing streams before the failing one.
        built_before_failure: The subset of `built` that precedes a failing event.
        builds: How many parts were tried.
        end: How the search ended.
    """

    failures: list[Failure] = field(default_factory=list)
    built: list[BuiltPart] = field(default_factory=list)
    built_before_failure: list[BuiltPart] = field(default_factory=list)
    builds: int = 0
    end: End = End.FOUND

    @property
    def blameless(self) -> bool:
        """Whether the cause may be outside of the streams: nothing could be built, and some failure is uncertain."""
        return not self.built and not all(failure.certain for failure in self.failures)


class _GivenUp(Exception):
    def __init__(self, end: End) -> None:
        self.end = end
        super().__init__(end)


def find_failing_streams(
    batch: Batch[BuiltPart], *, ranges: bool = True, retries: bool, to_the_end: bool = False
) -> Findings[BuiltPart]:
    """Divide a batch that fails to build, until each failing stream is found or the search gives up.

    `ranges` says whether the batch has new events, `retries` whether it retries locked streams. Retried streams are
    searched by themselves, for they are likely to fail again. `to_the_end` says that there is no next batch: then only
    time ends the search, for any number of failing streams.
    """
    search = _Search(batch, to_the_end=to_the_end)
    end = End.FOUND
    try:
        well = not ranges or search.divide(Part("range"), count=None, fails=not retries)
        if retries:
            search.divide(Part("retries"), count=None, fails=well)
    except _GivenUp as given_up:
        end = given_up.end
    except OutOfTime:
        end = End.LATE
    search.findings.end = end
    return search.findings


class _Search(Generic[BuiltPart]):
    def __init__(self, batch: Batch[BuiltPart], *, to_the_end: bool) -> None:
        self.findings: Findings[BuiltPart] = Findings()
        self._batch = batch
        self._to_the_end = to_the_end
        self._uncertain = 0

    def divide(self, part: Part, count: int | None, *, fails: bool) -> bool:
        """Name the failing streams of a part and build the rest; return whether nothing fails.

        `count` is about how many streams the part has, None if that is not known. `fails` says that the part is known
        to fail; otherwise it is built first.
        """
        error = None
        if not fails:
            error = self._build(part)
            if error is None:
                return True
        if part.streams is None:
            part, count = self._named_if_few(part, count, error)
        if part.streams is not None and len(part.streams) <= 1:
            return not part.streams or self._name(part, part.streams[0], error)
        if part.streams is not None:
            middle = len(part.streams) // 2
            left, right = replace(part, streams=part.streams[:middle]), replace(part, streams=part.streams[middle:])
        else:
            first, last = part.hashes or _HASHES
            middle = (first + last) // 2
            left, right = replace(part, hashes=(first, middle)), replace(part, hashes=(middle, last))
        half = None if count is None else (count + 1) // 2
        left_is_well = self.divide(left, half, fails=False)
        return self.divide(right, half, fails=left_is_well) and left_is_well

    def _named_if_few(self, part: Part, count: int | None, error: PartFails | None) -> tuple[Part, int | None]:
        """Return the part, with its streams named if they are few; and about how many streams it has.

        Gives up if some streams of a large part are tried, each by itself, and all fail.
        """
        indivisible = part.hashes is not None and part.hashes[1] - part.hashes[0] == 1
        if count is not None and count > MOST_NAMED and not indivisible:
            return part, count
        # the count is an estimate; and streams of one hash can only be divided by name, in any number
        limit = _ALL_STREAMS if indivisible else 2 * MOST_NAMED
        # The same order in each search. Not by log partition or name: streams that fail together have neighbouring
        # names, and must not all come first, or the search would conclude that all streams fail.
        streams = sorted(self._batch.streams(part, limit), key=lambda one: hashlib.sha256(repr(one).encode()).digest())
        if len(streams) < limit:
            return replace(part, hashes=None, streams=tuple(streams)), len(streams)
        if part.of == "range" and part.hashes is None and (error is None or error.certain):
            # Try some, each by itself: if all fail, so would all builds of a search. These builds are not kept, for the
            # search builds the streams again with others: so each is cut off at an offset without an event.
            for stream in streams[:ALL_FAIL]:
                try:
                    self._count_build(replace(part, streams=(stream,), up_to=_LAST_OFFSET))
                except PartFails as fails:
                    if not fails.certain:
                        break
                else:
                    break
            else:
                raise _GivenUp(End.ALL)
        return part, self._batch.count(part)

    def _name(self, part: Part, stream: Stream, error: PartFails | None) -> bool:
        """Find the event that a stream fails at and build those before it; return whether the stream can be built."""
        if error is None:
            error = self._build(part)
            if error is None:
                return True
        offsets = self._batch.offsets(part)
        before: BuiltPart | None = None
        # the events before offsets[first] can be built, those up to offsets[last] cannot
        first, last = 0, len(offsets) - 1
        while first < last:
            middle = (first + last) // 2
            try:
                before = self._count_build(replace(part, up_to=offsets[middle]))
                first = middle + 1
            except PartFails as fails:
                error = fails
                last = middle
        if before is not None:
            self.findings.built.append(before)
            self.findings.built_before_failure.append(before)
        self.findings.failures.append(Failure(stream, offsets[last], str(error), error.certain))
        if part.of == "range" and len(self.findings.failures) >= ALL_FAIL and not self.findings.built:
            raise _GivenUp(End.ALL)
        if len(self.findings.failures) >= MOST_FAILURES and not self._to_the_end:
            raise _GivenUp(End.MANY)
        return False

    def _build(self, part: Part) -> PartFails | None:
        try:
            self.findings.built.append(self._count_build(part))
        except PartFails as fails:
            return fails
        return None

    def _count_build(self, part: Part) -> BuiltPart:
        if self.findings.builds >= MOST_BUILDS and not self._to_the_end:
            raise _GivenUp(End.MANY)
        self.findings.builds += 1
        try:
            return self._batch.build(part)
        except PartFails as fails:
            self._uncertain += not fails.certain
            if self._uncertain >= MOST_UNCERTAIN and not self.findings.built:
                raise _GivenUp(End.ALL) from fails
            raise
