"""Behind a connection pool in transaction mode sessions identify no consumer: token and offset in flight decide."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg
import pytest

from millrace.errors import NotInFlight, NotViewOwner
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append_to, pump, refusal, rows, set_clock
from tests.support.logins import logins
from tests.support.sql_calls import get_events
from tests.support.views.pooler import PROGRAM, pooled

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")

Client = Callable[[], PlatformStore]


@pytest.fixture
def client(dsn: str, view: PlatformStore) -> Iterator[Client]:
    """Yield a maker of clients that share one session."""
    assert view.is_registered("v")
    # not pytest's tmp_path: its path is too long for a unix socket, and another account cannot reach it
    with tempfile.TemporaryDirectory(prefix="pool-") as folder, ExitStack() as opened:
        address = opened.enter_context(pooled(dsn, Path(folder), 1))
        yield lambda: PlatformStore(opened.enter_context(psycopg.connect(address, autocommit=True)))


def test_connections_as_psycopg_makes_them_call_as_often_as_they_like(view: PlatformStore, client: Client) -> None:
    for each in [client() for _ in range(3)] * 10:
        append_to(each, "a")
    assert len(get_events(view, "a", "order")) == 30


def test_the_answer_to_a_redelivery_counts_from_whichever_session_it_comes(view: PlatformStore, client: Client) -> None:
    """Without tokens, as fstore-sql's clients answer."""
    append_to(view, "innocent", "innocent")
    set_clock(view.connection, "2020-01-01 00:00:00+00")
    pump(view, "v")
    (first,) = view.stream_events("v", 1, 60)  # its consumer died long ago
    clients = [client() for _ in range(3)]
    (again,) = clients[0].stream_events("v")
    assert again == first
    clients[1].ack_event("v", "innocent", again.offset)
    (second,) = clients[2].stream_events("v")
    clients[0].nack_event("v", "innocent")
    assert clients[1].stream_events("v") == [second]
    assert clients[2].ack_events("v", [second.offset]) == {second.offset}
    assert view.dead_letters("v") == []


def test_a_late_answer_is_refused_though_clients_share_a_session(view: PlatformStore, client: Client) -> None:
    pump(view, "v", "a")
    late, holder = client(), client()
    (mine,) = late.lease_events("v", 1, 3600)
    view.end_locks("v")
    (held,) = holder.lease_events("v", 1, 3600)
    refusal(NotInFlight, lambda: late.ack_event("v", "a", mine.offset, mine.lease_token))
    holder.ack_event("v", "a", held.offset, held.lease_token)


def test_nothing_stays_on_a_pooled_session(view: PlatformStore, client: Client) -> None:
    view.register_view("b", "-infinity", mode="bulk")
    append_to(view, "a")
    consumer = client()
    consumer.attach_consumer("b", "run 1")
    consumer.commit_batch("b", consumer.claim_batch("b", "run 1"))
    assert rows(view.connection, "select from pg_locks where locktype = 'advisory'") == []
    client().attach_consumer("b", "run 2")  # the attachment counts by its name
    assert [poll.consumers for poll in view.poll_views() if poll.view == "b"] == [2]


def test_clients_that_set_a_role_share_a_session_and_no_rights(view: PlatformStore, client: Client) -> None:
    with logins(view.connection) as login:
        names = [login("event_store_consumer").info.user for _ in range(2)]
        clients = {name: client() for name in names}
        for name, pooled_client in clients.items():
            with pooled_client.connection.transaction():
                pooled_client.connection.execute(f"set local role {name}".encode())
                pooled_client.register_view(f"of {name}")
        for name, pooled_client in clients.items():
            (other,) = set(names) - {name}
            with pooled_client.connection.transaction():
                pooled_client.connection.execute(f"set local role {name}".encode())
                assert pooled_client.stream_events(f"of {name}") == []
                refusal(NotViewOwner, partial(pooled_client.stream_events, f"of {other}"))
        for name in names:
            view.unregister_view(f"of {name}")
