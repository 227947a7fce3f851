"""`handle`, on either store: load a stream, decide, append; all again if another writer was first."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from millrace.commands.decider import Decider, Emit, event_id_of
from millrace.commands.handle import handle
from millrace.errors import EventIdReused, GaveUp, HistoryPurged, StreamClosed
from millrace.event_store import AsyncEventStore, Event, causing
from millrace.event_store.platform import PlatformStore
from millrace.user_code import NeverRan
from tests.support.factories import Connect, purge
from tests.support.sql_calls import BatchEvent, append_events


class Refused(Exception):
    """The account has too little."""


def decide(command: int, balance: int) -> list[Emit]:
    """Pay in or out, never below nothing; a payment above a hundred is also reported; nothing for 0."""
    if balance + command < 0:
        raise Refused
    if not command:
        return []
    paid = Emit("paid", {"amount": command})
    return [paid, Emit("reported", {})] if command > 100 else [paid]


def evolve(balance: int, event: Event) -> int:
    return balance + int(event.data.get("amount", 0))


ACCOUNT = Decider(name="account", initial=0, decide=decide, evolve=evolve)
Decide = Callable[[int, int], list[Emit]]


@pytest.fixture
def accounts(store: PlatformStore) -> PlatformStore:
    for event in ("paid", "reported", "closed"):
        store.register_decider_event("account", event, f"{event} it")
    return store


def amounts(store: PlatformStore, decider_id: str = "a-1") -> list[int]:
    return [event.data["amount"] for event in store.read("account", decider_id) if event.event == "paid"]


def pay(store: PlatformStore, amount: int, decider_id: str = "a-1") -> None:
    append_events(store, [BatchEvent("account", decider_id, "paid", uuid4(), {"amount": amount}, uuid4())])


async def _evolve_later(balance: int, event: Event) -> int:
    return evolve(balance, event)


def _evolutions(balance: int, event: Event) -> Iterator[int]:
    yield evolve(balance, event)


async def _decide_later(command: int, balance: int) -> list[Emit]:
    return decide(command, balance)


def test_functions_whose_code_would_not_run_are_refused(accounts: PlatformStore) -> None:
    wrong: list[dict[str, Any]] = [{"evolve": _evolve_later}, {"evolve": _evolutions}, {"decide": _decide_later}]
    for functions in wrong:
        with pytest.raises(ValueError, match="its code would not run"):
            replace(ACCOUNT, **functions)

    def hidden(balance: int, event: Event) -> Any:  # noqa: ANN401 - what it hides
        return _evolve_later(balance, event)

    with pytest.raises(NeverRan, match="coroutine"):
        handle(accounts, replace(ACCOUNT, evolve=hidden), "a-1", 5)


def test_a_command_is_decided_on_with_the_state_of_its_stream(accounts: PlatformStore) -> None:
    first = handle(accounts, ACCOUNT, "a-1", 50)
    second = handle(accounts, ACCOUNT, "a-1", -20)
    assert (first.state, first.version, second.state, second.version) == (50, 1, 30, 2)
    assert (second.decider, second.decider_id, second.offset) == ("account", "a-1", second.events[0].offset)
    with pytest.raises(Refused):
        handle(accounts, ACCOUNT, "a-1", -31)
    assert amounts(accounts) == [50, -20]
    nothing = handle(accounts, ACCOUNT, "a-1", 0)
    assert (nothing.events, nothing.state, nothing.version, nothing.offset) == ((), 30, 2, second.offset)
    # several events together
    done = handle(accounts, ACCOUNT, "a-1", 200)
    stored = list(accounts.read("account", "a-1"))
    assert [event.event for event in stored] == ["paid", "paid", "paid", "reported"]
    assert done.events == tuple(stored[2:])
    assert (done.version, done.offset, done.state) == (4, stored[-1].offset, 230)
    assert len({event.command_id for event in done.events}) == 1
    # on a stream that does not exist
    none = handle(accounts, ACCOUNT, "a-2", 0)
    assert (none.events, none.offset) == ((), 0)


def meddling(store: PlatformStore, times: int, seen: list[int]) -> Decider[int, int]:
    """Make an account on which another writer beats the first decisions; it notes the states that it sees."""

    def decide_late(command: int, balance: int) -> list[Emit]:
        seen.append(balance)
        if len(seen) <= times:
            pay(store, 10)
        return decide(command, balance)

    return replace(ACCOUNT, decide=decide_late)


def test_after_a_conflict_only_what_is_new_is_loaded(accounts: PlatformStore, monkeypatch: pytest.MonkeyPatch) -> None:
    handle(accounts, ACCOUNT, "a-1", 7)
    reads: list[Any] = []
    read = PlatformStore.read

    def reading(self: PlatformStore, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
        reads.append(arguments[2])
        return read(self, *arguments, **options)

    monkeypatch.setattr(PlatformStore, "read", reading)
    seen: list[int] = []
    done = handle(accounts, meddling(accounts, 2, seen), "a-1", -7)
    assert (seen, reads) == ([7, 17, 27], [1, 2, 3])
    assert (done.state, done.version) == (20, 4)


def test_it_gives_up_after_so_many_tries(accounts: PlatformStore) -> None:
    seen: list[int] = []
    with pytest.raises(GaveUp, match="3 tries"):
        handle(accounts, meddling(accounts, 9, seen), "a-1", 1, tries=3)
    assert seen == [0, 10, 20]
    assert amounts(accounts) == [10, 10, 10]


def test_a_conflict_in_a_transaction_of_the_callers_leaves_it_going(accounts: PlatformStore, connect: Connect) -> None:
    seen: list[int] = []
    connection = connect(autocommit=False)
    own = PlatformStore(connection)
    done = handle(own, meddling(accounts, 1, seen), "a-1", 1)
    assert (seen, done.state) == ([0, 10], 11)
    assert amounts(accounts) == [10]  # not committed
    connection.commit()
    assert amounts(accounts) == [10, 1]


def test_a_command_with_an_id_is_handled_once_also_by_two_at_once(accounts: PlatformStore) -> None:
    command_id = uuid4()
    first = handle(accounts, ACCOUNT, "a-1", 200, command_id=command_id)
    pay(accounts, 3)
    again = handle(accounts, ACCOUNT, "a-1", 200, command_id=command_id)
    assert amounts(accounts) == [200, 3]
    assert [event.event_id for event in again.events] == [event.event_id for event in first.events]
    assert {event.command_id for event in first.events} == {command_id}
    assert (again.state, again.version, again.offset) == (200, 2, first.offset)
    assert handle(accounts, ACCOUNT, "a-2", 200, command_id=command_id).version == 2  # on another stream
    # for another decider, on a stream of the same name
    accounts.register_decider_event("loan", "paid", "A rate was paid.")
    loan = replace(ACCOUNT, name="loan")
    other = handle(accounts, loan, "a-1", 5, command_id=command_id)
    assert (other.decider, other.state) == ("loan", 5)
    assert other.events[0].event_id != first.events[0].event_id

    inside: list[int] = []

    def decide_twice(command: int, balance: int) -> list[Emit]:
        inside.append(balance)
        if len(inside) == 1:
            handle(accounts, ACCOUNT, "a-3", command, command_id=command_id)
        return decide(command, balance)

    racing = replace(ACCOUNT, decide=decide_twice)
    assert handle(accounts, racing, "a-3", 5, command_id=command_id).state == 5
    assert (amounts(accounts, "a-3"), inside) == ([5], [0])


def test_a_command_whose_event_id_is_taken_is_refused(accounts: PlatformStore) -> None:
    pay(accounts, 50)
    accounts.register_decider_event("evil", "planted", "An id was taken.")
    command_id = uuid4()
    event_id = event_id_of(command_id, "account", "a-1", 0)
    append_events(accounts, [BatchEvent("evil", "e-1", "planted", event_id, {}, command_id)])
    with pytest.raises(EventIdReused):
        handle(accounts, ACCOUNT, "a-1", 5, command_id=command_id)
    assert amounts(accounts) == [50]


def decide_anew(command: int, _: int) -> list[Emit]:
    """Pay, with other data each time."""
    return [Emit("paid", {"amount": command, "receipt": str(uuid4())})]


@pytest.mark.parametrize("call", range(1, 4))
@pytest.mark.parametrize("after_a_conflict", [False, True])
@pytest.mark.parametrize("decision", [decide, decide_anew])
def test_what_is_done_elsewhere_meanwhile_is_told_as_done(
    accounts: PlatformStore, monkeypatch: pytest.MonkeyPatch, call: int, after_a_conflict: bool, decision: Decide
) -> None:
    """The same command completes elsewhere before the n-th call of a try; decided again, it is refused or differs."""
    account, command_id = replace(ACCOUNT, decide=decision), uuid4()
    racing, calls, led = PlatformStore(accounts.connection), list[str](), list[Any]()
    behind = 2 if after_a_conflict else 0  # the calls of the try that meets another writer

    def conflicting(command: int, balance: int) -> list[Emit]:
        if len(calls) < behind:
            append_events(accounts, [BatchEvent("account", "a-1", "reported", uuid4(), {}, uuid4())])
        return decision(command, balance)

    def watch(name: str) -> None:
        original = getattr(PlatformStore, name)

        def watched(self: PlatformStore, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
            if self is racing:
                calls.append(name)
                if len(calls) == behind + call:
                    led.append(handle(accounts, account, "a-1", -50, command_id=command_id))
            return original(self, *arguments, **options)

        monkeypatch.setattr(PlatformStore, name, watched)

    for name in ("read", "append_returning"):
        watch(name)
    pay(accounts, 50)
    done = handle(racing, replace(account, decide=conflicting), "a-1", -50, command_id=command_id)
    if call > 2:  # there was no such call, so this one was the first
        assert (led, len(calls)) == ([], behind + 2)
        led.append(handle(accounts, account, "a-1", -50, command_id=command_id))
    told = [([(event.event_id, event.data) for event in each.events], each.state) for each in (done, *led)]
    assert told[0] == told[1]
    assert (amounts(accounts), done.state) == ([50, -50], 0)


def test_metadata_are_passed_on_and_those_of_the_decision_win(accounts: PlatformStore) -> None:
    pay(accounts, 1, "cause")
    (cause,) = accounts.read("account", "cause")
    paid = Emit("paid", {"amount": 1}, metadata={"user": "ada", "correlation_id": "mine"})
    noted = replace(ACCOUNT, decide=lambda *_: [paid])
    handle(accounts, ACCOUNT, "a-1", 1, caused_by=cause)
    handle(accounts, ACCOUNT, "a-1", 200, caused_by=cause)
    with causing(cause):
        handle(accounts, noted, "a-2", 1)
    led = {"causation_id": str(cause.event_id), "correlation_id": str(cause.event_id)}
    assert [event.metadata for event in accounts.read("account", "a-1")] == [led, led, led]
    (own,) = accounts.read("account", "a-2")
    assert own.metadata == {**led, "user": "ada", "correlation_id": "mine"}


def test_an_event_is_appended_as_it_was_decided(accounts: PlatformStore) -> None:
    accounts.register_decider_event("account", "closed", "It is closed for good.", 2)
    last = replace(ACCOUNT, decide=lambda *_: [Emit("closed", {}, 2, final=True)])
    (event,) = handle(accounts, last, "a-1", 0).events
    assert (event.event_version, event.final) == (2, True)
    assert [event.event_version for event in accounts.read("account", "a-1")] == [2]
    with pytest.raises(StreamClosed):
        handle(accounts, ACCOUNT, "a-1", 1)


def test_a_stream_that_lost_its_first_events_has_no_state(accounts: PlatformStore) -> None:
    for _ in range(2):
        handle(accounts, ACCOUNT, "a-1", 1)
    accounts.sequence_events()
    (at,) = [each.partition for each in accounts.partition_info() if each.high_water_mark]
    for purged in (1, 2):
        purge(accounts, at, purged)
        with pytest.raises(HistoryPurged, match="some were purged"):
            handle(accounts, ACCOUNT, "a-1", 1)


def test_a_pool_gives_each_call_a_connection(accounts: PlatformStore, dsn: str) -> None:
    with ConnectionPool(dsn, min_size=1, max_size=1) as pool:
        seen: list[int] = []
        done = handle(PlatformStore(pool), meddling(accounts, 1, seen), "a-1", 200)
    assert (done.state, seen, len(done.events)) == (210, [0, 10], 2)


def test_commands_on_a_loop(accounts: PlatformStore, dsn: str) -> None:
    command_id: UUID = uuid4()
    seen: list[int] = []

    async def main() -> None:
        async with AsyncConnectionPool(dsn, min_size=1, max_size=4, open=False) as pool:
            store = AsyncEventStore(pool)
            await asyncio.gather(*(handle(store, ACCOUNT, "a-1", 1, tries=50) for _ in range(10)))
            done = await handle(store, ACCOUNT, "a-1", 200, command_id=command_id)
            again = await handle(store, ACCOUNT, "a-1", 200, command_id=command_id)
            assert (done.state, again.events) == (210, done.events)
            late = await handle(store, meddling(accounts, 1, seen), "a-1", -5)
            assert (late.state, seen) == (215, [210, 220])
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            own = AsyncEventStore(connection)
            seen.clear()
            assert (await handle(own, meddling(accounts, 1, seen), "a-1", -5)).state == 220
            await connection.rollback()

    asyncio.run(main())
    assert sum(amounts(accounts)) == 225
