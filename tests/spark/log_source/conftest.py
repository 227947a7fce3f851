"""A small log."""

import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.building.event_log_reads import fill


@pytest.fixture
def log(store: PlatformStore) -> PlatformStore:
    """Return a store: log partition 0 holds five events, partition 1 three, partition 2 one, all others none."""
    return fill(store)
