"""A store with streams, a read model with a feed, and the server that reads them for clients."""

from collections.abc import Iterator

import httpx
import pytest

from millrace.streams.followers import Followers
from tests.streams.support import Rows, client_of
from tests.support.factories import Connect


@pytest.fixture
def rows(connect: Connect) -> Rows:
    """Return a read model with a feed that has begun."""
    return Rows(connect())


@pytest.fixture
def followers(dsn: str) -> Followers:
    """Return the readers of the client's server."""
    return Followers(dsn)


@pytest.fixture
def client(followers: Followers) -> Iterator[httpx.Client]:
    """Return a client of a server of the store."""
    with client_of(followers) as found:
        yield found
