"""An event declared as a Pydantic model: its name, the data that its schema accepts, models refused at once."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, PlainSerializer, TypeAdapter

from millrace.errors import DataRefused, InvalidEvent, Malformed
from millrace.event_schemas import event, new_event, register_events
from millrace.event_schemas.model import declared_event
from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore
from tests.support.sql_calls import BatchEvent, append_events


class Line(BaseModel):
    """An item, and what it costs."""

    item: str
    price: Decimal = Field(ge=0, decimal_places=2, description="In euros.")


@event(decider="order")
class OrderPlaced(BaseModel):
    """A customer
    placed an order.
    """  # noqa: D205 - words over two lines

    title: str = "none"
    lines: list[Line] = Field(alias="orderLines")
    on: date
    parcel: UUID | None = None
    via: Literal["web", "shop"] = "web"


PLACED = OrderPlaced(orderLines=[Line(item="tea", price=Decimal("3.50"))], on=date(2026, 3, 2))


@pytest.fixture
def orders(store: PlatformStore) -> PlatformStore:
    register_events(store, [OrderPlaced])
    return store


def test_it_is_named_after_its_class_and_described_by_its_docstring() -> None:
    @event(decider="order", name="order_placed", version=2)
    class Anything(BaseModel):
        """Other."""

    named = [declared_event(model) for model in (OrderPlaced, Anything)]
    assert [(each.decider, each.event, each.version, each.description) for each in named if each] == [
        ("order", "order_placed", 1, "A customer placed an order."),
        ("order", "order_placed", 2, "Other."),
    ]

    class Below(OrderPlaced):
        """No event itself."""

    assert [declared_event(each) for each in (Below, Line, PLACED, 1)] == [None] * 4


def test_its_schema_has_no_words_so_that_better_ones_are_no_other_schema() -> None:
    declared = declared_event(OrderPlaced)
    assert declared
    assert set(declared.schema["properties"]) == {"title", "orderLines", "on", "parcel", "via"}
    words = {"title", "description", "default"}
    assert [word for word in words if word in declared.schema or word in declared.schema["$defs"]["Line"]] == []
    assert [word for each in declared.schema["properties"].values() for word in words if word in each] == []
    said = Annotated[int, Field(description="Said.", json_schema_extra={"x-unit": "euro"})]

    @event(decider="order")
    class Nested(BaseModel):
        """Said."""

        many: list[said | None]
        named: dict[str, said]

    nested = declared_event(Nested)
    assert nested
    assert nested.schema["properties"] == {
        "many": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        "named": {"type": "object", "additionalProperties": {"type": "integer"}},
    }
    # the model's own schema still has the defaults
    assert OrderPlaced.model_json_schema()["properties"]["title"]["default"] == "none"


def test_what_an_object_makes_is_stored_and_read_again(orders: PlatformStore) -> None:
    made = new_event(PLACED, final=True)
    assert made == replace(
        NewEvent("order_placed", final=True),
        event_id=made.event_id,
        command_id=made.command_id,
        data={
            "title": "none", "orderLines": [{"item": "tea", "price": "3.50"}], "on": "2026-03-02",
            "parcel": None, "via": "web",
        },
    )  # fmt: skip
    orders.append("order", "order-1", PLACED, made)
    assert [(stored.final, stored.as_(OrderPlaced)) for stored in orders.read("order", "order-1")] == [
        (False, PLACED),
        (True, PLACED),
    ]


# a decimal type, the texts and numbers that it accepts, and those that it refuses
DECIMALS: tuple[tuple[Any, list[object], list[object]], ...] = (
    (Decimal, ["12.50", "-1", 12.5, 7, "123456789012345678901234567890.5"], ["a", "1.", "1E+3", "", True]),
    (Annotated[Decimal, Field(ge=0, decimal_places=2)], ["12.50", "0", 0, 0.07, 12.5], ["12.505", 12.505, "-1", -1]),
    (Annotated[Decimal, Field(gt=0, le=100)], ["12.50", 100], ["-1", 0, 101]),
    (Annotated[Decimal, Field(decimal_places=0)], ["12", -12], ["12.5", 12.5]),
    (Decimal | None, ["12.50", None], ["none"]),
)


def test_a_decimal_is_a_text_or_a_number_of_as_many_digits(store: PlatformStore) -> None:
    for number, (kind, fit, unfit) in enumerate(DECIMALS, 1):

        @event(decider="order", version=number)
        class Paid(BaseModel):
            """It was paid."""

            amount: kind  # type: ignore[valid-type]

        register_events(store, [Paid])

        def append(amount: object, version: int = number) -> None:
            data = {"amount": amount}
            append_events(store, [BatchEvent("order", "order-1", "paid", data=data, event_version=version)])

        for amount in fit:
            append(amount)
            TypeAdapter(kind).validate_python(amount)
        for amount in unfit:
            with pytest.raises(DataRefused):
                append(amount)


class Undocumented(BaseModel):
    amount: int


class Float(BaseModel):
    """A decimal that becomes a float."""

    amount: Annotated[Decimal, PlainSerializer(float, return_type=float)]


class Function(BaseModel):
    """A type that no schema describes."""

    call: Callable[[int], int]


class Later(BaseModel):
    """A type that is not declared yet."""

    what: "NotYet"  # type: ignore[name-defined]  # noqa: F821


REFUSED: tuple[tuple[Any, dict[str, Any], str], ...] = (
    (Undocumented, {}, "event undocumented: 'Undocumented' has no docstring: say what happened"),
    *(
        (
            Line,
            {"version": 3, "upcasts": dict.fromkeys(versions, ())},
            f"event line: 'Line' has upcasts to {versions}: name",
        )
        for versions in ([2], [3], [2, 3, 4], [1, 2, 3])
    ),
    (dict, {}, "event dict: it is no Pydantic model"),
    (Line, {"version": 0}, "event line: 'Line' has version 0: the first one is 1"),
    (Line, {"decider": "", "name": "put"}, "event put: 'Line' has no decider"),
    (Float, {}, "event float: 'Float' has no JSON Schema: a Decimal is written as a float"),
    (Function, {}, "event function: 'Function' has no JSON Schema: Cannot generate"),
    (Later, {}, "event later: 'Later' has no JSON Schema: `Later` is not fully defined"),
)


def test_what_cannot_work_is_refused_where_it_is_declared() -> None:
    for model, stated, said in REFUSED:
        with pytest.raises(InvalidEvent) as refused:
            event(**{"decider": "order", **stated})(model)
        assert str(refused.value).startswith(said)
        assert declared_event(model) is None
    with pytest.raises(InvalidEvent, match="Line declares no event: write @event"):
        register_nothing()
    with pytest.raises(Malformed, match="Line is no event"):
        new_event(Line(item="tea", price=Decimal(1)))


def register_nothing() -> None:
    register_events(PlatformStore(None), [Line])  # type: ignore[arg-type]
