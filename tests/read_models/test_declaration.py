"""Refused declarations of read models, and changes of their fingerprints."""

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from millrace.assets.declarations import declared
from millrace.errors import InvalidReadModel
from millrace.read_models.declared.columns import Column, KeyColumn
from millrace.read_models.declared.computed import Computed, computed
from millrace.read_models.declared.declaration import ReadModel, lookup, read_model
from millrace.read_models.declared.words import (
    all_,
    any_,
    avg,
    bucket,
    carried,
    count,
    field,
    first,
    last,
    latest,
    max_,
    min_,
    sessions,
    set_union,
    stream_id,
    sum_,
    top,
)
from tests.support.building import read_models as models

LONG: dict[str, Any] = {"order_id": stream_id(), "a" * 41: count()}


def declare(name: str = "Orders", docstring: str | None = "One row per order.", **members: object) -> type:
    return type(name, (), {"__doc__": docstring, **members})


def model(*, key: Any = ("order_id",), **options: Any) -> ReadModel:  # noqa: ANN401 - also what a declaration must refuse
    members: dict[str, Any] = options.pop("members", {"order_id": stream_id(), "lines": count()})
    options.setdefault("view", "orders")
    return read_model(key=key, **options)(declare(**members))


ROW: dict[str, Any] = {
    "order_id": stream_id(), "n": count(), "ratio": last("data.ratio", type="double"), "at": last("created_at"),
    "some": any_("data.some"),
}  # fmt: skip
# invalid expressions over this row, and the error
COMPUTED = {
    "lines + 1": "there is no column 'lines' to compute from; there are order_id, n, ratio, at, some",
    "n + order_id": "'n + order_id' is + of numeric and text; allowed: + - * / of numbers",
    "ratio * 2": "'ratio * 2' is * of double precision and numeric; allowed: ",
    "at + at": "'at + at' is + of timestamptz and timestamptz", "n and some": "'n' is numeric, where boolean is wanted",
    "n == 'x'": "\"'x'\" is text, where numeric is wanted",
    "seconds(at)": "'at' is timestamptz, where interval is wanted",
    "0 < n < 5": "'0 < n < 5' is not allowed; allowed: + - * /", "n ** 2": "'n ** 2' is not allowed",
    "n if some else 0": "is not allowed", "n.real": "is not allowed", "pg_sleep(n)": "'pg_sleep(n)' is not allowed",
    f"{'-' * 900}n": "it is nested too deeply", "seconds(at - at, n)": "is not allowed",
    "seconds(*[at - at])": "is not allowed", "[n]": "is not allowed", "None": "is not allowed",
    "1e400 + n": "'1e400' is not allowed", "2j": "is not allowed", "'\\0' == order_id": "is not allowed",
}  # fmt: skip
# columns of that row that are no key of another model, and the error
LOOKUPS = {
    "c": "on is 'c', which is no column; there are order_id, n, ratio, at, some",
    "customer": "on is 'customer', which is no column",
    "n": "'n' is bigint, and the key 'order_id' of orders is text; declare them with one type",
}
REFUSED: list[tuple[type, dict[str, Any], str]] = [
    (declare(order_id=stream_id(), lines=5), {}, "'lines' is neither a key nor a column: use the functions"),
    (declare(order_id=stream_id(), lines=count(), helper=len), {}, "'helper' is neither a key nor a column"),
    (declare(order_id=stream_id(), Lines=count()), {}, "'Lines' is no name: use a-z, 0-9, _, at most 40"),
    (declare(order_id=stream_id(), _lines=count()), {}, "'_lines' is no name"),
    (declare(**LONG), {}, f"'{'a' * 41}' is no name"),
    (declare("O" * 30, order_id=stream_id(), lines=count()), {}, "is no name"),
    (declare("Declarations", order_id=stream_id(), lines=count()), {}, "'declarations' is the name of a table"),
    (declare("OrdersState", order_id=stream_id(), lines=count()), {}, "'orders_state' is the name of a table"),
    (declare("Orders_at_17", order_id=stream_id(), lines=count()), {}, "'orders_at_17' is the name of a table"),
    (declare("Orders_diff_7", order_id=stream_id(), lines=count()), {}, "'orders_diff_7' is the name of a table"),
    (declare(order_id=stream_id(), lines=count()), {"serve": "later"}, "'later' is no value of serve=: use \"built\""),
    (declare("Orders_staging_x", order_id=stream_id(), lines=count()), {}, "is the name of a table"),
    (declare(order_id=stream_id(), partition=count()), {}, "'partition' is taken: use none of attempt, batch"),
    (declare(order_id=stream_id(), batch=count()), {}, "'batch' is taken"),
    (declare(order_id=stream_id(), attempt=field("data.a"), n=count()), {}, "'attempt' is taken"),
    (declare(order_id=stream_id(), staged_at=count()), {}, "'staged_at' is taken"),
    (declare(order_id=stream_id(), xmin=count()), {}, "'xmin' is taken"),
    (declare(ctid=stream_id(), n=count()), {}, "'ctid' is taken"),
    (declare(order_id=stream_id(), lines=count()), {"key": ["orderid"]}, "'orderid' is named in key= but is no"),
    (declare(order_id=stream_id(), lines=count()), {"key": ["lines"]}, "'lines' is named in key= but is no"),
    (declare(order_id=stream_id(), lines=count()), {"key": "order_id"}, "'order_id' is a text: write a list"),
    (declare(order_id=stream_id(), lines=count()), {"deciders": "order"}, "'order' is a text: write a list"),
    (declare(order_id=stream_id(), lines=count()), {"events": "placed"}, "'placed' is a text: write a list"),
    (declare(order_id=stream_id(), lines=count()), {"deciders": []}, "'deciders' is an empty list"),
    (declare(order_id=stream_id(), lines=count()), {"events": []}, "'events' is an empty list"),
    (declare(order_id=stream_id(), lines=count()), {"deletes": "gone"}, "'gone' is a text: write a list"),
    (declare(order_id=stream_id(), lines=count()), {"deletes": []}, "'deletes' is an empty list: leave it out for rows"),
    (
        declare(order_id=stream_id(), lines=count()),
        {"deletes": ["gone"], "events": ["placed"]},
        "'gone' is named in deletes= but not in events=: name it in both",
    ),
    (declare(order_id=stream_id(), city=field("data.city"), n=count()), {}, "'city' is a key column that key= does"),
    *(
        (
            declare(order_id=field({"order": "decider_id", "fee": "data.order_id"}), n=count()),
            {"deciders": deciders},
            "'order_id' has a source for each of some deciders: name these in deciders=, and no others",
        )
        for deciders in (None, ["order"], ["order", "fee", "permit"])
    ),
    (declare(lines=count()), {"key": []}, "'orders' has no key"),
    (declare(order_id=stream_id()), {}, "'orders' has no columns beside its key"),
    (declare(docstring=None, order_id=stream_id(), lines=count()), {}, "'orders' has no docstring"),
    (declare(docstring="  ", order_id=stream_id(), lines=count()), {}, "'orders' has no docstring"),
    (declare(order_id=stream_id(), a=last("event"), a_offset=count()), {}, "'a_offset' is stored twice; rename"),
    (declare(order_id=stream_id(), a=avg("data.a"), a_sum=count()), {}, "'a_sum' is stored twice"),
    (declare(order_id=stream_id(), a=avg("data.a"), a_sum=computed("a")), {}, "'a_sum' is stored twice"),
    *((declare(**ROW, c=lookup(model(), on=on, column="lines")), {}, f"lookup 'c': {said}") for on, said in LOOKUPS.items()),
    (declare(order_id=stream_id(), a=computed("1")), {}, "'orders' has no columns beside its key"),
    *((declare(**ROW, c=computed(text)), {}, said) for text, said in COMPUTED.items()),
    (
        declare(**ROW, c=computed("d + 1"), d=computed("e"), e=computed("c")),
        {},
        "computed column 'c' from 'd' from 'e' from 'c': a column cannot be computed from itself",
    ),
    (declare(**ROW | {f"c{n}": computed(f"c{n - 1} + c{n - 1}" if n else "n") for n in range(12)}), {}, "it has more than 1000 parts; compute less"),
    *(
        (
            declare(order_id=stream_id(), n=count()),
            {"each": each},
            f"{each!r} is named in each= but is no field data.<key>",
        )
        for each in ("lines", "data.", "data..lines", "data", "event", "item", "", ["data.lines"])
    ),
    (declare(order_id=field("item.sku"), n=count()), {}, "'order_id' reads item: name the array that it is an element"),
    (declare(order_id=stream_id(), n=top("event", 3, by="item", by_type="int")), {}, "'n' reads item: name the array"),
    (declare(order_id=stream_id(), n=count("data.lines")), {"each": "data.lines"}, "'n' reads the array of each=: read its elements, item"),
    (declare(a_count=stream_id(), a=avg("data.a")), {"key": ["a_count"]}, "'a_count' is stored twice"),
]  # fmt: skip


def test_a_declaration_that_cannot_work_is_refused_by_its_member() -> None:
    unsaid = []
    for declaration, options, sentence in REFUSED:
        with pytest.raises(InvalidReadModel, match=r"^read model ") as refused:
            read_model(**{"view": "orders", "key": ["order_id"]} | options)(declaration)
        if sentence not in str(refused.value):
            unsaid.append((sentence, str(refused.value)))
    assert unsaid == []


def test_a_model_is_named_after_its_class_and_described_by_its_docstring() -> None:
    late = read_model(view="v", key=["id"])(
        declare("LateOrders", " One row\n    per late order. ", id=stream_id(), n=count())
    )
    assert (late.name, late.description, late.view) == ("late_orders", "One row per late order.", "v")


SAME: dict[str, Callable[[], ReadModel]] = {
    "the same again": model,
    "another description": lambda: model(members={"docstring": "Orders.", "order_id": stream_id(), "lines": count()}),
    "another pooling delay": lambda: model(pooling_delay_s=9), "another objective": lambda: model(max_lag_s=9),
    "an approval": lambda: model(serve="approved"), "a list as key": lambda: model(key=["order_id"]),
    "a version": lambda: model().at_version(2, "orders"),
}  # fmt: skip
FILTERED: dict[str, Callable[[], ReadModel]] = {
    "in another order": lambda: model(deciders=["b", "a"], events=["y", "x"]),
    "named twice": lambda: model(deciders=["a", "b", "a"], events=["x", "y", "x"]),
}


def looking(on: str, column: str) -> ReadModel:
    return model(members={"order_id": stream_id(), "n": last("data.n"), "c": lookup(model(), on=on, column=column)})


OTHER: dict[str, Callable[[], ReadModel]] = {
    "another view": lambda: model(view="elsewhere"),
    "a decider": lambda: model(deciders=["order"]),
    "an event": lambda: model(events=["placed"]),
    "an array": lambda: model(each="data.lines"),
    "another array": lambda: model(each="data.parts"),
    "an event that deletes": lambda: model(deletes=["gone"]),
    "another key": lambda: model(members={"order_id": field("data.id"), "lines": count()}),
    "a carried key": lambda: model(members={"order_id": carried("data.id"), "lines": count()}),
    "a key of another type": lambda: model(members={"order_id": field("data.id", type="int"), "lines": count()}),
    "a key by day": lambda: model(members={"order_id": bucket("data.id", every="1 day"), "lines": count()}),
    "a key by hour": lambda: model(members={"order_id": bucket("data.id", every="1 hour"), "lines": count()}),
    "a key by day elsewhere": lambda: model(members={"order_id": bucket("data.id", every="1 day", zone="Europe/Berlin"), "lines": count()}),
    "keys of deciders": lambda: model(deciders=["a", "b"], members={"order_id": field({"a": "decider_id", "b": "data.id"}), "lines": count()}),
    "another column": lambda: model(members={"order_id": stream_id(), "rows": count()}),
    "one more column": lambda: model(members={"order_id": stream_id(), "lines": count(), "last": last("event")}),
    "another kind": lambda: model(members={"order_id": stream_id(), "lines": count("data.line")}),
    "a restricted column": lambda: model(members={"order_id": stream_id(), "lines": count(events=["placed"])}),
    **{
        f"a column of some values, {n}": partial(
            lambda where: model(members={"order_id": stream_id(), "lines": count(where=where)}), where
        )
        for n, where in enumerate(
            ({"data.n": 5}, {"data.n": "5"}, {"data.n": 6}, {"data.m": 5}, {"data.n": [5, 6]}, {"data.n": {"<": 5}})
        )
    },
    "visits": lambda: model(members={"order_id": stream_id(), "lines": sessions("data.at", gap="1 min")}),
    "longer visits": lambda: model(members={"order_id": stream_id(), "lines": sessions("data.at", gap="1 hour")}),
    "the newest two": lambda: model(members={"order_id": stream_id(), "lines": latest("data.line", 2)}),
    "the newest three": lambda: model(members={"order_id": stream_id(), "lines": latest("data.line", 3)}),
    "the first three": lambda: model(members={"order_id": stream_id(), "lines": top("data.line", 3, type="int")}),
    "a computed column": lambda: model(members={"order_id": stream_id(), "lines": count(), "c": computed("lines + 1")}),
    "another computation": lambda: model(members={"order_id": stream_id(), "lines": count(), "c": computed("lines + 2")}),
    "the lines of another order": lambda: looking("n", "lines"),
    "the number of another order": lambda: looking("n", "order_id"),
    "the lines of this order": lambda: looking("order_id", "lines"),
    "another type": lambda: model(members={"order_id": stream_id(), "lines": sum_("data.n")}),
    "a wider type": lambda: model(members={"order_id": stream_id(), "lines": sum_("data.n", type="decimal(9,2)")}),
    "a still wider type": lambda: model(members={"order_id": stream_id(), "lines": sum_("data.n", type="decimal(9,3)")}),
}  # fmt: skip


def test_the_fingerprint_stays_when_the_rows_would_be_the_same() -> None:
    assert [why for why, same in SAME.items() if same().fingerprint != model().fingerprint] == []
    filtered = model(deciders=["a", "b"], events=["x", "y"])
    assert [why for why, same in FILTERED.items() if same().fingerprint != filtered.fingerprint] == []


def test_the_events_and_the_conditions_of_a_column_are_sets() -> None:
    for one, other in (
        (count(events=["a", "b"]), count(events=["b", "a", "b"])),
        (
            count(where={"data.n": [5, 7.50], "data.m": None}),
            count(where={"data.m": {"==": None}, "data.n": (Decimal("7.50"), 5, 5.0)}),
        ),
    ):
        first, second = (model(members={"order_id": stream_id(), "lines": lines}) for lines in (one, other))
        assert first.fingerprint == second.fingerprint


def test_the_fingerprint_changes_with_whatever_changes_the_rows() -> None:
    prints = [model().fingerprint, *(other().fingerprint for other in OTHER.values())]
    assert len(set(prints)) == len(prints)


# the fingerprints since these models were first declared or last changed
FINGERPRINTS = {
    "crm_customer_history": "1283f0a625329288a66a389f72be33eeb0354ec638c001e66e86162e615d35a4",
    "crm_customers": "7c6a3d3818e70b6fc81e041e45597b78cec8042a680606620ca82cc519a67859",
    "crossing": "885faacbd7a3c162a96389f0b4d0ffee6e6b134ea4b96798d5b096cadd0e2273",
    "customers": "cf6f9649550996f007ec41c0c0d48c97a897715c57aece0256d9cffc0c21e9c2",
    "everything": "721cda2b2c1936f0312d3b5d7a32cd5ee4378cd9cedb0f6f8b0758cdc6d2d148",
    "going": "d73762e46a250eaadbac63f2005355757ca34a518c2caa678439fd54e9e63b02",
    "going_across": "e859d5a0d71f8df3d4a12d91015623abdc3033eb079a28fc091d6d170b07079e",
    "machines": "980732f8045ecf5b65a8895c51ca6e598ecd32de1105e8295d66cd6acff36a55",
    "orders": "55b2fe0d24b52fea927e3c9e2d19f12d7abe58d472334f3918d0080ccae19824",
    "shipments": "b31793cb58809332471808e8dd7799ff1cbafe35eb1ffda5508b820985907d24",
    "uses": "f67073bc7cc0a5000b7d0f3aa81123f96091f8bea20358963e6129d0a865c355",
}
MODELS = dict(declared("millrace.examples.shop", ["read_models"]).models) | {
    model.name: model for model in vars(models).values() if isinstance(model, ReadModel)
}


def test_the_fingerprint_of_a_declaration_that_did_not_change_is_the_same() -> None:
    """If one changes by itself, every model is rebuilt."""
    found = {name: MODELS[name].fingerprint.split("+") for name in FINGERPRINTS}
    assert {name: declared for name, (declared, _) in found.items()} == FINGERPRINTS
    # the fingerprint of the layout, as no model has upcasts
    assert {layout for _, layout in found.values()} == {sha256(b"2").hexdigest()}
    assert len({*FINGERPRINTS.values()}) == len(FINGERPRINTS)


def test_public_columns_are_the_key_and_the_declared_ones_with_their_types() -> None:
    columns: dict[str, KeyColumn | Column | Computed] = {
        "order_id": stream_id(), "lines": count(), "total": sum_("data.a", type="decimal(18,2)"), "mean": avg("data.a"),
        "least": min_("data.a", type="date"), "most": max_("offset"), "start": first("data.s"), "status": last("event"),
        "some": any_("data.b"), "every": all_("final"), "kinds": set_union("event"),
        "amounts": set_union("data.a", type="decimal(18,2)"), "newest": latest("data.a", 3),
        "visits": sessions("data.at", gap="1 min"), "price": computed("total / lines"), "age": computed("lines > 0"),
    }  # fmt: skip
    assert model(members=columns).public_columns() == {
        "order_id": "text", "lines": "bigint", "total": "numeric", "mean": "numeric", "least": "date", "most": "bigint",
        "start": "text", "status": "text", "some": "boolean", "every": "boolean", "kinds": "text[]",
        "amounts": "numeric(18,2)[]", "newest": "text[]", "visits": "tstzmultirange", "price": "numeric",
        "age": "boolean",
    }  # fmt: skip
