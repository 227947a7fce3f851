"""Given one log of good, odd and hostile values, when models are built in any way, then these rows."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millrace.assets.declarations import declared
from millrace.drain.view_drain import ViewDrain
from millrace.event_store import Event
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.building.catalogue import (
    EXACT,
    HIGH,
    LOW,
    ODD_KEYS,
    REFUSED,
    TAKEN,
    TYPES,
    Catalogue,
    build_catalogue,
)
from tests.support.building.drains import all_events, close
from tests.support.building.oracle import expected_rows
from tests.support.building.read_models import DECIDER, expected_uses
from tests.support.building.shared_drains import TOGETHER
from tests.support.factories import Connect, rows, value
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = declared("millrace.examples.shop").models
EXPECTED: dict[str, Callable[[list[Event]], list[tuple[Any, ...]]]] = {
    **{model.name: partial(expected_rows, model) for model in TOGETHER},
    "uses": expected_uses,
}


@pytest.fixture(scope="module")
def catalogue(
    postgres: EmbeddedPostgres, template: str, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Catalogue]:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"create database catalogue template {template}".encode())
        built = build_catalogue(postgres.dsn("catalogue"), spark, tmp_path_factory.mktemp("archive"))
        built.store.connection.execute("set timezone = 'UTC'")
        yield built
        built.store.connection.close()
        admin.execute("drop database catalogue with (force)")


def test_increments_over_any_split_of_the_log_equal_a_rebuild(catalogue: Catalogue) -> None:
    events = [event for event in all_events(catalogue.store) if event.decider == DECIDER]
    wrong, right = [], set()
    for door, found in catalogue.rows.items():
        for name in EXPECTED.keys() & found.keys():
            if close(found[name].public) == close(EXPECTED[name](events)):
                right.add(name)
            else:
                wrong.append((door, name))
    assert wrong == []
    assert right == {*EXPECTED}


def test_models_of_any_columns_have_one_state_however_it_was_built(catalogue: Catalogue) -> None:
    wrong = []
    for name, wanted in catalogue.rows["rounds"].items():
        others = [found[name].stored for found in catalogue.rows.values() if name in found]
        if not wanted.stored or any(other != wanted.stored for other in others):
            wrong.append(name)
    assert wrong == []


@pytest.fixture(scope="module")
def values(catalogue: Catalogue) -> dict[str, dict[str, Any]]:
    """Return the columns of the odd values by stream; numbers as texts, digit by digit."""
    found = rows(catalogue.store.connection, "select value_id, to_jsonb(t)::text from read_models.values_of_types t")
    return {stream: json.loads(row, parse_int=str, parse_float=str) for stream, row in found}


def test_a_value_that_its_type_holds_is_stored_as_it_is(values: dict[str, dict[str, Any]]) -> None:
    wrong = []
    for n, (name, said, text) in enumerate(TAKEN):
        stored = values[f"taken-{n:03}"]
        for kind in ("first", "last") if name == "boolean" else ("first", "last", "min", "max"):
            if normal(name, stored[f"{kind}_{name}"]) != normal(name, text):
                wrong.append((kind, name, said, stored[f"{kind}_{name}"]))
    assert wrong == []


def normal(name: str, said: str | bool) -> object:
    """Normalize a value that has several notations."""
    text = str(said).lower() if name == "boolean" else str(said)
    if name == "timestamp":
        text = text.replace(" ", "T", 1).replace("+00:00", "+00")
    return float(text) if name == "double" else text


def test_extremes_first_and_last_values_of_every_type_merge_in_postgres(catalogue: Catalogue) -> None:
    """The low values came after the high ones were stored."""
    wrong = [
        (kind, name)
        for name in TYPES
        for kind, wanted in (("min", LOW), ("max", HIGH), ("first", HIGH), ("last", LOW))
        if (name != "boolean" or kind in {"first", "last"})
        and not value(
            catalogue.store.connection,
            f"select {kind}_{name} = %s from read_models.values_of_types where value_id = 'extremes'",
            wanted[name],
        )
    ]
    assert wrong == []


def test_a_column_looks_at_its_events_and_its_very_field_alone(values: dict[str, dict[str, Any]]) -> None:
    # the text in n would fail a sum
    looked_at = values["events"]
    assert (looked_at["made"], looked_at["used"], looked_at["texts"]) == ("1", "2.50", "3")
    keys = values["keys"]
    assert [keys[f"odd_key_{n}"] for n in range(len(ODD_KEYS))] == [f"value of {key}" for key in ODD_KEYS]
    assert keys["long_key"] == "found"


def test_sums_are_exact_to_the_last_digit(values: dict[str, dict[str, Any]]) -> None:
    sums = values["sums"]
    assert len(EXACT) == 2
    assert sums["sum_tiny"] == "0.30000000000000000000000003"
    assert (sums["sum_money"], sums["sum_bigint"], float(sums["mean_money"])) == ("0.20", str(2**54 + 2), 0.1)


def test_a_value_that_its_type_does_not_hold_holds_its_stream_up(catalogue: Catalogue) -> None:
    connection = catalogue.store.connection
    said = dict(rows(connection, "select decider_id, last_error from event_store.stream_locks where view = 'refusing'"))
    wrong = [
        (name, refused, said.get(f"refused-{n:03}"))
        for n, (name, refused) in enumerate(REFUSED)
        if f"data.{name} is '" not in said.get(f"refused-{n:03}", "")
        or f"which is not exactly a {TYPES[name]}" not in said[f"refused-{n:03}"]
    ]
    assert wrong == []
    assert "data.money is '12.345', which is not exactly a decimal(18,2)" in said[f"refused-{9:03}"]
    assert len(said) == len(REFUSED)
    # the streams' earlier events, and other streams
    built = rows(connection, "select * from read_models.refusing")
    assert len(built) == len(REFUSED) + 5
    assert {tuple(each for each in row[1:] if each is not None) for row in built} == {("good",)}


def test_a_model_without_events_has_columns_and_no_rows(dsn: str, spark: "SparkSession", connect: Connect) -> None:
    for model in SHOP.values():
        with ViewDrain(dsn, model, lambda: spark, "test") as consumer:
            assert consumer.drain(budget_s=patience(), idle_s=0).events == 0
        found = connect().execute(f"select * from read_models.{model.name}".encode())
        assert [column.name for column in found.description or []] == list(model.public_columns())
        assert found.fetchall() == []
