"""Models of events with personal fields: neither their texts nor their errors show a value."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, ValidationError, create_model

from millrace.errors import InvalidEvent
from millrace.event_schemas.model import event
from millrace.event_schemas.registering import register_events
from millrace.personal import Personal
from tests.support.customers import MAIL, SECRET, People


class Flat(BaseModel):
    """Within a list of a model within the event."""

    street: Annotated[str, Field(max_length=30), Personal(of="customer_id", kind="customer")]
    floor: int


class House(BaseModel):
    flats: list[Flat]


@event(decider="customer")
class CustomerSettled(BaseModel):
    """A customer lives somewhere."""

    customer_id: str
    email: Annotated[str, MAIL] = Field("", alias="E-Mail")
    phones: list[Annotated[int, MAIL]] = []
    house: House | None = None


class Later(CustomerSettled):
    """A model for users of their own."""


HOUSE = House(flats=[Flat(street=SECRET, floor=2)])
FULL = {"customer_id": "c", "house": HOUSE, "phones": [1234567], "E-Mail": SECRET}


@pytest.mark.parametrize(
    "shown", [CustomerSettled.model_validate(FULL), Later.model_validate(FULL), HOUSE, HOUSE.flats[0]]
)
def test_the_text_of_a_model_has_no_personal_value(shown: BaseModel) -> None:
    text = f"{shown!r} {shown}"
    assert SECRET not in text
    assert "1234567" not in text
    assert type(shown).__name__ in text


@pytest.mark.parametrize(
    "work",
    [
        lambda: CustomerSettled.model_validate({"E-Mail": SECRET}),  # the error is of another field, and of the whole
        lambda: CustomerSettled.model_validate({"customer_id": "c", "phones": [SECRET]}),
        lambda: CustomerSettled.model_validate([SECRET]),
        lambda: CustomerSettled.model_validate_json(f'{{"E-Mail": "{SECRET}'),
        lambda: CustomerSettled.model_validate({"customer_id": "c", "house": {"flats": [{"street": SECRET}]}}),
        lambda: Later.model_validate({"E-Mail": SECRET}),
        lambda: House.model_validate({"flats": [{"street": SECRET}]}),
        lambda: Flat.model_validate({"street": SECRET * 2, "floor": 1}),
    ],
)
def test_nor_has_an_error(work: Callable[[], object]) -> None:
    with pytest.raises(ValidationError) as refused:
        work()
    assert SECRET not in f"{refused.value!r} {refused.value}"


class Office(BaseModel):
    """Has a field of the name of a flat's."""

    street: Annotated[str, Personal(of="customer_id", kind="customer")]
    desk: str


def test_models_of_a_union_may_have_the_same_field(people: People) -> None:
    @event(decider="customer")
    class CustomerWorks(BaseModel):
        """A customer works somewhere."""

        customer_id: str
        at: list[Flat | Office]

    register_events(people.store, [CustomerWorks])
    works = CustomerWorks(customer_id="anna", at=[Office(street=SECRET, desk="2"), Flat(street="b", floor=1)])
    people.client().append("customer", "a", works)
    (read,) = people.client().read("customer", "a")
    assert (read.as_(CustomerWorks), SECRET in str(people.data())) == (works, False)


class Garden(BaseModel):
    street: Annotated[str, Personal(of="owner_id", kind="customer")]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (Flat | Garden, "marked for two people"),
        (Annotated[str, Personal(of="owner_id", kind="customer")], "owner_id is personal itself"),
        (Annotated[str, Personal(of="nobody", kind="customer")], "have no field nobody"),
    ],
)
def test_a_person_that_is_not_told_is_refused(field: Any, said: str) -> None:  # noqa: ANN401 - a type
    owner = str if field == Flat | Garden else Annotated[str, MAIL]
    fields: dict[str, Any] = {"customer_id": str, "owner_id": owner, "field": field}
    with pytest.raises(InvalidEvent, match=said):
        event(decider="customer")(create_model("GardenBought", __doc__="One.", **fields))
