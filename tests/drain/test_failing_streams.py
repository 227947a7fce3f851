"""The search for failing streams: it names them, builds all others once, and ends soon for any failure."""

from collections.abc import Sequence
from functools import cache
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.drain import failing_streams
from millrace.drain.failing_streams import ALL_FAIL, End, Part, PartFails, Stream, find_failing_streams

# stream -> its offsets, and those of the events that cannot be built
Events = dict[Stream, list[int]]
Poison = dict[Stream, set[int]]


class Simulated:
    """A batch of events in memory; its result is the set of events."""

    def __init__(self, events: Events, poison: Poison, retried: frozenset[Stream] = frozenset()) -> None:
        self.events = events
        self.poison = poison
        self.retried = retried
        self.looks = 0

    def of(self, part: Part) -> Events:
        found = {}
        first, end = part.hashes or (-(2**63), 2**63)
        for stream, offsets in self.events.items():
            if part.of != "all" and (part.of == "retries") != (stream in self.retried):
                continue
            if first <= hashed(stream) < end and (part.streams is None or stream in part.streams):
                here = [o for o in offsets if part.up_to is None or o <= part.up_to]
                if here:
                    found[stream] = here
        return found

    def build(self, part: Part) -> set[tuple[Stream, int]]:
        events = self.of(part)
        for stream, offsets in events.items():
            for offset in sorted(self.poison.get(stream, set()) & set(offsets)):
                raise PartFails(f"offset {offset}")
        return {(stream, offset) for stream, offsets in events.items() for offset in offsets}

    def count(self, part: Part) -> int:
        self.looks += 1
        return len(self.of(part))

    def streams(self, part: Part, limit: int) -> list[Stream]:
        self.looks += 1
        return list(self.of(part))[:limit]

    def offsets(self, part: Part) -> Sequence[int]:
        (offsets,) = self.of(part).values()
        # as if there were too many offsets to list
        return range(offsets[0], offsets[-1] + 1) if len(offsets) > 5 else offsets


@cache
def hashed(stream: Stream) -> int:
    return (crc32(stream.decider_id.encode()) << 32) - 2**63


@cache
def stream(number: int) -> Stream:
    return Stream(number % 16, "thing", f"thing-{number}")


def flat(found: failing_streams.Findings[set[tuple[Stream, int]]]) -> list[tuple[Stream, int]]:
    return sorted(event for part in found.built for event in part)


def first_of(poison: Poison) -> dict[Stream, int]:
    return {stream: min(bad) for stream, bad in poison.items() if bad}


def before(events: Events, poison: Poison) -> list[tuple[Stream, int]]:
    first = first_of(poison)
    return sorted((s, offset) for s, offsets in events.items() for offset in offsets if offset < first.get(s, 2**40))


def assert_before_them(found: failing_streams.Findings[set[tuple[Stream, int]]], events: Events) -> None:
    assert sorted(event for part in found.built_before_failure for event in part) == sorted(
        (f.stream, offset) for f in found.failures for offset in events[f.stream] if offset < f.offset
    )


def test_one_of_many_streams_is_found_in_few_builds() -> None:
    for number, most in ((1, 2), (100, 14), (10_000, 28)):
        events = {stream(n): [n] for n in range(number)}
        bad = stream(number // 3)
        batch = Simulated(events, {bad: {number // 3}})
        found = find_failing_streams(batch, retries=False)
        assert [failure.stream for failure in found.failures] == [bad]
        assert len(flat(found)) == number - 1
        assert found.builds <= most
        assert batch.looks <= 4


def test_where_many_fail_it_ends_with_those_that_it_found() -> None:
    events = {stream(n): [n, 10_000 + n, 20_000 + n] for n in range(1000)}
    poison: Poison = {stream(n): {10_000 * (n % 3) + n} for n in range(0, 1000, 4)}
    found = find_failing_streams(Simulated(events, poison), retries=False)
    assert found.end is End.MANY
    assert 50 <= len(found.failures) <= failing_streams.MOST_FAILURES
    assert found.builds <= failing_streams.MOST_BUILDS
    assert all({failure.offset} == poison[failure.stream] for failure in found.failures)
    assert_before_them(found, events)


@settings(max_examples=60, deadline=None)
@given(builds=st.lists(st.booleans(), min_size=1, max_size=12), others=st.integers(0, 5))
def test_with_the_named_event_a_stream_fails_and_without_it_does_not(builds: list[bool], others: int) -> None:
    """For any cause of failure, even its full length alone, or a sum that leaves its bounds and comes back."""
    events = {stream(n): [1000 * k + n for k in range(len(builds))] for n in range(others + 1)}

    class OfWhatever(Simulated):
        def build(self, part: Part) -> set[tuple[Stream, int]]:
            of_it = self.of(part).get(stream(0), [])
            if of_it and not builds[len(of_it) - 1]:
                raise PartFails(f"{len(of_it)} events")
            return super().build(part)

    found = find_failing_streams(OfWhatever(events, {}), retries=False)
    offsets = events[stream(0)]
    if builds[-1]:
        assert found.failures == []
    else:
        (failure,) = found.failures
        failing = offsets.index(failure.offset)
        assert not builds[failing]
        assert failing == 0 or builds[failing - 1]
        assert failure.error == f"{failing + 1} events"
        assert sorted(event for part in found.built_before_failure for event in part) == [
            (stream(0), o) for o in offsets[:failing]
        ]


def test_of_many_retried_streams_that_fail_again_the_named_ones_are_exact() -> None:
    events = {stream(n): [n, 10_000 + n] for n in range(1000)}
    poison: Poison = {stream(n): {10_000 + n} for n in range(1000)}
    found = find_failing_streams(Simulated(events, poison, frozenset(events)), ranges=False, retries=True)
    assert found.end is End.MANY
    assert len(found.failures) >= 50
    assert all({failure.offset} == poison[failure.stream] for failure in found.failures)


def test_where_everything_fails_it_ends_soon_and_says_so() -> None:
    for streams, builds in ((40, 60), (10_000, ALL_FAIL)):
        events = {stream(n): [n, 100_000 + n] for n in range(streams)}
        found = find_failing_streams(Simulated(events, {stream(n): {n} for n in range(streams)}), retries=False)
        assert found.end is End.ALL
        assert found.builds <= builds


def test_a_few_that_fail_and_come_first_by_name_do_not_hold_up_all_others() -> None:
    events = {stream(n): [n] for n in range(32)}
    found = find_failing_streams(Simulated(events, {stream(n): {n} for n in range(ALL_FAIL)}), retries=False)
    assert found.end is End.FOUND
    assert sorted(f.stream for f in found.failures) == [stream(n) for n in range(ALL_FAIL)]


def test_where_only_all_together_fail_nobody_is_named() -> None:
    class Together(Simulated):
        def build(self, part: Part) -> set[tuple[Stream, int]]:
            if len(self.of(part)) == len(self.events):
                raise PartFails("the sum is too large")
            return super().build(part)

    events = {stream(n): [n] for n in range(300)}
    found = find_failing_streams(Together(events, {}), retries=False)
    assert (found.end, found.failures) == (End.FOUND, [])


class Crashing(Simulated):
    """A batch with poison that crashes the process: an event may or may not be the reason."""

    def build(self, part: Part) -> set[tuple[Stream, int]]:
        try:
            return super().build(part)
        except PartFails as fails:
            raise PartFails(str(fails), certain=False) from fails


def test_a_stream_is_to_blame_for_a_crash_if_others_are_built_meanwhile() -> None:
    events = {stream(n): [n] for n in range(100)}
    found = find_failing_streams(Crashing(events, {stream(7): {7}}), retries=False)
    assert [failure.stream for failure in found.failures] == [stream(7)]
    assert (found.end, found.blameless) == (End.FOUND, False)
    assert len(flat(found)) == 99


def test_where_nothing_is_built_no_stream_is_to_blame_for_a_crash() -> None:
    for number in (1, 3, 1000):
        events = {stream(n): [n] for n in range(number)}
        poison: Poison = {one: set(offsets) for one, offsets in events.items()}
        found = find_failing_streams(Crashing(events, poison), retries=False)
        assert found.blameless or (found.end is End.ALL and not found.failures)
        assert found.builds <= failing_streams.MOST_UNCERTAIN
        assert not find_failing_streams(Simulated(events, poison), retries=False).blameless


def test_where_no_batch_comes_after_it_each_is_named() -> None:
    events = {stream(n): [n, 10_000 + n, 20_000 + n] for n in range(600)}
    batch = Simulated(events, {stream(n): {10_000 * (n % 3) + n} for n in range(0, 600, 2)})
    found = find_failing_streams(batch, retries=False, to_the_end=True)
    assert found.end is End.FOUND
    assert len(found.failures) == 300 > failing_streams.MOST_FAILURES
    assert found.builds > failing_streams.MOST_BUILDS
    assert {failure.stream: failure.offset for failure in found.failures} == first_of(batch.poison)
    assert flat(found) == before(events, batch.poison)
    # a shared cause blames no stream, here too
    poison: Poison = {one: set(offsets) for one, offsets in events.items()}
    assert find_failing_streams(Simulated(events, poison), retries=False, to_the_end=True).end is End.ALL


class Hurried(Simulated):
    """A batch that can be tried a limited number of times before the search's time budget ends."""

    def __init__(self, events: Events, poison: Poison, left: int) -> None:
        super().__init__(events, poison)
        self.left = left

    def of(self, part: Part) -> Events:
        if not self.left:
            raise failing_streams.OutOfTime
        self.left -= 1
        return super().of(part)


@settings(max_examples=60, deadline=None)
@given(
    left=st.integers(0, 120), failing=st.sets(st.integers(0, 299), min_size=1, max_size=20), to_the_end=st.booleans()
)
def test_whenever_its_time_is_over_it_ends_as_it_is(left: int, failing: set[int], to_the_end: bool) -> None:
    events = {stream(n): [n, 1000 + n, 2000 + n] for n in range(300)}
    batch = Hurried(events, {stream(n): {1000 * (n % 3) + n} for n in failing}, left)
    found = find_failing_streams(batch, retries=False, to_the_end=to_the_end)
    failures = {failure.stream: failure.offset for failure in found.failures}
    assert failures.items() <= first_of(batch.poison).items()
    if found.end is End.FOUND:
        assert failures == first_of(batch.poison)
        return
    assert found.end is End.LATE
    assert_before_them(found, events)
