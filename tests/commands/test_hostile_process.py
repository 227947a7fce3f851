"""Processes that cannot work are refused where they are declared; odd keys and states fail their event, or nothing."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from pydantic import SecretStr

from millrace import Decider, Emit
from millrace.commands.processes import Do, Method, Process, on, on_refused, process, starts
from millrace.errors import InvalidSubscription
from millrace.event_store import Event
from millrace.event_store.platform import PlatformStore
from millrace.testing import StreamsFailed, event, given

ODD: Decider[int, object] = Decider(name="odd", initial=0, decide=lambda *_: (), evolve=lambda n, _: n + 1)
PLACED, AGAIN = event("order", "o-1", "placed"), event("order", "o-1", "placed")


async def later(*_: object) -> None: ...


def yielding(*_: object) -> Any:  # noqa: ANN401 - it is refused
    yield


def declared(*, key: Any = None, bases: tuple[type, ...] = (), **body: Any) -> Process:  # noqa: ANN401 - as users do
    marked = {"placed": starts("placed")(lambda *_: None), "__annotations__": {}, **body}
    return process(view="p", key={"order": "decider_id"} if key is None else key)(type("P", bases, marked))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"bases": (type("Base", (), {}),)}, "it has a base class"),
        ({"key": "decider_id"}, "key names no path"),
        ({"key": {"order": "order_id"}}, "a key is decider_id, or a path"),
        ({"key": {"order": "data"}}, "a key is decider_id, or a path"),
        ({"placed": on("placed")(lambda *_: None)}, "nothing begins it"),
        ({"again": starts("placed")(lambda *_: None)}, "two methods hear the same event"),
        ({"steps": on("step")(lambda *_: None)}, "an event named step is one of its own"),
        ({"placed": starts("placed")(cast("Method", later))}, r"would not run: \['placed'\]"),
        ({"placed": starts("placed")(yielding)}, r"would not run: \['placed'\]"),
        ({"__annotations__": {"total": int}}, r"need a default: \['total'\]"),
        ({"__annotations__": {"_total": int}, "_total": 0}, r"not be stored: \['_total'\]"),
    ],
)
def test_a_process_that_cannot_work_is_refused_where_it_is_declared(body: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidSubscription, match=fault):
        declared(**body)


def test_a_key_is_a_json_scalar_and_without_one_nothing_happens(dsn: str) -> None:
    keys: list[Any] = [5, 1.5, True, "é😀", None, "", [1], {"a": 1}]
    events = (event("order", f"o-{number}", "placed", key=key) for number, key in enumerate(keys))
    assert given(*events, dsn=dsn).when(declared(key={"order": "data.key"})).handled == len(keys)
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = PlatformStore(connection)
        heard = [key for key in ("5", "1.5", "true", "é😀") if store.head("process:p", key)]
        heads = connection.execute("select count(*) from event_store.events where event = 'step'").fetchone()
    assert (heard, heads) == (["5", "1.5", "true", "é😀"], (4,))


@pytest.mark.parametrize("key", ["k" * 2000, "0190A5E0-0000-7000-8000-00000000000A"])
def test_a_key_that_names_no_stream_fails_its_event(dsn: str, key: str) -> None:
    with pytest.raises(StreamsFailed, match="decider_id"):
        given(event("order", "o-1", "placed", key=key), dsn=dsn).when(declared(key={"order": "data.key"}))


STATES: dict[str, tuple[Any, Any, Any]] = {
    "time": (datetime | None, None, datetime(2026, 1, 1, tzinfo=UTC)),
    "uuid": (UUID | None, None, UUID(int=7)),
    "money": (Decimal, Decimal(0), Decimal("1.10")),
    "names": (set[str], set(), {"a"}),
    "by_number": (dict[int, str], {}, {1: "a"}),
}


def test_a_state_that_is_not_json_comes_back_as_it_was(dsn: str) -> None:
    seen: list[dict[str, Any]] = []

    def placed(self: Any, _: Event, __: Do) -> None:  # noqa: ANN401 - the class is made here
        seen.append({name: getattr(self, name) for name in STATES})
        for name, (_, _, value) in STATES.items():
            setattr(self, name, value)

    body = {name: default for name, (_, default, _) in STATES.items()}
    kinds = {name: kind for name, (kind, _, _) in STATES.items()}
    made = declared(placed=starts("placed")(placed), __annotations__=kinds, **body)
    store, handled = given(PLACED, AGAIN, dsn=dsn), 0
    while handled < 2:
        # the second one is given back while the thread of the first has not returned
        handled += store.when(made).handled
    assert seen == [body, {name: value for name, (_, _, value) in STATES.items()}]


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (str, "", 5),
        (Any, None, object()),
        (Any, None, datetime(2026, 1, 1, tzinfo=UTC)),
        (SecretStr, SecretStr(""), SecretStr("x")),
        (float, 0.0, float("nan")),
    ],
)
def test_a_state_that_would_come_back_as_another_fails_its_event(
    dsn: str, kind: object, default: object, value: object
) -> None:
    def placed(self: Any, _: Event, __: Do) -> None:  # noqa: ANN401 - the class is made here
        self.field = value

    made = declared(placed=starts("placed")(placed), __annotations__={"field": kind}, field=default)
    with pytest.raises(StreamsFailed, match="would not come back from JSON as it is: "):
        given(PLACED, dsn=dsn).when(made)


KEPT: list[Do] = []


@pytest.mark.parametrize(
    ("asks", "fault"),
    [
        (lambda do: do.timer("pay", after=timedelta(1), event="typo"), "hears 'typo', the event of the timer 'pay'"),
        (lambda do: do.timer("pay", after=timedelta(1), event="step"), "hears 'step', the event of the timer 'pay'"),
        (lambda do: do.timer("pay", after=timedelta.max, event="placed"), "after, at most 1000000 days"),
        (lambda do: do.timer("p" * 201, after=timedelta(1), event="placed"), "v_name has 201 bytes"),
        (later, "NeverRan: The function returned a coroutine"),
        (lambda do: (KEPT.append(do), KEPT[0].cancel("pay")), "The method has returned"),  # type: ignore[func-returns-value]
    ],
)
def test_what_a_method_cannot_ask_for_fails_its_event(dsn: str, asks: Callable[[Do], object], fault: str) -> None:
    KEPT.clear()
    made = declared(placed=starts("placed")(lambda _, __, do: cast("None", asks(do))))
    store = given(PLACED, AGAIN, dsn=dsn)
    with pytest.raises(StreamsFailed, match=fault):
        # the second event may be given back once
        [store.when(made) for _ in range(9)]


def test_a_command_that_the_store_cannot_take_is_no_refusal_of_its_decider(dsn: str) -> None:
    never: Decider[int, object] = Decider(
        name="odd", initial=0, decide=lambda *_: [Emit("never", {})], evolve=lambda n, _: n
    )
    made = declared(
        placed=starts("placed")(lambda _, __, do: do.command(never, "1", 5)),
        refused=on_refused(int)(lambda _, __, do: do.end()),
    )
    with pytest.raises(StreamsFailed, match="EventNotRegistered: event is not registered"):
        given(PLACED, dsn=dsn).when(made)


def test_instances_that_command_one_stream_at_once_spend_no_attempt(dsn: str) -> None:
    busy: Decider[int, object] = Decider(
        name="odd", initial=0, decide=lambda *_: [Emit("counted", {})], evolve=lambda n, _: n + 1
    )

    def placed(_: object, __: Event, do: Do) -> None:
        for number in range(3):
            do.command(busy, "1", number)

    events = [event("order", f"o-{number}", "placed") for number in range(50)]
    store, handled = given(event("odd", "0", "counted"), *events, dsn=dsn), 0
    together = declared(placed=starts("placed")(placed))
    while handled < len(events):
        # here one failed attempt would be the last
        handled += store.when(together).handled
    assert store.when(busy, "1", 0).state == 151
