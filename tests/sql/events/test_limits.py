"""What one event may hold: limits on the text of its data, its depth and its digits, which no session raises."""

import json
from collections.abc import Callable
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest

from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.refusals import refusals
from millrace.resources.producers import ProducerStore
from tests.support.factories import refusal, rows, value

Way = Callable[[EventStore, str], None]

EMPTY: LiteralString = "select count(*) from event_store.events"
MIB = 2**20


def nested(levels: int) -> str:
    """Make data in which so many values lie within each other, the innermost one included."""
    return '{"a": ' * (levels - 1) + "1" + "}" * (levels - 1)


TOO_MUCH = {
    "digits of a great number": ('{"a": 1e900}', "901 digits"),
    "digits of a small number": ('{"a": 1e-900}', "901 digits"),
    "digits that are written out": (f'{{"a": {"7" * 901}}}', "901 digits"),
    "digits after the point": (f'{{"a": [0.{"7" * 901}]}}', "902 digits"),
    "zeros that add nothing": (f'{{"a": 1.{"0" * 900}}}', "901 digits"),
    "the greatest number": ('{"a": 1e131071}', "131072 digits"),
    "a long number among much else": (f'{{"a": [{"1, " * 5000}1e900], "b": "ü{"7" * 3000}"}}', "901 digits"),
    "depth": (nested(201), "200 levels"),
    "depth of arrays": ("[" * 5000 + "]" * 5000, "200 levels"),
    "depth among much else": (f'{{"a": [{"1, " * 5000}1], "b": {nested(200)}}}', "200 levels"),
    "text": (f'{{"a": "{"x" * MIB}"}}', "1048576 are allowed"),
    "text of escapes": (f'{{"a": "{"?" * (MIB // 6)}"}}'.replace("?", "\\u0001"), "1048576 are allowed"),
    "text of digits": (f'{{"a": [{", ".join(["1e800"] * 2000)}]}}', "1048576 are allowed"),
}
ENOUGH = {
    "a double that is great": f'{{"a": {1.7976931348623157e308}}}',
    "a double that is small": f'{{"a": {5e-324}}}',
    "900 digits": '{"a": 1e899}',
    "900 digits that are written out": f'{{"a": -{"7" * 450}.{"7" * 450}}}',
    "digits in texts": f'{{"a": "{"7" * 5000}", "{"7" * 5000}": 1}}',
    "200 levels": nested(200),
    "200 levels among much else": f'{{"a": [{"1, " * 5000}1], "b": {nested(199)}}}',
    "a mebibyte": f'{{"a": "{"x" * (MIB - 9)}"}}',
}


def message(data: str) -> str:
    """Make a batch of one event in JSON."""
    return (
        f'[{{"decider": "order", "decider_id": "o-1", "event": "placed", "event_id": "{uuid4()}",'
        f' "command_id": "{uuid4()}", "data": {data}}}]'
    )


def append_one(store: EventStore, data: str) -> None:
    with refusals():
        store.connection.execute(
            "select event_store.append_event('placed', gen_random_uuid(), 'order', 'o-1'::text, %s, gen_random_uuid(), null)",
            (data,),
        )


def append_some(store: EventStore, data: str) -> None:
    with refusals():
        store.connection.execute("select event_store.append_events(%s)", (message(data),))


def insert(store: EventStore, data: str) -> None:
    with refusals():
        store.connection.execute(
            "insert into event_store.events (event, event_id, decider, decider_id, data, command_id)"
            " values ('placed', gen_random_uuid(), 'order', 'o-1', %s, gen_random_uuid())",
            (data,),
        )


def append_from_a_table(store: EventStore, data: str) -> None:
    """Append what lies compressed in a table, where it looks small."""
    store.connection.execute("create temporary table mine (data jsonb)")
    store.connection.execute("insert into mine values (%s)", (data,))
    with refusals():
        store.connection.execute(
            "select event_store.append_event('placed', gen_random_uuid(), 'order', 'o-1'::text, data, gen_random_uuid(), null)"
            " from mine"
        )


def ingest(store: EventStore, data: str) -> None:
    ProducerStore(store.connection).register_producer("p")
    with refusals():
        store.connection.execute("select event_store.ingest_events('p', 0, 1, 0, %s)", (message(data),))


def stage(store: EventStore, data: str) -> None:
    """Stage it; whether the limits are kept is known at once."""
    producers = ProducerStore(store.connection)
    producers.register_producer("p")
    transaction = producers.begin_transaction("p", 0, 1, 0).transaction_id
    with refusals():
        store.connection.execute("select event_store.add_events(%s, %s)", (transaction, message(data)))


WAYS: list[Way] = [append_one, append_some, insert, append_from_a_table, ingest, stage]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", TOO_MUCH)
def test_data_beyond_a_limit_are_refused_on_every_way(orders: EventStore, way: Way, case: str) -> None:
    data, why = TOO_MUCH[case]
    refused = refusal(Malformed, lambda: way(orders, data))
    assert why in str(refused.detail)
    assert value(orders.connection, EMPTY) == 0


def test_data_whose_text_postgres_itself_cannot_make_are_refused(orders: EventStore) -> None:
    endless = f'{{"a": [{", ".join(["1e131071"] * 9000)}]}}'
    assert "far too many bytes" in str(refusal(Malformed, lambda: append_some(orders, endless)).detail)


@pytest.mark.parametrize("case", ENOUGH)
def test_data_within_the_limits_are_stored_and_read(orders: EventStore, case: str) -> None:
    append_some(orders, ENOUGH[case])
    ((stored,),) = rows(orders.connection, "select data::text from event_store.get_events('o-1'::text, 'order')")
    assert json.loads(stored, parse_int=float) == json.loads(ENOUGH[case], parse_int=float)


@pytest.mark.parametrize("way", [append_one, append_some])
def test_a_session_lowers_the_limit_and_never_raises_it(orders: EventStore, way: Way) -> None:
    orders.connection.execute("set event_store.max_data_bytes = 100000000")
    with pytest.raises(Malformed):
        way(orders, f'{{"a": "{"x" * MIB}"}}')
    orders.connection.execute("set event_store.max_data_bytes = 100")
    with pytest.raises(Malformed):
        way(orders, f'{{"a": "{"x" * 100}"}}')
    orders.connection.execute("reset event_store.max_data_bytes")
    way(orders, f'{{"a": "{"x" * 100}"}}')


def test_names_and_descriptions_have_a_length(orders: EventStore) -> None:
    assert orders.register_decider_event("d" * 1024, "e" * 1024, "x" * 10_000)
    for decider, event, description in (
        ("d" * 1025, "e", ""),
        ("d", "e" * 1025, ""),
        ("d", "e", "x" * 10_001),
    ):
        with pytest.raises(Malformed):
            orders.register_decider_event(decider, event, description)
        with pytest.raises(psycopg.errors.CheckViolation):
            orders.connection.execute(
                "insert into event_store.deciders (decider, event, description) values (%s, %s, %s)",
                (decider, event, description),
            )


def test_what_a_producer_keeps_has_a_length(orders: EventStore) -> None:
    producers = ProducerStore(orders.connection)
    producers.register_producer("p")
    large = "x" * MIB
    with pytest.raises(Malformed):
        producers.ingest_events("p", 0, 1, 0, result=large)
    with pytest.raises(Malformed):
        producers.ingest_events("p", 0, 1, 0, state={"a": large})
    transaction = producers.begin_transaction("p", 0, 1, 0).transaction_id
    assert transaction is not None
    with pytest.raises(Malformed):
        producers.add_state_change(transaction, "a", large)
    with pytest.raises(Malformed):
        producers.commit_transaction(transaction, large)
    with pytest.raises(Malformed):
        producers.abandon_transaction(transaction, "x" * 10_001)
    producers.add_state_change(transaction, "a", "x" * (MIB - 2))
    assert producers.commit_transaction(transaction, "x" * (MIB - 2)).outcome == "committed"
