"""Personal values in read models: stored as they came, so a rebuild after a forgetting gives the same rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import pytest
from psycopg import sql
from psycopg.rows import dict_row
from pydantic import BaseModel

import millrace as m
from millrace.errors import InvalidReadModel
from millrace.event_schemas import event
from millrace.event_schemas.model import declared_event
from millrace.event_schemas.registering import register_events
from millrace.event_store import EventStore
from millrace.event_store.platform import PlatformStore
from millrace.personal import Forgotten, Personal, Sealer
from millrace.personal.folder import begun_folder
from millrace.read_models import recompute
from millrace.read_models.declared.columns import in_envelopes
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.rollups import Rollup
from millrace.read_models.declared.sealed import Field, sealed
from millrace.rows import FoldEvent, State
from tests.support.building.drains import drain, rows_of
from tests.support.building.lab import Lab
from tests.support.factories import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Line(BaseModel):
    """A line of an order."""

    note: Annotated[str, Personal(of="customer", kind="customer")]


@event(decider="order")
class OrderPlaced(BaseModel):
    """A customer placed an order."""

    customer: str
    email: Annotated[str, Personal(of="customer", kind="customer")]
    person: Annotated[dict[str, str], Personal(of="customer", kind="customer")] = {}
    lines: list[Line] = []
    remark: Line | None = None


@m.read_model(view="orders", deciders=["order"], key=["order_id"])
class Orders:
    """One row per order."""

    order_id = m.stream_id()
    email = m.last("data.email")
    earliest = m.first("data.email", by="data.customer", by_type="string")
    emails = m.latest("data.email", 2)
    given = m.count("data.email")
    customer = m.last("data.customer")


@m.read_model(view="order_lines", deciders=["order"], key=["order_id"], each="data.lines")
class OrderLines:
    """One row per order."""

    order_id = m.stream_id()
    note = m.last("item.note")


@m.fold(view="contacts", deciders=["order"], key="order_id", columns={"email": "sealed", "customer": "sealed"})
def contacts(state: State | None, event: FoldEvent) -> State | None:
    """One row per order."""
    return {**(state or {}), "email": event.data["email"], "customer": event.data["customer"]}


@recompute(
    view="mails", deciders=["order"], key=["order_id", "customer"], columns={"customer": "string", "mail": "sealed"}
)
def mails(events: "DataFrame") -> "DataFrame":
    """One row per order and customer."""
    from pyspark.sql import functions as f

    def at(path: str) -> Any:  # noqa: ANN401 - a column of Spark
        return f.get_json_object("data", path)

    return events.groupBy("decider_id", at("$.customer").alias("customer")).agg(
        f.max_by(at("$.email"), "offset").alias("mail")
    )


FIELDS: list[Field] = [
    (each.decider, each.event, of.path) for each in [declared_event(OrderPlaced)] if each for of in each.personal
]


@m.rollup(of=Orders, key=["customer"])
class ByCustomer:
    """One row per customer."""

    customer = m.row("customer")
    given = m.count("email")


MODELS = [sealed(cast("ReadModel", each), FIELDS) for each in (Orders, OrderLines, contacts, mails)]
MODELS[0] = replace(MODELS[0], rollups=(cast("Rollup", ByCustomer),), feed=True)


def shown(store: EventStore, model: ReadModel) -> list[dict[str, Any]]:
    """Return the rows of a model as a person with keys reads them."""
    with store.connection.cursor(row_factory=dict_row) as cursor:
        return store.open_rows(cursor.execute(f"select * from read_models.{model.name} order by 1".encode()))


def test_a_rebuild_after_a_forgetting_gives_the_same_rows(
    store: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    lab = Lab(store.connection, dsn, spark)
    folder = begun_folder(tmp_path / "keys")
    store.connection.execute("select event_store_platform.begin_key_epoch(1, %s)", (folder.fingerprint,))
    register_events(store, [OrderPlaced])
    writer = EventStore(store.connection, sealer=Sealer(folder))
    for number, (customer, several) in enumerate([("ada", 2), ("bo", 1), ("ada", 0)]):
        items = [Line(note=f"{customer} {n}") for n in range(several)]
        placed = [OrderPlaced(customer=customer, email=f"{customer}@{n}", lines=items) for n in (1, 2, 3)]
        for each in placed:
            writer.append("order", f"o-{number}", each)
            # so increments merge with stored rows
            if number == 0:
                store.sequence_events()
                for model in MODELS:
                    drain(dsn, spark, model)
    store.sequence_events()
    for model in MODELS:
        drain(dsn, spark, model)
    orders, lines, by_fold, by_recompute = ([*shown(writer, model)] for model in MODELS)
    assert orders[0] == {
        "order_id": "o-0", "email": "ada@3", "earliest": "ada@1", "emails": ["ada@3", "ada@2"], "given": 3,
        "customer": "ada",
    }  # fmt: skip
    assert lines == [{"order_id": "o-0", "note": "ada 1"}, {"order_id": "o-1", "note": "bo 0"}]
    assert by_fold[1] == {"order_id": "o-1", "email": "bo@3", "customer": "bo"}
    assert by_recompute[2] == {"order_id": "o-2", "customer": "ada", "mail": "ada@3"}
    assert rows(store.connection, "select * from read_models.by_customer order by 1") == [("ada", 2), ("bo", 1)]
    before = {model.name: rows_of(store.connection, model) for model in MODELS}
    store.connection.execute(
        "select * from event_store_platform.forget_subject(%s, 'request 1')", (folder.mac("customer:ada"),)
    )
    store.sequence_events()
    for model in MODELS:
        assert lab.rebuild(model, *range(16)).rows == 0
    assert {model.name: rows_of(store.connection, model) for model in MODELS} == before
    reader = EventStore(store.connection, sealer=Sealer(folder))
    orders, lines, by_fold, by_recompute = ([*shown(reader, model)] for model in MODELS)
    gone = [orders[0]["email"], *orders[0]["emails"], lines[0]["note"], by_fold[0]["email"], by_recompute[2]["mail"]]
    assert [type(each) for each in gone] == [Forgotten] * len(gone)
    assert (orders[1]["email"], lines[1]["note"], by_fold[1]["email"]) == ("bo@3", "bo 0", "bo@3")
    # its feed has envelopes, which open as the rows do
    told = store.latest_events(1000, "model:orders")
    assert (len(told) > 2, [each for each in told if "@" in each.data_json.replace('"@', "")]) == (True, [])
    after = [[*reader.read("model:orders", order)][-1].data["after"]["email"] for order in ("o-0", "o-1")]
    assert (type(after[0]), after[1]) == (Forgotten, "bo@3")


def people(options: dict[str, Any] | None = None, **columns: object) -> ReadModel:
    declared = type("People", (), {"__doc__": "One row per order.", "k": m.stream_id(), **columns})
    return m.read_model(**{"view": "people", "deciders": ["order"], "key": ["k"]} | (options or {}))(declared)


EMAIL = m.last("data.email")
PAIR = m.field({"order": "data.email", "fee": "data.order"})
REFUSED = [
    *((people(x=one), f"'x' is {one.kind} of data.email, but data.email of event order_placed is personal: a sealed")
      for one in (m.sum_("data.email"), m.avg("data.email"), m.min_("data.email", type="string"), m.any_("data.email"),
                  m.max_("data.email", type="date"), m.set_union("data.email"), m.all_("data.email"),
                  m.sessions("data.email", gap="1 min"), m.last("data.email", type="bigint"))),
    *((people(k=key, x=m.count()), "'k' reads data.email, but")
      for key in (m.field("data.email"), m.carried("data.email"), m.bucket("data.email", every="1 day"))),
    (people({"deciders": ["fee", "order"]}, k=PAIR, x=m.count()), "'k' reads data.email, but"),
    *((people(x=one), "'x' has by= or where= of data.email, but")
      for one in (m.count(where={"data.email": "a"}), m.last("data.email", where={"data.email": None}),
                  m.first("event", by="data.email", by_type="string"), m.top("data.email", 2, type="string"))),
    (people(x=m.last("data.person.city")), "'x' is last of data.person.city, but data.person of event"),
    (people(x=m.count("data.person.city")), "'x' is count of data.person.city, but data.person of event"),
    (people(x=m.last("data.remark")), "'x' is last of data.remark, but data.remark.note of event"),
    (people(x=m.last("data")), "'x' is last of data, but data.email of event"),
    (people({"each": "data.lines"}, x=m.set_union("item.note")), "'x' is set_union of item.note, but data.lines.*.note of"),
    (people(x=m.set_union("data.lines.0.note")), "'x' is set_union of data.lines.0.note, but data.lines.*.note of"),
    (people({"each": "data.person"}, x=m.count()), "'each=' reads data.person, but"),
    (people(e=EMAIL, x=m.computed("e == 'a'")), "'x' is made of e, but data.email of event"),
    (people({"indexes": ["e"]}, e=EMAIL), "'e' can have no index: its values are sealed"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "error"), REFUSED)
def test_a_personal_field_is_not_read_as_a_value(model: ReadModel, error: str) -> None:
    with pytest.raises(InvalidReadModel) as refused:
        sealed(model, FIELDS)
    assert str(refused.value).startswith(f"read model people: {error}")
    other = people(
        {"deciders": ["fee", "order"]}, k=m.field({"order": "data.customer", "fee": "data.email"}), x=m.count()
    )
    assert (sealed(model, [("bill", "order_placed", ("email",))]), sealed(other, FIELDS)) == (model, other)


def test_values_from_before_their_field_was_personal_are_texts_of_jsonb(store: PlatformStore) -> None:
    envelope = '{"$sealed": "1.key.0.0"}'
    plain = ["ada@1", "12", '{"$sealed": 5}', envelope + "x", '{"$sealed": "a"b"}']
    query = sql.SQL("select {} from unnest(%s::text[]) v(v)").format(in_envelopes(sql.Identifier("v"), "jsonb"))
    given = [*plain, None, envelope, envelope.replace(" ", "")]
    wanted = [*plain, None, json.loads(envelope), json.loads(envelope)]
    assert [value for (value,) in store.connection.execute(query, (given,))] == wanted
    whole = sql.SQL("select {}").format(in_envelopes(sql.SQL("%s::text[]"), "jsonb[]"))
    ((listed,),) = store.connection.execute(whole, (given,))
    assert listed == wanted
