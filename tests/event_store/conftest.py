"""A store whose deciders are registered."""

import pytest

from millrace.resources.event_store import EventStore
from tests.support.factories import register_orders


@pytest.fixture
def orders(store: EventStore) -> EventStore:
    """Return a store in which order and invoice may append placed, paid and shipped."""
    return register_orders(store)
