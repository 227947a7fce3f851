"""Tests that run only on request: `--long`.

Belongs here: more seeds of a random test, more variants of a test if another test covers its promise. Not here: a
promise's only test.
"""

import pytest

LONG = pytest.mark.long


def seeds(number: int) -> list[object]:
    """Return `number` seeds: the first is always tried, the others on request."""
    return [0, *(pytest.param(seed, marks=LONG) for seed in range(1, number))]
