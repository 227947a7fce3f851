"""How long the search for failing streams goes on: to the end of its time, or until it names enough."""

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.resources.consumption.failing_streams import (
    MOST_BUILDS,
    MOST_FAILURES,
    End,
    OutOfTime,
    Part,
    find_failing_streams,
)
from tests.consumption.test_failing_streams import (
    Events,
    Poison,
    Simulated,
    Telling,
    before,
    first_of,
    flat,
    stream,
)


def test_where_no_batch_comes_after_it_the_search_goes_on_until_each_is_named() -> None:
    events = {stream(n): [n, 10_000 + n, 20_000 + n] for n in range(2000)}
    secret: Poison = {stream(n): {10_000 * (n % 3) + n} for n in range(0, 2000, 4)}
    told: Poison = {stream(n): {10_000 + n} for n in range(1, 2000, 4)}
    batch = Telling(events, told, secret=secret)
    found = find_failing_streams(batch, retries=False, to_the_end=True)
    assert found.end is End.FOUND
    assert len(found.failures) == 1000 > MOST_FAILURES
    assert found.builds > MOST_BUILDS
    assert {failure.stream: failure.offset for failure in found.failures} == first_of(batch.poison)
    assert flat(found) == before(events, batch.poison)
    # a shared cause blames nobody, here too
    poison: Poison = {one: set(offsets) for one, offsets in events.items()}
    assert find_failing_streams(Simulated(events, poison), retries=False, to_the_end=True).end is End.ALL


class Hurried(Telling):
    """A batch that can be looked at so often, until the time of the search is over."""

    def __init__(self, events: Events, poison: Poison, secret: Poison, left: int) -> None:
        super().__init__(events, poison, secret=secret)
        self.left = left

    def of(self, part: Part) -> Events:
        if not self.left:
            raise OutOfTime
        self.left -= 1
        return super().of(part)


@settings(max_examples=150, deadline=None)
@given(
    left=st.integers(0, 120),
    told=st.sets(st.integers(0, 299), max_size=20),
    secret=st.sets(st.integers(0, 299), min_size=1, max_size=20),
    to_the_end=st.booleans(),
)
def test_whenever_its_time_is_over_it_ends_with_what_it_named_and_names_nobody_for_that(
    left: int, told: set[int], secret: set[int], to_the_end: bool
) -> None:
    events = {stream(n): [n, 1000 + n, 2000 + n] for n in range(300)}
    chosen: list[Poison] = [{stream(n): {1000 * (n % 3) + n} for n in numbers} for numbers in (told - secret, secret)]
    batch = Hurried(events, chosen[0], chosen[1], left)
    found = find_failing_streams(batch, retries=False, to_the_end=to_the_end)
    failures = {failure.stream: failure.offset for failure in found.failures}
    assert failures.items() <= first_of(batch.poison).items()
    if found.end is End.FOUND:
        assert failures == first_of(batch.poison)
        return
    assert found.end is End.LATE
    assert failures.keys() <= chosen[1].keys()
    assert sorted(event for part in found.before for event in part) == sorted(
        (f.stream, offset) for f in found.failures for offset in events[f.stream] if offset < f.offset
    )
