"""A client is a guest on its connection: the caller's own queries stay as they are."""

from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.rows import dict_row

from millrace.resources.capture.store import CaptureStore
from millrace.resources.event_store import EventStore
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
