"""The connection that sensors share: it outlives a tick, and is replaced when lost."""

from collections.abc import Callable
from threading import Thread

import psycopg
import pytest

from millrace.errors import Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.resources.shared_store import shared_store
from tests.support.elsewhere import postgres_at


def session_of(dsn: str) -> int:
    with shared_store(postgres_at(dsn)) as store:
        return store.connection.info.backend_pid


def test_the_next_one_gets_the_same_session(dsn: str) -> None:
    first = session_of(dsn)
    assert session_of(dsn) == first
    found: list[int] = []
    elsewhere = Thread(target=lambda: found.append(session_of(dsn)))
    elsewhere.start()
    elsewhere.join()
    assert found == [first]


def ended(dsn: str, store: PlatformStore) -> None:
    pid = session_of(dsn)
    assert store.connection.execute("select pg_terminate_backend(%s, 10000)", (pid,)).fetchone() == (True,)


def failed(dsn: str, _: PlatformStore) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero), shared_store(postgres_at(dsn)) as store:
        store.connection.execute("select 1 / 0")


@pytest.mark.parametrize("lose", [ended, failed])
def test_a_session_that_ended_or_failed_is_replaced(
    dsn: str, store: PlatformStore, lose: Callable[[str, PlatformStore], None]
) -> None:
    before = session_of(dsn)
    lose(dsn, store)
    after = session_of(dsn)
    assert after != before
    assert session_of(dsn) == after


def test_a_server_that_does_not_answer_is_named_and_asked_again(dsn: str) -> None:
    with pytest.raises(Unreachable, match="Check MILLRACE_DSN"):
        session_of("postgresql://nobody@127.0.0.1:1/nothing")
    assert session_of(dsn)
