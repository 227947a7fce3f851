"""A small log."""

import pytest

from millrace.resources.event_store import EventStore
from tests.support.building.event_log_reads import fill


@pytest.fixture
def log(store: EventStore) -> EventStore:
    """Log partition 0 holds five events, partition 1 three, partition 2 one, all others none."""
    return fill(store)
