"""The role that registered an event owns its schemas and upcasts; operators can withdraw them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from millrace import errors
from millrace.capture.store import CaptureStore, TableRegistration
from millrace.event_schemas.moves import default, drop, rename, scale
from millrace.event_store import EventSchema, EventUpcast, Json
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, everything, purge_all, refusal, rows, start_blocked, value
from tests.support.logins import Login
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_events
from tests.support.views.isolation import REPEATABLE_READ, assert_not_serializable, snapshot_of

WRITER = "event_store_writer"
Error = type[errors.MillraceError]
TIMES_100 = [scale("amount", 2)]


def append(store: PlatformStore, decider_id: str = "o-1", data: Json = None, event: str = "placed") -> None:
    append_events(store, [BatchEvent("sale", decider_id, event, data={"amount": 1} if data is None else data)])


@pytest.fixture
def service(login: Login) -> PlatformStore:
    """Return the store as the login that registered an event and appended one."""
    service = PlatformStore(login(WRITER))
    service.register_decider_event("sale", "placed", "Something was sold.")
    service.register_decider_event("sale", "new", "It has no event.")
    append(service, data={"amount": 12})
    return service


def register(
    store: PlatformStore, what: str, event: str, decider: str = "order", *, other: bool = False
) -> EventSchema | EventUpcast:
    """Register a schema of version 1, or an upcast to version 2, or replace it by another one."""
    if what == "schema":
        return store.register_event_schema(decider, event, {"type": "array" if other else "object"})
    return store.register_event_upcast(decider, event, 2, [] if other else TIMES_100)


both = pytest.mark.parametrize(
    ("what", "differs"), [("schema", errors.SchemaDiffers), ("upcast", errors.UpcastDiffers)]
)


@both
def test_a_version_has_one_for_ever(orders: PlatformStore, what: str, differs: Error) -> None:
    first = register(orders, what, "placed")
    before = everything(orders)
    assert register(orders, what, "placed") == first
    error = refusal(differs, lambda: register(orders, what, "placed", other=True))
    assert first.digest in str(error.detail)
    assert everything(orders) == before
    audited = [entry.detail["digest"] for entry in orders.audit_log() if entry.operation == f"register_event_{what}"]
    assert audited == [first.digest]


@both
def test_of_two_sessions_one_is_refused(orders: PlatformStore, connect: Connect, what: str, differs: Error) -> None:
    for event in ("placed", "paid"):  # registering a version takes the same lock
        orders.register_decider_event("order", event, "", 2)
    first, second = PlatformStore(connect(autocommit=False)), PlatformStore(connect())
    known = register(first, what, "placed")
    late = start_blocked(orders, second, lambda: register(second, what, "placed", other=True))
    first.connection.commit()
    with pytest.raises(differs, match=known.digest):
        late.result(patience())
    # registering the same again never waits
    register(first, what, "paid")
    assert register(second, what, "placed") == known
    same = start_blocked(orders, second, lambda: register(second, what, "paid"))
    first.connection.commit()
    assert same.result(patience()).event == "paid"
    assert value(orders.connection, f"select count(*) from event_store.event_{what}s") == 2


@both
def test_an_older_snapshot_is_to_be_repeated(
    orders: PlatformStore, connect: Connect, what: str, differs: Error
) -> None:
    orders.register_decider_event("order", "placed", "", 2)
    old = snapshot_of(connect, REPEATABLE_READ)
    register(orders, what, "placed")
    assert_not_serializable(old, lambda: register(old, what, "placed", other=True))
    refusal(differs, lambda: register(old, what, "placed", other=True))


@both
def test_only_members_of_the_deciders_role_register(login: Login, what: str, differs: Error) -> None:
    team = login(WRITER).info.user
    member, other = PlatformStore(login(WRITER, team)), PlatformStore(login(WRITER))
    member.register_decider_event("payment", "paid", "Paid.", owner=team)
    for event in ("paid", "new"):
        refusal(errors.NotDeciderOwner, partial(register, other, what, event, "payment"))
    register(member, what, "paid", "payment")
    refusal(differs, lambda: register(member, what, "paid", "payment", other=True))


@pytest.mark.parametrize(("what", "a"), [("schema", "a schema"), ("upcast", "an upcast")])
def test_the_decider_of_a_captured_table_has_none(orders: PlatformStore, what: str, a: str) -> None:
    captures = CaptureStore(orders.connection)
    first, second = (TableRegistration("public", name, f"table:{name}", None, "1") for name in ("a", "b"))
    captures.register_capture("c", "slot", "publication", [first])
    refusal(errors.DeciderCaptured, lambda: register(orders, what, "updated", "table:a"))
    orders.register_decider_event("table:b", "updated", "", owner="event_store_owner")
    register(orders, what, "updated", "table:b")
    error = refusal(errors.DeciderCaptured, lambda: captures.register_capture("d", "slot_d", "publication", [second]))
    assert f"has {a} for its event updated" in str(error.detail)


def test_a_stranger_says_nothing_of_an_events_shape(store: PlatformStore, service: PlatformStore, login: Login) -> None:
    stranger = PlatformStore(login(WRITER))
    before = everything(store)
    for event in ("placed", "new"):
        attempts: list[Callable[[], object]] = [
            partial(stranger.register_event_upcast, "sale", event, 2, TIMES_100),
            *(partial(stranger.register_event_schema, "sale", event, False, version) for version in (1, 2)),
        ]
        for attempt in attempts:
            error = refusal(errors.NotDeciderOwner, attempt)
            assert str(service.connection.info.user) in str(error.detail)
            assert "set_decider_owner" in str(error.hint)
    assert everything(store) == before
    # a version registered by a stranger belongs to the event too
    stranger.register_decider_event("sale", "placed", "as it likes", 2)
    refusal(errors.NotDeciderOwner, lambda: stranger.register_event_upcast("sale", "placed", 2, TIMES_100))
    append(stranger, "o-2", data={"amount": 1})
    upcast = service.register_event_upcast("sale", "placed", 2, [])
    schema = service.register_event_schema("sale", "placed", {"type": "object"}, 2)
    # existing registrations may be repeated by any writer
    assert stranger.register_event_upcast("sale", "placed", 2, []) == upcast
    assert stranger.register_event_schema("sale", "placed", {"type": "object"}, 2) == schema
    # its own event, and a new one
    stranger.register_event_upcast("sale", "theirs", 2, TIMES_100)
    stranger.register_event_schema("sale", "another", False)
    # operators may
    store.register_event_schema("sale", "placed", {"type": "object"})


def test_members_of_the_role_that_registered_an_event_say_its_shape(store: PlatformStore, login: Login) -> None:
    team = login(WRITER)
    first, second = login(WRITER, team.info.user), PlatformStore(login(WRITER, team.info.user))
    first.execute(f"set role {team.info.user}".encode())
    PlatformStore(first).register_decider_event("sale", "placed", "")
    second.register_event_upcast("sale", "placed", 2, TIMES_100)
    first.execute("reset role")
    PlatformStore(first).register_decider_event("sale", "mine", "")
    refusal(errors.NotDeciderOwner, lambda: second.register_event_upcast("sale", "mine", 2, TIMES_100))
    assert rows(store.connection, "select distinct event, registered_by from event_store.deciders where decider = 'sale' order by 1") == [
        ("mine", first.info.user), ("placed", team.info.user)
    ]  # fmt: skip


def test_an_operator_takes_an_upcast_back_and_another_one_is_registered(
    store: PlatformStore, service: PlatformStore
) -> None:
    wrong = service.register_event_upcast("sale", "placed", 2, TIMES_100)
    service.register_event_upcast("sale", "placed", 3, [rename("amount", "cents")])
    (event,) = service.read("sale", "o-1", upcast=True)
    assert event.data == {"cents": 1200}
    error = refusal(errors.Malformed, lambda: store.withdraw_registration("sale", "placed", 2, "upcast"))
    assert "an upcast to version 3" in str(error.detail)
    assert store.withdraw_registration("sale", "placed", 3, "upcast")
    refusal(errors.UpcastDiffers, lambda: service.register_event_upcast("sale", "placed", 2, []))
    assert store.withdraw_registration("sale", "placed", 2, "upcast", "these are euros")
    assert not store.withdraw_registration("sale", "placed", 2, "upcast", "these are euros")
    (event,) = service.read("sale", "o-1", upcast=True)
    assert event.data == {"amount": 12}
    last = next(entry for entry in store.audit_log() if entry.operation == "withdraw_registration")
    assert last.reason == "these are euros"
    assert last.detail == {
        "what": "upcast", "decider": "sale", "event": "placed", "to_version": 2, "digest": wrong.digest,
        "moves": TIMES_100,
    }  # fmt: skip
    assert service.register_event_upcast("sale", "placed", 2, []).digest != wrong.digest


def test_an_operator_takes_a_schema_back_and_another_one_is_registered(
    store: PlatformStore, service: PlatformStore
) -> None:
    service.register_event_schema("sale", "placed", False)
    refusal(errors.DataRefused, lambda: append(service, "o-2"))
    assert store.withdraw_registration("sale", "placed", 1, "schema", "it took nothing")
    append(service, "o-2")
    service.register_event_schema("sale", "placed", {"type": "array"})
    refusal(errors.DataRefused, lambda: append(service, "o-3"))
    refusal(errors.SchemaDiffers, lambda: service.register_event_schema("sale", "placed", {}))
    last = next(entry for entry in store.audit_log() if entry.operation == "withdraw_registration")
    assert (last.detail["what"], last.detail["schema"]) == ("schema", False)


def test_an_event_without_events_is_anybodys_if_released(
    store: PlatformStore, service: PlatformStore, login: Login
) -> None:
    next_one = PlatformStore(login(WRITER))
    service.register_event_schema("sale", "new", {})

    def release(event: str, version: int = 1) -> bool:
        return store.withdraw_registration("sale", event, version, "event", "a typing error")

    assert "a schema" in str(refusal(errors.Malformed, lambda: release("new")).detail)
    store.withdraw_registration("sale", "new", 1, "schema")
    assert "has events" in str(refusal(errors.Malformed, lambda: release("placed")).detail)
    assert release("new")
    assert not release("new")
    refusal(errors.EventNotRegistered, lambda: append(service, "o-2", event="new"))
    next_one.register_event_schema("sale", "new", {})
    refusal(errors.NotDeciderOwner, lambda: service.register_event_schema("sale", "new", {}, 2))
    # a purged event counts
    purge_all(store)
    assert value(store.connection, "select count(*) from event_store.events") == 0
    assert "purged" in str(refusal(errors.Malformed, lambda: release("placed")).detail)
    CaptureStore(store.connection).register_capture(
        "c", "slot", "publication", [TableRegistration("public", "t", "table:public.t", None, "1")]
    )
    error = refusal(errors.Malformed, lambda: store.withdraw_registration("table:public.t", "inserted", 1, "event"))
    assert "belongs to a capture" in str(error.detail)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        service.withdraw_registration("sale", "placed", 1, "event")


def test_a_registration_that_is_withdrawn_at_the_same_time_waits(store: PlatformStore, connect: Connect) -> None:
    store.register_event_upcast("sale", "placed", 2, TIMES_100)
    first = connect(autocommit=False)
    PlatformStore(first).withdraw_registration("sale", "placed", 2, "upcast")
    # an uncommitted withdrawal blocks no other session, and a rollback removes nothing
    assert store.register_event_upcast("sale", "placed", 2, TIMES_100).to_version == 2
    first.rollback()
    assert not PlatformStore(first).withdraw_registration("sale", "placed", 3, "upcast")
    first.commit()
    assert value(store.connection, "select count(*) from event_store.event_upcasts") == 1


def test_all_upcasts_of_an_event_together_have_an_end(store: PlatformStore) -> None:
    store.register_decider_event("sale", "placed", "")
    many: list[tuple[list[list[Any]], str]] = [
        ([[drop("a")] * 100] * 11, "would have 1100 moves"),
        ([[default("a", "x" * 60_000)], [default("b", "x" * 6_000)]], "bytes as text"),
        ([[rename("a", ["b"] * 32), rename("b", ["a"] * 32)] * 8], "renames to 512 keys"),
    ]
    for number, (upcasts, why) in enumerate(many):
        for to_version, moves in enumerate(upcasts[:-1], 2):
            store.register_event_upcast("sale", f"e-{number}", to_version, moves)
        last = len(upcasts) + 1
        error = refusal(errors.Malformed, lambda: store.register_event_upcast("sale", f"e-{number}", last, upcasts[-1]))  # noqa: B023 - called here
        assert why in str(error.detail)
    # so upcasted data are no longer than the appended data and the upcasts' own text together
    data = {"amount": "x" * 1_000_000}
    store.register_event_upcast("sale", "placed", 2, [default(key, "y" * 640) for key in map(str, range(90))])
    append_events(store, [BatchEvent("sale", "o-9", "placed", data=data)])
    (read,) = store.read("sale", "o-9", upcast=True)
    assert 1_050_000 < len(read.data_json) < 1_000_000 + 65_536 + 100
    # the largest possible version
    store.register_event_upcast("sale", "far", 9_223_372_036_854_775_807, [])
    store.register_event_upcast("sale", "far", 9_223_372_036_854_775_806, [])
