"""The shape of an event, its schemas and upcasts, is that of the role that registered it; operators take one back.

Belongs here: who may, and withdrawing. Not here: what a schema or an upcast means (test_schemas, test_upcasts), a
decider that belongs to a role (test_decider_owners).
"""

from typing import Any

import pytest
from psycopg import errors

from millrace.resources.capture.store import CaptureStore, TableRegistration
from millrace.resources.errors import (
    DataRefused,
    EventNotRegistered,
    Malformed,
    NotDeciderOwner,
    SchemaDiffers,
    UpcastDiffers,
)
from millrace.resources.event_store import EventStore, Json, NewEvent
from millrace.resources.events.moves import default, drop, rename, scale
from tests.support.factories import Connect, everything, purge_all, refusal, rows, value
from tests.support.logins import Login

WRITER = "event_store_writer"
TIMES_100 = [scale("amount", 2)]


def append(store: EventStore, decider_id: str = "o-1", data: Json = None, event: str = "placed") -> None:
    store.append_events([NewEvent("sale", decider_id, event, data={"amount": 1} if data is None else data)])


@pytest.fixture
def service(login: Login) -> EventStore:
    """Return the store as the login that registered an event and appended one."""
    service = EventStore(login(WRITER))
    service.register_decider_event("sale", "placed", "Something was sold.")
    service.register_decider_event("sale", "new", "It has no event.")
    append(service, data={"amount": 12})
    return service


def test_to_append_is_no_right_to_say_how_all_is_read_or_what_is_appended(
    store: EventStore, service: EventStore, login: Login
) -> None:
    stranger = EventStore(login(WRITER))
    before = everything(store)
    for event in ("placed", "new"):
        for attempt in (
            lambda event=event: stranger.register_event_upcast("sale", event, 2, TIMES_100),
            lambda event=event: stranger.register_event_schema("sale", event, False),
            lambda event=event: stranger.register_event_schema("sale", event, False, 2),
        ):
            error = refusal(NotDeciderOwner, attempt)
            assert str(service.connection.info.user) in str(error.detail)
            assert "set_decider_owner" in str(error.hint)
    assert everything(store) == before
    # a version of a stranger's is the event's, too
    stranger.register_decider_event("sale", "placed", "as it likes", 2)
    refusal(NotDeciderOwner, lambda: stranger.register_event_upcast("sale", "placed", 2, TIMES_100))
    append(stranger, "o-2", data={"amount": 1})
    upcast = service.register_event_upcast("sale", "placed", 2, [])
    schema = service.register_event_schema("sale", "placed", {"type": "object"}, 2)
    # what is there may be registered by all again
    assert stranger.register_event_upcast("sale", "placed", 2, []) == upcast
    assert stranger.register_event_schema("sale", "placed", {"type": "object"}, 2) == schema
    # an event of its own, and one that is new
    stranger.register_event_upcast("sale", "theirs", 2, TIMES_100)
    stranger.register_event_schema("sale", "another", False)
    # operators may
    store.register_event_schema("sale", "placed", {"type": "object"})


def test_members_of_the_role_that_registered_an_event_say_its_shape(store: EventStore, login: Login) -> None:
    team = login(WRITER)
    first, second = login(WRITER, team.info.user), EventStore(login(WRITER, team.info.user))
    first.execute(f"set role {team.info.user}".encode())
    EventStore(first).register_decider_event("sale", "placed", "")
    second.register_event_upcast("sale", "placed", 2, TIMES_100)
    first.execute("reset role")
    EventStore(first).register_decider_event("sale", "mine", "")
    refusal(NotDeciderOwner, lambda: second.register_event_upcast("sale", "mine", 2, TIMES_100))
    assert rows(store.connection, "select distinct event, registered_by from event_store.deciders where decider = 'sale' order by 1") == [
        ("mine", first.info.user), ("placed", team.info.user)
    ]  # fmt: skip


def test_an_operator_takes_an_upcast_back_and_another_one_is_registered(store: EventStore, service: EventStore) -> None:
    wrong = service.register_event_upcast("sale", "placed", 2, TIMES_100)
    service.register_event_upcast("sale", "placed", 3, [rename("amount", "cents")])
    (event,) = service.read_stream("sale", "o-1", upcast=True)
    assert event.data == {"cents": 1200}
    error = refusal(Malformed, lambda: store.withdraw_registration("sale", "placed", 2, "upcast"))
    assert "an upcast to version 3" in str(error.detail)
    assert store.withdraw_registration("sale", "placed", 3, "upcast")
    refusal(UpcastDiffers, lambda: service.register_event_upcast("sale", "placed", 2, []))
    assert store.withdraw_registration("sale", "placed", 2, "upcast", "these are euros")
    assert not store.withdraw_registration("sale", "placed", 2, "upcast", "these are euros")
    (event,) = service.read_stream("sale", "o-1", upcast=True)
    assert event.data == {"amount": 12}
    last = next(entry for entry in store.audit_log() if entry.operation == "withdraw_registration")
    assert last.reason == "these are euros"
    assert last.detail == {
        "what": "upcast", "decider": "sale", "event": "placed", "to_version": 2, "digest": wrong.digest,
        "moves": TIMES_100,
    }  # fmt: skip
    assert service.register_event_upcast("sale", "placed", 2, []).digest != wrong.digest


def test_an_operator_takes_a_schema_back_and_another_one_is_registered(store: EventStore, service: EventStore) -> None:
    service.register_event_schema("sale", "placed", False)
    refusal(DataRefused, lambda: append(service, "o-2"))
    assert store.withdraw_registration("sale", "placed", 1, "schema", "it took nothing")
    append(service, "o-2")
    service.register_event_schema("sale", "placed", {"type": "array"})
    refusal(DataRefused, lambda: append(service, "o-3"))
    refusal(SchemaDiffers, lambda: service.register_event_schema("sale", "placed", {}))
    last = next(entry for entry in store.audit_log() if entry.operation == "withdraw_registration")
    assert (last.detail["what"], last.detail["schema"]) == ("schema", False)


def test_an_event_without_events_is_released_and_belongs_to_the_role_that_registers_it_next(
    store: EventStore, service: EventStore, login: Login
) -> None:
    next_one = EventStore(login(WRITER))
    service.register_event_schema("sale", "new", {})

    def release(event: str, version: int = 1) -> bool:
        return store.withdraw_registration("sale", event, version, "event", "a typing error")

    assert "a schema" in str(refusal(Malformed, lambda: release("new")).detail)
    store.withdraw_registration("sale", "new", 1, "schema")
    assert "has events" in str(refusal(Malformed, lambda: release("placed")).detail)
    assert release("new")
    assert not release("new")
    refusal(EventNotRegistered, lambda: append(service, "o-2", event="new"))
    next_one.register_event_schema("sale", "new", {})
    refusal(NotDeciderOwner, lambda: service.register_event_schema("sale", "new", {}, 2))
    # an event that was purged counts
    purge_all(store)
    assert value(store.connection, "select count(*) from event_store.events") == 0
    assert "purged" in str(refusal(Malformed, lambda: release("placed")).detail)
    CaptureStore(store.connection).register_capture(
        "c", "slot", "publication", [TableRegistration("public", "t", "table:public.t", None, "1")]
    )
    error = refusal(Malformed, lambda: store.withdraw_registration("table:public.t", "inserted", 1, "event"))
    assert "belongs to a capture" in str(error.detail)
    with pytest.raises(errors.InsufficientPrivilege):
        service.withdraw_registration("sale", "placed", 1, "event")


def test_a_registration_that_is_withdrawn_at_the_same_time_waits(store: EventStore, connect: Connect) -> None:
    store.register_event_upcast("sale", "placed", 2, TIMES_100)
    first = connect(autocommit=False)
    EventStore(first).withdraw_registration("sale", "placed", 2, "upcast")
    # nobody is hindered by what is not committed, and nothing is gone after a rollback
    assert store.register_event_upcast("sale", "placed", 2, TIMES_100).to_version == 2
    first.rollback()
    assert not EventStore(first).withdraw_registration("sale", "placed", 3, "upcast")
    first.commit()
    assert value(store.connection, "select count(*) from event_store.event_upcasts") == 1


def test_all_upcasts_of_an_event_together_have_an_end(store: EventStore) -> None:
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
        error = refusal(Malformed, lambda: store.register_event_upcast("sale", f"e-{number}", last, upcasts[-1]))  # noqa: B023 - called here
        assert why in str(error.detail)
    # so what they make of data of an append is no longer than these and their own text together
    data = {"amount": "x" * 1_000_000}
    store.register_event_upcast("sale", "placed", 2, [default(key, "y" * 640) for key in map(str, range(90))])
    store.append_events([NewEvent("sale", "o-9", "placed", data=data)])
    (read,) = store.read_stream("sale", "o-9", upcast=True)
    assert 1_050_000 < len(read.data_json) < 1_000_000 + 65_536 + 100
    # a version that is the last one that there can be
    store.register_event_upcast("sale", "far", 9_223_372_036_854_775_807, [])
    store.register_event_upcast("sale", "far", 9_223_372_036_854_775_806, [])
