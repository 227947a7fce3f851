"""A client is a guest on its connection: the caller's own queries stay as they are."""

import json
import pickle
from copy import copy
from dataclasses import FrozenInstanceError, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import psycopg
import pytest
from psycopg.rows import dict_row

from millrace.resources.capture.store import CaptureStore
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.sql_functions import SqlFunctions
from tests.support.factories import Connect, register_orders

FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("store", [EventStore, CaptureStore])
def test_the_callers_own_queries_read_values_as_without_a_client(
    connect: Connect, store: type[EventStore] | type[CaptureStore]
) -> None:
    connection = connect()
    client = store(connection)
    assert client.connection is connection
    for used in (False, True):
        if used:
            EventStore(connection).poll_views()
        for query in ("select 'infinity'::timestamptz", "select '-infinity'::timestamptz"):
            with pytest.raises(psycopg.DataError):
                connection.execute(query.encode()).fetchone()
        assert connection.execute("select '0/10'::pg_lsn").fetchone() == ("0/10",)


def test_the_client_reads_infinite_times_as_the_ends_of_pythons_range(store: EventStore) -> None:
    assert store.register_view("old", "-infinity").start_at == FIRST
    assert store.register_view("never", "infinity").start_at == LAST


def test_the_callers_row_factory_is_no_matter_to_the_client(connect: Connect) -> None:
    connection = connect()
    connection.row_factory = dict_row  # type: ignore[assignment]
    store = register_orders(EventStore(connection))
    assert store.sequence_events() == 0
    assert store.register_view("v").view == "v"
    assert store.ack_events("v", []) == set()
    assert store.partition_info()[0].high_water_mark == 0


@dataclass(frozen=True)
class Counted:
    """A row with a default, a text of JSON and a value that is made of it."""

    number: int
    value_json: str
    exact: bool = True

    @cached_property
    def value(self) -> object:
        return json.loads(self.value_json)


class Numbers(SqlFunctions):
    """Calls that give rows of several shapes."""

    def counted(self, query: str) -> Counted:
        return self._one(Counted, query)


def test_a_row_is_what_the_constructor_of_its_dataclass_makes(connect: Connect) -> None:
    numbers = Numbers(connect())
    one = numbers.counted("""select 1 as number, '{"a": 1}'::jsonb as value""")
    same = Counted(1, '{"a": 1}')
    assert (one, hash(one), repr(one), one.exact, one.value) == (same, hash(same), repr(same), True, {"a": 1})
    assert replace(one, number=2) == Counted(2, '{"a": 1}')
    assert pickle.loads(pickle.dumps(one)) == copy(one) == one
    with pytest.raises(FrozenInstanceError):
        one.number = 2  # type: ignore[misc]
    assert not numbers.counted("select 1 as number, '1'::jsonb as value, false as exact").exact


@pytest.mark.parametrize("columns", ["1 as number", "1 as number, '1'::jsonb as value, 1 as other"])
def test_a_row_with_other_columns_than_its_dataclass_is_refused(connect: Connect, columns: str) -> None:
    with pytest.raises(TypeError, match="are not those of Counted: exact, number, value_json"):
        Numbers(connect()).counted(f"select {columns}")
