"""Commands over personal data: `decide` gets values, and states are made of what is stored."""

import asyncio
from typing import Any

import psycopg
import pytest

from millrace.commands.decider import Decided, Decider, Emit
from millrace.commands.handle import handle
from millrace.event_store import AsyncEventStore, Event
from millrace.personal import Forgotten
from millrace.personal.values import Plain
from tests.support.customers import ANNA, SECRET, People, key_of

State = dict[str, Any]


class Mover:
    """Moves a customer, and notes what its decider and its states get."""

    def __init__(self) -> None:
        self.decided_on: list[State] = []
        self.decider = Decider(name="customer", initial=State(), decide=self.decide, evolve=self.evolve)

    def decide(self, email: str, state: State) -> list[Emit]:
        self.decided_on += [state]
        data = {"customer_id": "anna", "email": Plain(ANNA, email)}
        return [Emit("customer_moved", data), Emit("customer_moved", {"customer_id": "anna"})]

    @staticmethod
    def evolve(state: State, event: Event) -> State:
        return {"emails": [*state.get("emails", []), event.data.get("email")]}


def handled(people: People, mover: Mover, email: str, dsn: str | None) -> Decided[State]:
    if dsn is None:
        return handle(people.client(), mover.decider, "a", email)

    async def main() -> Decided[State]:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            return await handle(AsyncEventStore(connection, sealer=people.sealer()), mover.decider, "a", email)

    return asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_command_is_decided_on_with_values_and_states_stay_sealed(people: People, dsn: str, is_async: bool) -> None:
    mover, where = Mover(), dsn if is_async else None
    first = handled(people, mover, SECRET, where)
    second = handled(people, mover, "another", where)
    assert mover.decided_on == [{}, {"emails": [SECRET, None]}]
    stored = [data.get("email") for data in people.data()]
    assert [key_of(each) for each in stored if each] == [key_of(stored[0])] * 2
    assert (first.state, second.state) == ({"emails": stored[:2]}, {"emails": stored})
    assert [event.data.get("email") for event in second.events] == ["another", None]
    people.forget()
    third = handled(people, mover, SECRET, where)
    assert isinstance(mover.decided_on[-1]["emails"][0], Forgotten)
    assert third.state["emails"][:4] == stored
    assert third.state["emails"][4] == {"$sealed": f"1.{key_of(stored[0])}.0.0"}


def test_a_command_with_a_key_that_died_heals(people: People) -> None:
    mover, client = Mover(), people.client()
    for _ in range(2):
        handle(client, mover.decider, "a", SECRET)
    people.forget()
    assert isinstance(handle(client, mover.decider, "a", SECRET).events[0].data["email"], Forgotten)
