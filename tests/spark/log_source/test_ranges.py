"""How the source divides ranges into tasks and batches: each position once, for any limits."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.spark.log_source.ranges import DataLoss, LogRange, advance, held_ranges, split

LIMITS = st.integers(1, 50)
SIZES = st.lists(st.integers(0, 200), max_size=8)


def covered(parts: Sequence[LogRange]) -> list[tuple[int, int]]:
    return sorted((p.partition, position) for p in parts for position in range(p.from_position, p.to_position))


@given(
    ranges=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200)), max_size=8),
    max_records=LIMITS,
    min_tasks=LIMITS,
)
def test_tasks_cover_each_position_once(ranges: list[tuple[int, int]], max_records: int, min_tasks: int) -> None:
    wanted = [LogRange(partition, first, first + size) for partition, (first, size) in enumerate(ranges)]
    tasks = split(wanted, max_records, min_tasks)
    assert covered([part for task in tasks for part in task]) == covered(wanted)
    sizes = [sum(part.size for part in task) for task in tasks]
    total = sum(part.size for part in wanted)
    assert all(part.size > 0 for task in tasks for part in task)
    assert len(tasks) == min(total, max(min_tasks, -(-total // max_records)))
    assert max(sizes, default=0) <= max_records
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@given(sizes=SIZES, limit=st.none() | LIMITS, max_records=LIMITS, min_tasks=LIMITS)
def test_batches_cover_all_once(sizes: list[int], limit: int | None, max_records: int, min_tasks: int) -> None:
    position = {partition: 10 * partition for partition in range(len(sizes))}
    target = {partition: position[partition] + size for partition, size in enumerate(sizes)}
    wanted = [LogRange(p, first, target[p]) for p, first in position.items()]
    read: list[LogRange] = []
    while position != target:
        end = advance(position, target, limit)
        batch = [LogRange(p, first, end[p]) for p, first in position.items()]
        pending = sum(target.values()) - sum(position.values())
        assert sum(part.size for part in batch) == (pending if limit is None else min(limit, pending))
        read += [part for task in split(batch, max_records, min_tasks) for part in task]
        position = end
    assert covered(read) == covered(wanted)


@given(
    arrivals=st.lists(st.lists(st.integers(0, 30), min_size=5, max_size=5), min_size=1, max_size=20),
    limit=st.integers(1, 12),
)
def test_no_log_partition_waits_longer_than_there_are_log_partitions(arrivals: list[list[int]], limit: int) -> None:
    position = dict.fromkeys(range(5), 0)
    target = dict(position)
    waited = dict(position)
    for new in arrivals + [[0] * 5] * 10:
        target = {p: mark + new[p] for p, mark in target.items()}
        end = advance(position, target, limit)
        for p, mark in target.items():
            waited[p] = waited[p] + 1 if end[p] == position[p] < mark else 0
        assert max(waited.values()) < len(position)
        position = end


def test_a_limit_is_shared_in_proportion_to_what_is_pending() -> None:
    nothing = dict.fromkeys(range(4), 0)
    assert advance(nothing, {0: 1000, 1: 500, 2: 0, 3: 1}, 31) == {0: 20, 1: 10, 2: 0, 3: 1}
    assert advance(nothing, {0: 10**15, 1: 10**12, 2: 1, 3: 1}, 10) == {0: 7, 1: 1, 2: 1, 3: 1}
    assert advance({0: 5, 1: 0}, {0: 5, 1: 3}, 100) == {0: 5, 1: 3}


def test_a_position_beyond_the_target_stays_where_it_is() -> None:
    assert advance({0: 7, 1: 0}, {0: 5, 1: 2}, None) == {0: 7, 1: 2}


def test_a_range_without_a_known_beginning_is_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    held = {0: LogRange(0, 0, 10)}
    with pytest.raises(DataLoss, match="positions 8 to 5 of log partition 0 are to be read"):
        held_ranges([LogRange(0, 8, 5)], held, fail_on_data_loss=True)
    assert held_ranges([LogRange(0, 8, 5), LogRange(1, 0, 3)], held, fail_on_data_loss=False) == []
    assert "positions 8 to 5 of log partition 0" in caplog.text
    assert "positions 0 to 3 of log partition 1 are to be read, and it holds positions 0 to 0" in caplog.text
