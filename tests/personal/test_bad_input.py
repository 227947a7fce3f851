"""Values that no JSON has and names that no person has are refused, and the error does not have the value."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from millrace.errors import Malformed
from millrace.event_store import NewEvent
from millrace.personal.values import Plain
from tests.support.customers import ANNA, SECRET, People


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("subject", "value"),
    [
        (ANNA, [SECRET, math.nan]),
        (ANNA, f"{SECRET}\ud800"),
        (ANNA, {SECRET: datetime.now(UTC)}),
        (ANNA, {SECRET}),
        (ANNA, [nested(400), SECRET, 10**5000]),
        # an operator could not forget these people
        ("anna", SECRET),
        ("customer:", SECRET),
        (":anna", SECRET),
        ("customer:anna@a", SECRET),
        ("customer:an na", SECRET),
        ("customer:\ud800", SECRET),
        ("customer:an\0na", SECRET),
        (None, SECRET),
        (7, SECRET),
    ],
)
def test_it_is_refused_without_its_value(people: People, subject: Any, value: Any) -> None:  # noqa: ANN401 - bad input
    client = people.client()
    event = NewEvent("customer_moved", {"customer_id": "anna", "email": Plain(subject, value)})
    for _ in range(2):
        with pytest.raises(Malformed) as refused:
            client.append("customer", "a", event)
        assert SECRET not in f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}"
    assert people.data() == []
