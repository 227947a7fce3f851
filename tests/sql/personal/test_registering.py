"""Schemas with personal fields: which of their fields are, and that they stay so from version to version."""

from typing import Any

import pytest

from millrace.errors import DataRefused, Malformed, UpcastNeeded
from millrace.event_store import Json
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append, refusal

MARK: dict[str, Any] = {"x-personal": {"of": "id", "kind": "customer"}}
TEXT: dict[str, Any] = {"type": "string"}
SEALED = MARK | TEXT
OPTIONAL = {"anyOf": [TEXT, {"type": "null"}]}
REF: dict[str, Any] = {"$ref": "#/$defs/Mail"}
# schemas of a field, in which a part of it is personal, and as they are without the mark
MARKED = {
    "itself": (SEALED, TEXT),
    "optional": (MARK | OPTIONAL, OPTIONAL),
    "in anyOf": ({"anyOf": [SEALED, {"type": "null"}]}, OPTIONAL),
    "referred to": (REF | {"x-mail": SEALED}, REF | {"x-mail": TEXT}),
    "beside a reference": (MARK | {"allOf": [REF]} | {"x-mail": TEXT}, REF | {"x-mail": TEXT}),
    "of each item": ({"type": "array", "items": SEALED}, {"type": "array", "items": TEXT}),
    "within": (
        {"type": "object", "properties": {"home": {"anyOf": [SEALED]}}},
        {"type": "object", "properties": {"home": {"anyOf": [TEXT]}}},
    ),
    "of any key": (
        {"type": "object", "additionalProperties": SEALED},
        {"type": "object", "additionalProperties": TEXT},
    ),
}


def schema(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    mail = fields.get("mail", {}).get("x-mail", TEXT)
    return {"type": "object", "properties": {"id": TEXT} | fields, "$defs": {"Mail": mail}}


def register(store: PlatformStore, *versions: dict[str, Any] | None, moves: list[Json] | None = None) -> None:
    """Register schemas of an event's versions, after the moves to version 2."""
    if moves is not None:
        store.register_decider_event("customer", "moved", "")
        store.register_event_upcast("customer", "moved", 2, moves)
    for number, each in enumerate(versions, 1):
        if each is not None:
            store.register_event_schema("customer", "moved", each, number)


@pytest.mark.parametrize("where", MARKED)
def test_a_field_becomes_personal_without_an_upcast_and_never_ceases(store: PlatformStore, where: str) -> None:
    marked, plain = (schema(mail=each) for each in MARKED[where])
    register(store, plain, marked, marked)
    refused = refusal(UpcastNeeded, lambda: register(store, None, None, None, plain))
    assert '"mail"' in str(refused.detail)
    assert "was personal, and the new schema takes it in plain" in str(refused.detail)
    # an upcast does not help, and the field may go
    store.register_event_upcast("customer", "moved", 2, [])
    store.register_event_upcast("customer", "moved", 3, [])
    store.register_event_upcast("customer", "moved", 4, [])
    refusal(UpcastNeeded, lambda: register(store, None, None, None, plain))
    register(store, None, None, None, schema(other=TEXT))


def test_nor_does_it_cease_in_a_version_that_is_registered_first(store: PlatformStore) -> None:
    store.register_event_schema("customer", "moved", schema(mail=TEXT), 2)
    refusal(UpcastNeeded, lambda: register(store, schema(mail=SEALED)))
    register(store, schema(mail=TEXT))


def test_a_field_within_one_that_is_personal_as_a_whole_stays_so(store: PlatformStore) -> None:
    within = {"type": "object", "properties": {"mail": SEALED}}
    register(store, schema(contact=within), schema(contact=MARK | {"type": "object"}))


@pytest.mark.parametrize(
    "move",
    [
        {"move": "scale", "path": ["mail"], "power": 2},
        {"move": "cast", "path": ["mail"], "type": "string"},
        {"move": "values", "path": ["mail"], "values": {"a": "b"}},
        {"move": "default", "path": ["mail"], "value": "secret"},
        {"move": "default", "path": ["contact"], "value": {"home": "secret"}},
        {"move": "default", "path": ["new"], "value": "secret"},
        {"move": "drop", "path": ["mail", "$sealed"]},
        {"move": "rename", "path": ["mail", "$sealed"], "to": ["note"]},
        {"move": "rename", "path": ["note"], "to": ["mail", "x"]},
        {"move": "cast", "path": ["contact", "home"], "type": "string"},
        {"move": "cast", "path": ["by_key", "any"], "type": "string"},
    ],
    ids=str,
)
def test_what_the_store_cannot_read_no_move_changes(store: PlatformStore, move: Json) -> None:
    contact = {"type": "object", "properties": {"home": SEALED}}
    by_key = {"type": "object", "additionalProperties": SEALED}
    first = schema(mail=SEALED, contact=contact, by_key=by_key, note=TEXT)
    second = schema(mail=SEALED, contact=contact, by_key=by_key, note=TEXT, new=SEALED)
    register(store, first, second)
    refused = refusal(Malformed, lambda: store.register_event_upcast("customer", "moved", 2, [move]))
    assert "/0 is a move of" in str(refused.detail)
    assert "which is personal: it may be renamed and dropped only" in str(refused.detail)
    others: list[Json] = [{"move": "cast", "path": ["note"], "type": "string"}, {"move": "drop", "path": ["mail"]}]
    store.register_event_upcast("customer", "moved", 2, others)


@pytest.mark.parametrize("upcast_first", [False, True])
def test_a_rename_leads_to_a_personal_field(store: PlatformStore, upcast_first: bool) -> None:
    contact = {"type": "object", "properties": {"mail": SEALED}}
    first = schema(mail=SEALED, contact=contact, phone=SEALED)
    moves: list[Json] = [
        {"move": "rename", "path": ["contact"], "to": ["all", "of"]},
        {"move": "rename", "path": ["mail"], "to": ["address"]},
        {"move": "rename", "path": ["address"], "to": ["post", "address"]},
    ]
    plain: dict[str, Any] = {"type": "object"}
    good = {
        "all": {"type": "object", "properties": {"of": contact}},
        "post": {"type": "object", "properties": {"address": MARK}},
        "phone": SEALED,
    }
    for other in ({"all": plain}, {"post": plain}, {"post": {"type": "object", "properties": {"address": TEXT}}}):
        bad = schema(**good | other)
        with store.connection.transaction(force_rollback=True):
            if upcast_first:
                register(store, first)
                store.register_event_upcast("customer", "moved", 2, moves)
                with pytest.raises(UpcastNeeded):
                    nested(store, bad)
            else:
                register(store, first, bad)
                with pytest.raises(Malformed, match="was personal, and the new schema takes it in plain"):
                    store.register_event_upcast("customer", "moved", 2, moves)
    register(store, first, schema(**good))
    store.register_event_upcast("customer", "moved", 2, moves)


def nested(store: PlatformStore, second: dict[str, Any]) -> None:
    with store.connection.transaction():
        register(store, None, second)


@pytest.mark.parametrize(
    "mark",
    [
        *(True, None, "id", [], {}),
        {"of": "id"},
        {"kind": "customer"},
        {"of": "id", "kind": ""},
        {"of": 1, "kind": "c"},
        {"of": "id", "kind": "c", "more": "x"},
        {"of": ["id"], "kind": "c"},
        {"of": None, "kind": "c"},
    ],
    ids=str,
)
def test_a_mark_says_whose_the_value_is(store: PlatformStore, mark: Json) -> None:
    refused = refusal(Malformed, lambda: register(store, schema(mail={"x-personal": mark})))
    assert "x-personal at /properties/mail/x-personal is no object" in str(refused.detail)


@pytest.mark.parametrize(
    ("rules", "may_be_null"),
    [
        (TEXT, False),
        ({}, True),
        (OPTIONAL, True),
        ({"type": ["string", "null"]}, True),
        ({"enum": ["a", None]}, True),
        ({"const": None}, True),
        ({"allOf": [{"$ref": "#/$defs/Maybe"}]}, True),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, False),
        ({"type": "array", "items": {"type": ["string", "null"]}}, False),
    ],
    ids=str,
)
def test_a_value_may_be_null_where_its_own_rules_say_so(
    store: PlatformStore, rules: dict[str, Any], may_be_null: bool
) -> None:
    whole = {"type": "object", "properties": {"mail": MARK | rules}, "$defs": {"Maybe": OPTIONAL}}
    register(store, whole)
    append(store, "a", decider="customer", event="moved", data={})
    if may_be_null:
        append(store, "b", decider="customer", event="moved", data={"mail": None})
    else:
        refusal(DataRefused, lambda: append(store, "b", decider="customer", event="moved", data={"mail": None}))


def test_the_rules_of_what_is_sealed_are_checked_when_they_are_registered(store: PlatformStore) -> None:
    refusal(Malformed, lambda: register(store, schema(mail=MARK | {"type": "text"})))
