"""Names of a declaration that the store does not know are reported; known names are not."""

from typing import cast

import dagster as dg

from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.checks import names_check
from millrace.read_models.declared.columns import Column
from millrace.read_models.declared.declaration import ReadModel, read_model
from millrace.read_models.declared.words import count, field, stream_id
from millrace.read_models.shown.known_names import unknown_names
from tests.support.elsewhere import postgres_at

KNOWN = ["order"]
KINDS = [
    ("order", "placed", 1), ("order", "placed", 2), ("order", "paid", 1), ("order", "sent", 1), ("invoice", "drawn", 1),
]  # fmt: skip


def model(
    *columns: Column,
    deciders: list[str] | None = KNOWN,
    events: list[str] | None = None,
    deletes: list[str] | None = None,
) -> ReadModel:
    class Orders:
        """One row per order."""

        order_id = stream_id()

    for number, column in enumerate(columns or [count()]):
        setattr(Orders, f"c{number}", column)
    return read_model(view="orders", deciders=deciders, key=["order_id"], events=events, deletes=deletes)(Orders)


TOLD: list[tuple[ReadModel, list[str]]] = [
    (model(), []),
    (model(deciders=["ordr"]), ["decider ordr is not registered; did you mean order?"]),
    (model(deciders=["else"]), ["decider else is not registered; there are invoice, order"]),
    (model(events=["palced"]), ["event palced is not registered; did you mean placed?"]),
    (model(events=["drawn"]), ["event drawn is not registered; there are paid, placed, sent"]),
    (model(count(events=["piad"])), ["event piad is not registered; did you mean paid?"]),
    (model(deletes=["gone"]), ["event gone is not registered; there are paid, placed, sent"]),
]


def test_names_that_are_not_registered_are_told_but_in_a_new_store() -> None:
    for declared, told in TOLD:
        assert unknown_names(declared, KINDS) == told
        assert unknown_names(declared, []) == []


def test_the_check_of_the_model_warns_of_a_key_that_no_schema_names(store: PlatformStore, dsn: str) -> None:
    store.register_decider_event("order", "placed", "")
    store.register_event_schema("order", "placed", {"properties": {"customer": {"type": "string"}}})

    @read_model(view="owners", deciders=["order"], events=["placed", "piad"], key=["owner"])
    class Owners:
        """One row per owner."""

        owner = field("data.owner")
        events = count()

    result = names_check(cast("ReadModel", Owners))(postgres=postgres_at(dsn))
    assert isinstance(result, dg.AssetCheckResult)
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    unknown = str(result.metadata["unknown"])
    assert "event piad is not registered" in unknown
    assert "column owner: property data.owner is in no schema of the events that it is read from" in unknown
