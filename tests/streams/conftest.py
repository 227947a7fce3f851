"""A store with streams, a read model with a feed, and the server that reads them for clients."""

from collections.abc import Iterator

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from millrace.event_store.platform import PlatformStore
from millrace.read_models.stored.feed import tell_replaced
from millrace.read_models.stored.versions import ensure_version
from millrace.streams.app import serving_streams
from millrace.streams.followers import Followers
from millrace.streams.tokens import TokenStore
from tests.streams.served import MODELS, Served
from tests.streams.support import Rows, client_of
from tests.support.factories import Connect
from tests.support.logins import Login, logins
from tests.support.patience import wait_until


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


@pytest.fixture
def login(orders: PlatformStore) -> Iterator[Login]:
    """Yield an opener of sessions as a new user with only the given roles."""
    with logins(orders.connection) as made:
        yield made


@pytest.fixture
def served(orders: PlatformStore, login: Login, dsn: str) -> Iterator[Served]:
    """Serve two read models with a feed and one without."""
    for model in MODELS:
        ensure_version(orders.connection, model)
        with orders.connection.transaction():
            tell_replaced(orders.connection, model)
    orders.sequence_events()
    # the rights of a drain are enough
    operator = login("event_store_owner")
    followers = Followers(make_conninfo(dsn, user=operator.info.user))
    with serving_streams(followers, "127.0.0.1", 0, ["proxy.example.com"]) as port:
        found = Served(f"http://127.0.0.1:{port}", TokenStore(operator))
        first = found.token(login("event_store_reader").info.user)
        path = "/views/streamed?offset=now"
        wait_until(lambda: found.get(path, first).status_code == 200, "it hears of revocations")
        orders.connection.execute("delete from event_store.stream_tokens")
        yield found
