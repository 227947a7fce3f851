"""Read models over personal fields, as a package declares both: marked as sealed, or refused when it loads."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import invalidate_caches
from pathlib import Path
from sys import modules
from typing import Any

import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.assets.lineage import column_schema
from millrace.event_schemas.fields import field_types
from millrace.read_models.shown.known_names import unknown_properties

EVENTS = """
from typing import Annotated
from millrace.event_schemas import event
from millrace.personal import Personal
from pydantic import BaseModel

class Line(BaseModel):
    sku: str
    note: Annotated[str | None, Personal(of="id", kind="customer")]

class Person(BaseModel):
    name: str
    city: str

class Contact(BaseModel):
    phone: Annotated[str, Personal(of="id", kind="customer")]

@event(decider="order", name="placed")
class Placed(BaseModel):
    '''A customer placed an order.'''
    id: str
    email: Annotated[str, Personal(of="id", kind="customer")]
    person: Annotated[Person, Personal(of="id", kind="customer")]
    contact: Contact
    lines: list[Line]

@event(decider="order", name="named")
class Named(BaseModel):
    '''An order got another name.'''
    email: str
"""
MODEL = """
from millrace import *

@read_model(view="people", deciders={deciders}, key=["k"]{options})
class People:
    '''One row per order.'''
    k = {key}
    {column}
"""
ABOVE = """
from millrace import *
from declared_there.read_models.people import People

@read_model(view="above", deciders=["order"], key=["k"])
class Above:
    '''One row per order.'''
    k = stream_id()
    n = count()
    email = lookup(People, on="k", column="email")

@read_model(view="aloft", deciders=["order"], key=["k"])
class Aloft:
    '''One row per order.'''
    k = stream_id()
    n = count()
    email = lookup(Above, on="k", column="email")

@rollup(of=People, key=["given"])
class Counted:
    '''Orders by the number of emails.'''
    given = row("given")
    emails = count("email")
"""
Load = Callable[..., Declarations]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Load a package with the events, a read model with a column, and the text of another file."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(column: str, above: str = "", events: str = EVENTS, **parts: Any) -> Declarations:  # noqa: ANN401
        given = {"deciders": ["order"], "options": "", "key": "stream_id()"} | parts
        package = tmp_path / "declared_there"
        (package / "read_models").mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "events.py").write_text(events)
        (package / "read_models" / "people.py").write_text(MODEL.format(column=column, **given))
        (package / "read_models" / "z.py").write_text(above)
        invalidate_caches()
        return declared("declared_there", ["read_models"])

    yield write
    for name in [name for name in modules if name.partition(".")[0] == "declared_there"]:
        del modules[name]


KEPT = "email = last('data.email')\n    given = count('data.email')"
KEYS = ["field('data.email')", "carried('data.email')", "bucket('data.email', every='1 day')"]
EACH = {"options": ", each='data.lines'"}
REFUSED: list[tuple[str, dict[str, str], str]] = [
    ("x = sum_('data.email')", {}, "'x' is sum of data.email"),
    ("x = avg('data.email')", {}, "'x' is avg of data.email"),
    ("x = min_('data.email', type='string')", {}, "'x' is min of data.email"),
    ("x = max_('data.email', type='string')", {}, "'x' is max of data.email"),
    ("x = set_union('data.email')", {}, "'x' is set_union of data.email"),
    ("x = any_('data.email')", {}, "'x' is any of data.email"),
    ("x = sessions('data.email', gap='1 min')", {}, "'x' is sessions of data.email"),
    *(("x = count()", {"key": key}, "'k' reads data.email") for key in KEYS),
    (
        "x = count()",
        {"key": "field({'order': 'data.email', 'b': 'data.id'})", "deciders": "['order', 'b']"},
        "'k' reads data.email",
    ),
    ("x = count(where={'data.email': 'a'})", {}, "'x' has by= or where= of data.email"),
    ("x = last('data.email', where={'data.email': 'a'})", {}, "'x' has by= or where= of data.email"),
    ("x = last('event', by='data.email', by_type='string')", {}, "'x' has by= or where= of data.email"),
    ("x = top('data.email', 2, type='string')", {}, "'x' has by= or where= of data.email"),
    ("x = last('data.email', type='bigint')", {}, "'x' is last of data.email"),
    ("x = last('data.person.city')", {}, "'x' is last of data.person.city, but data.person of"),
    ("x = count('data.person.city')", {}, "'x' is count of data.person.city, but data.person of"),
    ("x = last('data.contact')", {}, "'x' is last of data.contact, but data.contact.phone of"),
    ("x = last('data')", {}, "'x' is last of data"),
    ("x = set_union('item.note')", EACH, "'x' is set_union of item.note, but data.lines.*.note of"),
    ("x = set_union('data.lines.0.note')", {}, "but data.lines.*.note of event placed is personal"),
    ("x = count()", {"options": ", each='data.person'"}, "'each=' reads data.person"),
    (KEPT + "\n    x = computed('email == \"a\"')", {}, "'x' is made of email, but data.email of"),
    (KEPT, {"options": ", indexes=['email']"}, "'email' can have no index: its values are sealed"),
]


@pytest.mark.parametrize(("column", "parts", "error"), REFUSED)
def test_a_personal_field_is_not_read_as_a_value(
    load: Load, tmp_path: Path, column: str, parts: dict[str, str], error: str
) -> None:
    found = load(column, **parts)
    assert "people" not in found.models
    (fault,) = found.faults
    assert fault.file == tmp_path / "declared_there" / "read_models" / "people.py"
    assert fault.error.startswith("read model people: '")
    assert error in fault.error
    assert "is personal: a sealed value has no order" in fault.error or "no index" in fault.error


@pytest.mark.parametrize(
    ("above", "error"),
    [
        (
            ABOVE.replace('row("given")', 'row("email")'),
            "rollup counted: 'given' is over 'email', jsonb of sealed values",
        ),
        (
            ABOVE.replace("n = count()", "c = last('data.email')", 1).replace('on="k"', 'on="c"', 1),
            "read model above: 'email' is made of c, but data.email of event placed is personal",
        ),
    ],
)
def test_a_model_over_a_sealed_column_is_not_keyed_by_it(load: Load, above: str, error: str) -> None:
    found = load(KEPT, above)
    assert "people" in found.models
    assert [fault.name for fault in found.faults] == [error.split()[1 if "rollup" in error else 2].rstrip(":")]
    assert error.removeprefix("rollup ") in found.faults[0].error


def test_kept_values_are_marked_as_sealed_wherever_they_are_shown(load: Load) -> None:
    found = load(KEPT + "\n    mails = latest('data.email', 3)\n    name = last('data.email', events=['named'])", ABOVE)
    assert found.faults == ()
    types = {"k": "text", "email": "jsonb", "given": "bigint", "mails": "jsonb[]", "name": "text"}
    assert found.models["people"].public_columns() == types
    assert [found.models[name].public_columns()["email"] for name in ("above", "aloft")] == ["jsonb", "jsonb"]
    described = {
        one.name: one.description for name in ("people", "aloft") for one in column_schema(found.models[name]).columns
    }
    assert {name for name, text in described.items() if str(text).startswith("sealed: ")} == {"email", "mails"}
    assert field_types(found.events[1].schema)["email"] == "personal string"
    assert [one.name for one in found.models["people"].rollups] == ["counted"]
    # it is built anew when a field becomes personal
    people = found.models["people"]
    plain = replace(people, columns={name: replace(one, sealed=False) for name, one in people.columns.items()})
    assert plain.fingerprint != people.fingerprint


def test_what_only_the_store_knows_as_personal_is_told(load: Load) -> None:
    plain = load(KEPT, events="").models["people"]
    marked = {"properties": {"id": {}, "email": {"type": "string", "x-personal": {"of": "id", "kind": "customer"}}}}
    schemas = {("order", "placed", 1): marked, ("order", "named", 1): None}
    told = [*unknown_properties(plain, schemas)]
    assert told == [("email: personal, and shown as text, because its event is not declared here", False)]
