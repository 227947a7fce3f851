"""Fixtures that tests of the SQL functions share: views, a capture, a producer, logins."""

from collections.abc import Iterator

import pytest

from millrace.event_store.platform import PlatformStore
from tests.sql.drain.test_claim_batch import bulk
from tests.sql.handlers.test_stream_events import view
from tests.support.capturing.captures import source
from tests.support.customers import people
from tests.support.logins import Login, logins
from tests.support.producing.messages import producer
from tests.support.views.failing_streams import streams

__all__ = ["bulk", "people", "producer", "source", "streams", "view"]


@pytest.fixture
def login(orders: PlatformStore) -> Iterator[Login]:
    """Yield an opener of sessions as a new user with only the given roles."""
    with logins(orders.connection) as made:
        yield made
