"""Personal values in read models: stored as they came, so a rebuild after a forgetting gives the same rows."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from psycopg import sql
from psycopg.rows import dict_row
from pydantic import BaseModel

from millrace import count, first, fold, last, latest, read_model, stream_id
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
from millrace.read_models.declared.sealed import Field, sealed
from millrace.rows import FoldEvent, State
from tests.support.building.drains import drain, rows_of
from tests.support.building.lab import Lab

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Line(BaseModel):
    """A line of an order."""

    sku: str
    note: Annotated[str, Personal(of="customer", kind="customer")]


@event(decider="order")
class OrderPlaced(BaseModel):
    """A customer placed an order."""

    customer: str
    email: Annotated[str, Personal(of="customer", kind="customer")]
    lines: list[Line] = []


@read_model(view="orders", deciders=["order"], key=["order_id"])
class Orders:
    """One row per order."""

    order_id = stream_id()
    email = last("data.email")
    earliest = first("data.email", by="data.customer", by_type="string")
    emails = latest("data.email", 2)
    given = count("data.email")
    customer = last("data.customer")


@read_model(view="order_lines", deciders=["order"], key=["order_id"], each="data.lines")
class OrderLines:
    """One row per order."""

    order_id = stream_id()
    note = last("item.note")


@fold(view="contacts", deciders=["order"], key="order_id", columns={"email": "sealed", "customer": "sealed"})
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
    (each.decider, each.event, field.path) for each in [declared_event(OrderPlaced)] if each for field in each.personal
]
MODELS = [sealed(cast("ReadModel", each), FIELDS) for each in (Orders, OrderLines, contacts, mails)]


def shown(store: EventStore, model: ReadModel) -> list[dict[str, Any]]:
    """Return the rows of a model as a person with keys reads them."""
    with store.connection.cursor(row_factory=dict_row) as cursor:
        return store.open_rows(cursor.execute(f"select * from read_models.{model.name} order by 1".encode()))


def test_a_rebuild_after_a_forgetting_gives_the_same_rows(
    store: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    lab = Lab(store.connection, dsn, spark)
    folder = begun_folder(tmp_path / "keys")
    store.connection.execute("select event_store.begin_key_epoch(1, %s)", (folder.fingerprint,))
    register_events(store, [OrderPlaced])
    writer = EventStore(store.connection, sealer=Sealer(folder))
    for number, (customer, several) in enumerate([("ada", 2), ("bo", 1), ("ada", 0)]):
        items = [Line(sku=f"s-{n}", note=f"{customer} {n}") for n in range(several)]
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
    before = {model.name: rows_of(store.connection, model) for model in MODELS}
    store.connection.execute("select * from event_store.forget_subject(%s, 'request 1')", (folder.mac("customer:ada"),))
    store.sequence_events()
    for model in MODELS:
        assert lab.rebuild(model, *range(16)).rows == 0
    assert {model.name: rows_of(store.connection, model) for model in MODELS} == before
    reader = EventStore(store.connection, sealer=Sealer(folder))
    orders, lines, by_fold, by_recompute = ([*shown(reader, model)] for model in MODELS)
    gone = [orders[0]["email"], *orders[0]["emails"], lines[0]["note"], by_fold[0]["email"], by_recompute[2]["mail"]]
    assert [type(each) for each in gone] == [Forgotten] * len(gone)
    assert (orders[1]["email"], lines[1]["note"], by_fold[1]["email"]) == ("bo@3", "bo 0", "bo@3")


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
