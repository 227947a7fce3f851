"""Which tests run only when they are asked for: `--long`.

Belongs here: more seeds of a random test, more variants of one whose promise another test keeps. Not here: a promise's
only test.
"""

import pytest

LONG = pytest.mark.long


def seeds(number: int) -> list[object]:
    """Return so many seeds: the first is always tried, the others on request."""
    return [0, *(pytest.param(seed, marks=LONG) for seed in range(1, number))]
