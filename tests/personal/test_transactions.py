"""Keys and transactions: a key of one that was rolled back is gone, and a key that died is asked for anew."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from millrace.errors import KeyGone, Malformed
from millrace.event_store import AsyncEventStore, EventStore, on
from millrace.personal import Forgotten
from millrace.personal.sealer import KEPT_S, Sealer
from millrace.personal.values import Plain
from tests.support.customers import ANNA, SECRET, People, moved
from tests.support.factories import Connect, start_blocked, value
from tests.support.patience import patience


def forgotten(people: People) -> list[bool]:
    """Return for each event whether its address is gone; the others have it."""
    return [isinstance(each, Forgotten) or each != SECRET for each in people.emails()]


def test_a_key_of_a_transaction_that_was_rolled_back_seals_nothing_later(people: People, connect: Connect) -> None:
    client = people.client(connect(autocommit=False))
    for _ in range(2):
        client.append("customer", "a", moved())
    assert [event.data["email"] for event in client.read("customer", "a")] == [SECRET, SECRET]
    client.connection.rollback()
    assert people.keys() == 0
    client.append("customer", "a", moved())
    client.append_all([on("customer", "b", moved())])
    client.connection.commit()
    client.append("customer", "c", moved())
    client.connection.commit()
    assert (people.keys(), forgotten(people)) == (1, [False] * 3)


def test_nor_does_one_of_a_savepoint(people: People, connect: Connect) -> None:
    client = people.client(connect())
    with client.connection.transaction():
        with client.connection.transaction(force_rollback=True):
            client.append("customer", "a", moved())
            client.append("customer", "a", moved())
        client.append("customer", "a", moved())
    assert (people.keys(), forgotten(people)) == (1, [False])


def test_a_client_with_a_key_that_died_heals(people: People, connect: Connect, dsn: str) -> None:
    ways: list[Callable[[EventStore], object]] = [
        lambda client: client.append("customer", "a", moved(), moved("bert")),
        lambda client: client.append_returning(on("customer", "a", moved(), moved("bert"))),
        lambda client: client.append_all([on("customer", "a", moved()), on("customer", "b", moved("bert"))]),
    ]
    with ConnectionPool(dsn, min_size=1, max_size=2) as pool:
        for client in (people.client(connect()), EventStore(pool, sealer=people.sealer())):
            for way in ways:
                for _ in range(2):  # so that it knows the key
                    way(client)
                people.forget()
                way(client)
                assert forgotten(people)[-2:] == [True, False]
                people.readmit()
                client.sealer.drop_keys()  # type: ignore[union-attr]


@pytest.mark.parametrize("autocommit", [True, False])
def test_within_a_transaction_it_is_told_so_and_the_next_one_heals(
    people: People, connect: Connect, autocommit: bool
) -> None:
    client = people.client(connect(autocommit=autocommit))
    for _ in range(2):
        with client.connection.transaction():
            client.append("customer", "a", moved())
    people.forget()
    calls: list[Any] = [
        lambda: client.append("customer", "a", moved()),
        lambda: client.append_all([on("customer", "a", moved())]),
        lambda: client.append_returning(on("customer", "a", moved())),
    ]
    for call in calls:
        with pytest.raises(KeyGone), client.connection.transaction():
            call()
        with client.connection.transaction():
            call()
        people.readmit()
        for _ in range(2):
            with client.connection.transaction():
                client.sealer.drop_keys()  # type: ignore[union-attr]
                client.append("customer", "a", moved())
        people.forget()
    assert set(forgotten(people)) == {True}


def test_appends_that_leave_together_heal_each_for_itself(people: People, dsn: str) -> None:
    @asynccontextmanager
    async def opened(pooled: bool) -> AsyncIterator[AsyncEventStore]:
        if pooled:
            async with AsyncConnectionPool(dsn, min_size=1, max_size=3, open=False) as pool:
                yield AsyncEventStore(pool, sealer=people.sealer())
        else:
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                yield AsyncEventStore(connection, sealer=people.sealer())

    async def work(pooled: bool) -> None:
        async with asyncio.timeout(patience()), opened(pooled) as store:
            people_ = [f"{name}-{pooled}" for name in ("anna", "bert", "cleo")]
            for _ in range(2):
                await asyncio.gather(*(store.append("customer", f"s-{n}", moved(n)) for n in people_))
            people.forget(f"customer:anna-{pooled}")
            await asyncio.gather(
                *(store.append("customer", f"{n}-{number}", moved(n)) for number in range(8) for n in people_)
            )
            read = [event async for event in store.read("customer", f"anna-{pooled}-7")]
            assert isinstance(read[0].data["email"], Forgotten)

    for pooled in (False, True):
        asyncio.run(work(pooled))
    # two were sealed before, and eight since: of each of two people of two clients
    assert people.emails().count(SECRET) == 40
    assert len(people.emails()) == 60


@pytest.mark.parametrize("commits", [True, False])
def test_two_that_make_a_key_for_one_person_get_one(people: People, connect: Connect, commits: bool) -> None:
    first, second = people.client(connect(autocommit=False)), people.client(connect())
    first.append("customer", "a", moved())
    late = start_blocked(people.store, second, lambda: second.append("customer", "b", moved()))
    if commits:
        first.connection.commit()
    else:
        first.connection.rollback()
    late.result(patience())
    second.append("customer", "b", moved())
    assert people.keys() == 1
    assert forgotten(people) == [False] * (3 if commits else 2)


def test_an_older_snapshot_is_told_to_repeat(people: People, connect: Connect) -> None:
    client = people.client(connect(autocommit=False))
    client.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert value(client.connection, "select count(*) from event_store.events") == 0
    people.client().append("customer", "a", moved())
    with pytest.raises(psycopg.errors.SerializationFailure):
        client.append("customer", "b", moved())
    client.connection.rollback()
    client.append("customer", "b", moved())
    client.connection.commit()
    assert (people.keys(), forgotten(people)) == (1, [False, False])


def test_another_thread_may_drop_keys_while_one_seals(people: People) -> None:
    client, data = people.client(), {"a": Plain(ANNA, 1)}
    for _ in range(2):
        client.append("customer", "a", moved())
    assert client.sealer is not None
    keys = client.sealer.kept([ANNA])
    client.sealer.drop_keys()
    assert client.open_rows([client.sealer.sealed(data, uuid4(), keys)]) == [{"a": 1}]


def test_another_thread_may_drop_keys_while_one_opens(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    now, learn = [1000.0], Sealer.learn
    monkeypatch.setattr("millrace.personal.sealer.time.monotonic", lambda: now[0])
    people.client().append("customer", "a", moved())

    def learn_and_drop(sealer: Sealer, *learnt: Any) -> None:  # noqa: ANN401 - as they are
        learn(sealer, *learnt)
        now[0] += KEPT_S
        assert sealer.kept_by_name() == {}

    monkeypatch.setattr(Sealer, "learn", learn_and_drop)
    for sent in people.client().read("customer", "a"):
        assert sent.data["email"] == SECRET
    assert people.emails() == [SECRET]


def test_a_key_is_kept_for_five_minutes(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("millrace.personal.sealer.time.monotonic", lambda: now[0])
    client = people.client()
    client.append("customer", "a", moved())
    people.forget()

    def read() -> Any:  # noqa: ANN401 - JSON
        (event,) = client.read("customer", "a")
        return event.data["email"]

    now[0] += KEPT_S - 1
    assert read() == SECRET
    now[0] += 1
    assert isinstance(read(), Forgotten)


def test_without_a_sealer_nothing_is_sealed_nor_stored(people: People) -> None:
    with pytest.raises(Malformed, match="give the store a sealer"):
        people.store.append("customer", "a", moved())
    assert people.data() == []


def test_what_is_no_sealed_value_stays_as_it_is(people: People) -> None:
    odd: list[Any] = [{"$sealed": "text"}, {"$sealed": "1.2"}, {"$sealed": 1}, {"$sealed": {}}, ("a", {"b": 1})]
    assert people.client().open_rows([{"x": each} for each in odd]) == [{"x": each} for each in odd]
