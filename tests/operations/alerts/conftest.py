"""A receiver, and a store with a view that gives a stream up at its first failure."""

from collections.abc import Iterator

import pytest

from millrace.event_store.platform import PlatformStore
from tests.operations.alerts.hook import Hook
from tests.support.factories import register_orders
from tests.support.running.http_servers import serving


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving(Hook()) as server:
        yield server


@pytest.fixture
def mails(store: PlatformStore) -> PlatformStore:
    """Return the store; its view `mails` gives a stream up at its first failure."""
    register_orders(store)
    store.register_view("mails", "-infinity", max_attempts=1)
    return store
