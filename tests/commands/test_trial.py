"""Deciders in tests: given events, when a command comes, then these events follow."""

from itertools import count
from typing import Any

import pytest

from millrace import Decider, Emit
from millrace.event_store import Event
from millrace.testing import event, given

OPENED = event("account", "a-1", "opened")


def decide(command: int, balance: int) -> list[Emit]:
    if command < 0 and balance + command < 0:
        raise ValueError("not enough")
    return [Emit("changed", {"by": command})] if command else []


def evolve(balance: int, changed: Event) -> int:
    by: int = changed.data.get("by", 0)
    return balance + by


ACCOUNT = Decider(name="account", initial=0, decide=decide, evolve=evolve)


def test_what_a_command_leads_to_is_compared_and_stored(dsn: str) -> None:
    store = given(OPENED, event("account", "a-1", "changed", by=5), dsn=dsn)
    store.when(ACCOUNT, "a-1", 0).then()
    assert store.when(ACCOUNT, "a-1", 7).then(Emit("changed", {"by": 7})).state == 12
    assert store.when(ACCOUNT, "a-1", -12).state == 0
    # on another stream
    assert store.when(ACCOUNT, "a-2", 1).decided.version == 1
    with pytest.raises(ValueError, match="not enough"):
        store.when(ACCOUNT, "a-2", -2)
    # the refused command stored nothing
    assert store.when(ACCOUNT, "a-2", 0).decided.version == 1


def test_other_events_are_said_beside_those_that_were_expected(dsn: str) -> None:
    handled = given(OPENED, dsn=dsn).when(ACCOUNT, "a-1", 7)
    wrong: tuple[tuple[list[Emit], str], ...] = (
        ([], "expected: none"),
        ([Emit("changed", {"by": 8})], "expected: changed {'by': 8}"),
        ([Emit("moved", {"by": 7})], "expected: moved {'by': 7}"),
        ([Emit("changed", {"by": 7}, 2)], "expected: changed version 2 {'by': 7}"),
        ([Emit("changed", {"by": 7}, final=True)], "expected: changed final {'by': 7}"),
        ([Emit("changed", {"by": 7}), Emit("changed", {"by": 7})], "expected: changed {'by': 7}"),
    )
    for expected, said in wrong:
        with pytest.raises(AssertionError) as failed:
            handled.then(*expected)
        lines = [line.strip() for line in str(failed.value).splitlines()]
        assert lines[0] == "The command led to other events of account 'a-1'."
        assert said in lines
        assert "led to:   changed {'by': 7}" in lines


def test_data_are_compared_as_json_has_them(dsn: str) -> None:
    twice = Decider[None, tuple[int, int]](
        name="pair", initial=None, decide=lambda pair, _: [Emit("set", {"pair": pair})], evolve=lambda s, _: s
    )
    given(dsn=dsn).when(twice, "p", (1, 2)).then(Emit("set", {"pair": [1, 2]}))


def test_a_decider_that_is_no_function_of_its_events_fails(dsn: str) -> None:
    numbers = count()

    def add(state: list[str], added: Event) -> list[str]:
        state.append(added.event)
        return state

    def put(one: str, state: dict[str, int]) -> list[Emit]:
        state[one] = 1
        return [Emit(one, {})]

    def emit(one: str, _: object) -> list[Emit]:
        return [Emit(one, {})]

    wrong: tuple[tuple[str, str, Any, Any, Any], ...] = (
        ("led to other events", "dice", 0, lambda _, __: [Emit("thrown", next(numbers))], lambda s, _: s),
        ("list changes a state in its place", "list", [], emit, add),
        ("counts changes a state in its place", "counts", {}, put, lambda state, e: {**state, e.event: 1}),
        ("depends on how it is computed", "odd", 0, emit, lambda _, __: next(numbers)),
    )
    store = given(event("list", "s", "first"), dsn=dsn)
    for said, name, initial, decided, evolved in wrong:
        with pytest.raises(AssertionError, match=said):
            store.when(Decider(name=name, initial=initial, decide=decided, evolve=evolved), "s", "first")
    with pytest.raises(TypeError, match=r"when\(ACCOUNT, decider_id, command\)"):
        store.when(ACCOUNT)  # type: ignore[call-overload]
