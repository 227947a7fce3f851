"""Dagster's instance for tests of sensors, checks and jobs."""

from collections.abc import Iterator

import dagster as dg
import pytest


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Yield an empty instance, whose storage is in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance
