"""Processes: steps over several streams, each once; timers; refused commands; late events."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import psycopg
import pytest

from millrace import Decider, Emit, EventStore
from millrace.commands.processes import NEWEST, Do, Process, RefusedCommand, on, on_late, on_refused, process, starts
from millrace.errors import InvalidSubscription
from millrace.event_store import Event, NewEvent
from millrace.event_store import on as on_stream
from millrace.event_store.platform import PlatformStore
from millrace.handlers.log_lines import Counters
from millrace.testing import Given, StreamsFailed, event, given
from tests.support.logins import logins

DAYS = timedelta(days=1)


@dataclass(frozen=True)
class Ship:
    express: bool = False


@dataclass(frozen=True)
class CancelOrder:
    why: str


def ship(command: Ship, state: str) -> list[Emit]:
    if state == "closed" and not command.express:
        raise ValueError("the warehouse is closed")
    return [Emit("shipped", {"express": command.express})]


SHIPPING = Decider(name="shipping", initial="open", decide=ship, evolve=lambda _, heard: heard.event)


def cancel(command: CancelOrder, _: str) -> list[Emit]:
    return [Emit("cancelled", {"why": command.why})]


ORDERS = Decider(name="order", initial="", decide=cancel, evolve=lambda _, heard: heard.event)


@process(view="checkout", key={"order": "decider_id", "payment": "data.order_id"})
class Checkout:
    """From the order to its shipping."""

    payment_id: str | None = None

    @starts("placed")
    def placed(self, _: Event, do: Do) -> None:
        do.timer("pay", after=3 * DAYS, event="payment_overdue")

    @on("taken", wait=DAYS)
    def paid(self, taken: Event, do: Do) -> None:
        self.payment_id = taken.data["payment_id"]
        do.cancel("pay")
        do.command(SHIPPING, taken.data["order_id"], Ship())
        do.end()

    @on("payment_overdue")
    def overdue(self, _: Event, do: Do) -> None:
        do.command(ORDERS, self.key, CancelOrder("overdue"))  # type: ignore[attr-defined]
        do.end()

    @on_refused(Ship)
    def by_air(self, refused: RefusedCommand, do: Do) -> None:
        do.command(SHIPPING, refused.decider_id, Ship(express=True))

    @on_late("taken")
    def too_late(self, taken: Event, _: Do) -> None:
        self.payment_id = f"give back {taken.data['payment_id']}"


@process(view="bells", key={"order": "decider_id", "payment": "data.order_id"})
class Bells:
    rung: int = 0

    @starts("placed")
    def placed(self, _: Event, do: Do) -> None:
        do.timer("first", after=DAYS, event="bell")
        do.timer("second", after=DAYS, event="bell")

    @on("bell")
    def bell(self, _: Event, __: Do) -> None:
        self.rung += 1

    @on("taken")
    def taken(self, taken: Event, do: Do) -> None:
        do.command(SHIPPING, taken.data["order_id"], Ship())


def hear(shop: Given, by: type = Checkout) -> Counters:
    """Let the process hear what it has not heard; to type checkers it is still its class."""
    return cast("Counters", shop.when(by))


def stream(dsn: str, decider: str, stream: str = "o-1") -> list[Event]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [*PlatformStore(connection).read(decider, stream)]


def names(dsn: str, decider: str, stream_: str = "o-1") -> list[str]:
    return [each.event for each in stream(dsn, decider, stream_)]


PLACED = event("order", "o-1", "placed")
TAKEN = event("payment", "p-1", "taken", order_id="o-1", payment_id="p-1")


def registered(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for decider, each in (("shipping", "shipped"), ("shipping", "closed"), ("order", "cancelled")):
            PlatformStore(connection).register_decider_event(decider, each, "")


def test_a_paid_order_is_shipped_and_its_timer_taken_back(dsn: str) -> None:
    registered(dsn)
    shop = given(PLACED, dsn=dsn)
    assert [hear(shop).handled, hear(shop.given(TAKEN)).handled] == [1, 1]
    assert names(dsn, "shipping") == ["shipped"]
    first, second = stream(dsn, "process:checkout")
    assert (first.data["state"], first.data["did"]) == ({"payment_id": None}, ["timer pay"])
    assert second.data["did"] == ["cancel pay", "command Ship for shipping o-1"]
    assert (second.data["state"], second.data["ended"]) == ({"payment_id": "p-1"}, True)
    assert hear(shop.later(4 * DAYS)).handled == 0


def test_an_order_that_is_not_paid_is_cancelled_and_a_late_payment_noted(dsn: str) -> None:
    registered(dsn)
    shop = given(PLACED, dsn=dsn)
    hear(shop)
    assert hear(shop.later(2 * DAYS)).handled == 0
    assert hear(shop.later(2 * DAYS)).handled == 1
    assert names(dsn, "order") == ["placed", "cancelled"]
    hear(shop.given(TAKEN))
    assert names(dsn, "process:checkout") == ["step", "payment_overdue", "step", "step"]
    assert stream(dsn, "process:checkout")[-1].data["state"] == {"payment_id": "give back p-1"}


def test_a_step_is_made_once_however_often_its_event_comes(dsn: str) -> None:
    registered(dsn)
    shop = given(PLACED, dsn=dsn)
    hear(shop)
    hear(shop.given(TAKEN))
    with psycopg.connect(dsn, autocommit=True) as connection:
        PlatformStore(connection).seek_view("checkout", "RESET_TO_EARLIEST")
    assert hear(given(dsn=dsn)).handled == 2
    assert (names(dsn, "process:checkout"), names(dsn, "shipping")) == (["step", "step"], ["shipped"])


def test_a_refused_command_is_heard_in_the_same_step_or_fails_the_event(dsn: str) -> None:
    registered(dsn)
    shop = given(PLACED, event("shipping", "o-1", "closed"), dsn=dsn)
    hear(shop)
    hear(shop.given(TAKEN))
    assert names(dsn, "shipping") == ["closed", "shipped"]
    assert [each.data["heard"].split()[0] for each in stream(dsn, "process:checkout")] == ["placed", "taken", "refused"]


def test_an_early_event_waits_and_one_without_a_key_is_passed_over(dsn: str) -> None:
    registered(dsn)
    orphan: dict[str, Any] = {"payment_id": "p-2"}
    counters = hear(given(TAKEN, event("payment", "p-2", "taken", **orphan), dsn=dsn))
    assert (counters.handled, counters.given_back) == (1, 1)
    assert names(dsn, "process:checkout") == []


def test_an_imported_event_begins_nothing_unless_the_process_says_so(dsn: str) -> None:
    registered(dsn)
    shop = given(dsn=dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        PlatformStore(connection).register_decider_event("order", "placed", "")
        PlatformStore(connection).append("order", "o-1", NewEvent("placed", metadata={"imported": True}))
    assert (hear(shop).handled, names(dsn, "process:checkout")) == (1, [])
    with psycopg.connect(dsn, autocommit=True) as connection:
        PlatformStore(connection).seek_view("checkout", "RESET_TO_EARLIEST")
    process_ = cast("Process", Checkout)
    assert shop.when(importing(process_)).handled == 1
    assert names(dsn, "process:checkout") == ["step"]


def importing(process_: Process) -> Process:
    """Return the same process, which imported events begin."""
    own = {name: each for name, each in vars(process_.model).items() if not name.startswith("_")}
    return process(view=process_.view, key=process_.key, imports=True)(type("Checkout", (), own))


def test_states_that_the_class_cannot_read_are_named(dsn: str) -> None:
    registered(dsn)
    shop = given(PLACED, event("order", "o-2", "placed"), dsn=dsn)
    hear(shop)

    @process(view="checkout", key={"order": "decider_id"})
    class Changed:
        payment_id: int = 0

        @starts("placed")
        def placed(self, _: Event, do: Do) -> None:
            do.end()

    with psycopg.connect(dsn, autocommit=True) as connection:
        store = PlatformStore(connection)
        sentence = "The state of process:checkout {} does not fit tests.commands.test_process.{}: payment_id."
        local = "test_states_that_the_class_cannot_read_are_named.<locals>.Changed"
        assert cast("Process", Checkout).unfit_states(store) == []
        assert sorted(cast("Process", Changed).unfit_states(store)) == [
            sentence.format(key, local) for key in ("o-1", "o-2")
        ]


def test_a_login_that_may_not_append_is_told_at_the_start(store: PlatformStore) -> None:
    with logins(store.connection) as login, pytest.raises(InvalidSubscription, match=r"login may not append\."):
        cast("Process", Checkout).prepare(EventStore(login("event_store_consumer")))


@process(view="counting", key={"count": "decider_id"})
class Counting:
    """An instance with many steps."""

    heard: int = 0

    @starts("counted")
    def counted(self, _: Event, do: Do) -> None:
        self.heard += 1
        do.timer("pay", after=DAYS, event="counted")


def test_the_steps_of_a_long_instance_are_known_too(dsn: str) -> None:
    counted, handled = given(*[event("count", "c-1", "counted") for _ in range(25)], dsn=dsn), 0
    while handled < 25:
        # a delivery is given back while the thread of the one before has not returned
        handled += cast("Counters", counted.when(Counting)).handled
    with psycopg.connect(dsn, autocommit=True) as connection:
        PlatformStore(connection).seek_view("counting", "RESET_TO_EARLIEST")
    while handled < 50:
        handled += cast("Counters", counted.when(Counting)).handled
    assert [each.data["state"]["heard"] for each in stream(dsn, "process:counting", "c-1")] == [*range(1, 26)]


def test_a_step_is_found_behind_many_events_that_came_since(dsn: str) -> None:
    shop = given(PLACED, dsn=dsn)
    hear(shop, Bells)
    did = stream(dsn, "process:bells")[0].data["did"]
    assert did == ["timer first", "timer second"]
    shop, heard = shop.given(*(event("process:bells", "o-1", "bell") for _ in range(NEWEST + 1))), 0
    while heard <= NEWEST:
        # a delivery is given back while the thread of the one before has not returned
        heard += hear(shop, Bells).handled
    assert stream(dsn, "process:bells")[-1].data["state"] == {"rung": NEWEST + 1}
    shop.later(2 * DAYS)
    assert names(dsn, "process:bells").count("bell") == NEWEST + 3


def test_what_is_for_no_instance_is_passed_over_and_a_second_start_heard(dsn: str) -> None:
    registered(dsn)
    early = event("payment", "p-1", "taken", order_id="o-1")
    listed = event("payment", "p-2", "taken", order_id=["o-1"])
    assert hear(given(early, listed, dsn=dsn), Bells).handled == 2
    assert names(dsn, "process:bells") == []
    shop, heard = given(event("order", "o-1", "placed"), event("order", "o-1", "placed"), dsn=dsn), 0
    while heard < 2:
        heard += hear(shop).handled
    assert names(dsn, "process:checkout") == ["step", "step"]


def test_a_refused_command_that_no_method_hears_fails_its_event(dsn: str) -> None:
    registered(dsn)
    shop = given(PLACED, event("shipping", "o-1", "closed"), dsn=dsn)
    hear(shop, Bells)
    with pytest.raises(StreamsFailed, match="no method hears it: the warehouse is closed"):
        hear(shop.given(TAKEN), Bells)
    assert names(dsn, "process:bells") == ["step"]


def test_a_command_that_is_refused_again_and_again_fails_its_event(dsn: str) -> None:
    """The store itself refuses it: a step outlives a statement that failed."""
    registered(dsn)
    shop = given(PLACED, on_stream("shipping", "o-1", NewEvent("closed", final=True)), dsn=dsn)
    hear(shop)
    with pytest.raises(StreamsFailed, match=r"no method hears it: .*closed"):
        hear(shop.given(TAKEN))
    assert names(dsn, "process:checkout") == ["step"]


def test_an_instance_that_ended_hears_only_what_may_come_late(dsn: str) -> None:
    registered(dsn)
    shop = given(PLACED, dsn=dsn)
    hear(shop)
    hear(shop.given(TAKEN))
    again = event("payment", "p-2", "taken", order_id="o-1", payment_id="p-2")
    more = event("payment", "p-3", "taken", order_id="o-1", payment_id="p-3")
    hear(shop.given(event("order", "o-1", "placed"), again, more))
    assert [each.data["heard"].split()[0] for each in stream(dsn, "process:checkout")] == ["placed", *["taken"] * 3]
    assert [each.data["ended"] for each in stream(dsn, "process:checkout")] == [False, True, True, True]
    assert names(dsn, "shipping") == ["shipped"]


def test_a_changed_class_reads_what_is_stored_or_says_what_does_not_fit(dsn: str) -> None:
    class Changed:
        payment_id: str = "none"

        @starts("placed")
        def placed(self, _: Event, __: Do) -> None: ...

    class Upgraded:
        payment_id: str = "none"
        placed = Changed.placed
        upgrade = staticmethod(lambda stored: {"payment_id": stored["payment_id"] or "none"})

    declared = process(view="checkout", key={"order": "decider_id"})
    shop = given(PLACED, event("order", "o-2", "placed"), dsn=dsn)
    hear(shop)
    hear(shop.given(event("order", "o-1", "placed")), cast("type", declared(Upgraded)))
    assert [each.data["state"] for each in stream(dsn, "process:checkout")] == [
        {"payment_id": None},
        {"payment_id": "none"},
    ]
    with pytest.raises(StreamsFailed, match=r"process:checkout o-2 does not fit .*Changed: payment_id\."):
        hear(shop.given(event("order", "o-2", "placed")), cast("type", declared(Changed)))


def test_a_process_that_nothing_begins_is_refused() -> None:
    class Never:
        @on("taken")
        def taken(self, _: Event, __: Do) -> None: ...

    with pytest.raises(InvalidSubscription, match="nothing begins it"):
        process(view="never", key={"payment": "data.order_id"})(Never)
