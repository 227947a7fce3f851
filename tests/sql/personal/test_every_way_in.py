"""What stands at a personal path: sealed with a key that lives, or empty, by every way to add an event."""

import json
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from millrace.errors import DataRefused, EventIdReused, KeyGone, Malformed, MillraceError
from millrace.event_store.refusals import refusals
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.producers import ProducerStore
from tests.sql.event_store.test_every_way_in import STORES, Event, Way, accepted, append_one, copy, event, insert, stage
from tests.support.customers import SECRET, People, key_of, moved
from tests.support.factories import value

UNKNOWN = f"1.{'k' * 22}.{'n' * 22}.text"


def append_stream(connection: psycopg.Connection, bad: Event) -> object:
    given = json.dumps(
        [{name: bad[name] for name in ("event", "event_id", "command_id")} | {"data": json.loads(bad["data"])}]
    )
    call = "select event_store.append_to_stream(%s, %s::text, %s::jsonb)"
    return connection.execute(call, (bad["decider"], bad["decider_id"], given))


WAYS: list[Way] = [*STORES, append_stream]


def customer(data: Any, **other: object) -> Event:  # noqa: ANN401 - JSON
    whole = {"customer_id": "anna", "country": "DE", "phones": []} | data
    return event(decider="customer", decider_id="anna", event="customer_moved", data=json.dumps(whole), **other)


def sealed(people: People, name: str = "anna") -> dict[str, str]:
    """Return an envelope whose key lives."""
    people.client().append("customer", name, moved(name))
    envelope: dict[str, str] = people.data()[-1]["email"]
    return envelope


def emptied(envelope: dict[str, str]) -> dict[str, str]:
    return {"$sealed": f"1.{key_of(envelope)}.0.0"}


def refused(people: People, cases: Sequence[dict[str, Any]], error: type[MillraceError], why: str) -> None:
    assert accepted(people.store, [(customer(data), why) for data in cases], error, WAYS) == []


@contextmanager
def undone(people: People, event_id: object) -> Any:  # noqa: ANN401 - a context
    """Undo a block, in which the event is stored once."""
    with refusals(), people.store.connection.transaction(force_rollback=True):
        ProducerStore(people.store.connection).register_producer("p")
        yield people.store.connection
        found = value(people.store.connection, "select count(*) from event_store.events where event_id = %s", event_id)
        assert found == 1


def test_plain_values_are_refused(people: People) -> None:
    envelope = sealed(people)
    plain: list[Any] = [SECRET, 7, True, [], {}, {"email": SECRET}, [SECRET], json.dumps(envelope), [envelope]]
    cases: list[dict[str, Any]] = [{"email": each} for each in plain] + [
        {"phones": [envelope, each]} for each in (SECRET, None)
    ]
    refused(people, cases, DataRefused, "not shown, which is personal and not sealed, by /properties/")


def test_what_uses_the_word_otherwise_is_malformed(people: People) -> None:
    envelope = sealed(people)
    wrong: list[dict[str, Any]] = [
        {"email": envelope | {"plain": SECRET}},
        {"email": {"$sealed": SECRET}},
        {"email": {"$sealed": envelope}},
        {"country": {"a": [{"$sealed": 1}]}},
    ]
    refused(people, wrong, Malformed, "$sealed of data is a reserved word")


def test_the_word_is_found_as_a_key_and_with_nothing_else(people: People) -> None:
    key, nonce = "k" * 22, "n" * 22
    good = {"$sealed": f"1.{key}.{nonce}.c-_9"}
    fine = [
        good,
        {"$sealed": f"1.{key}.0.0"},
        "$sealed",
        ["$sealed", ":"],
        {'x"$sealed': 1},
        {"a$sealed": 1},
        {"x": '{"$sealed": 1}'},
    ]
    texts = [
        f"1.{key}.{nonce}",
        f"1.{key}.{nonce}.c.d",
        f"1.{key}.{nonce}.",
        f"1.{key}.{nonce}.c=",
        f"2.{key}.{nonce}.c",
        f"1.{key}.0.1",
    ]
    texts += [f"1.{key}k.{nonce}.c", f"1.{key}.{nonce}n.c", f"1.{key[1:]}.{nonce}.c", f"1.{key}.{nonce}.ü", ""]
    wrong = [
        *({"$sealed": text} for text in texts),
        {"a": 1, **good},
        {**good, "z": 1},
        {"$sealed": good},
        {"$sealed": ["1."]},
    ]
    ask = "select event_store_private.is_unsealed(%s::jsonb)"
    for expected, cases in ((False, fine), (True, wrong)):
        for case in cases:
            data = json.dumps({"x": [{"before": good}, case, {"behind": good}]}, ensure_ascii=False)
            assert value(people.store.connection, ask, data) is expected, data


def test_keys_that_are_unknown_or_dead_are_refused(people: People) -> None:
    envelope = sealed(people)
    people.forget()
    cases: list[dict[str, Any]] = [
        {"email": {"$sealed": UNKNOWN}},
        {"phones": [emptied(envelope), {"$sealed": UNKNOWN}]},
    ]
    cases += [{"email": {"$sealed": f"1.{'k' * 22}.0.0"}}, {"email": envelope}, {"phones": [envelope]}]
    refused(people, cases, KeyGone, "is forgotten, or of another store")


def test_null_living_keys_and_nothing_of_a_dead_one_are_taken(people: People) -> None:
    anna, bert = sealed(people), sealed(people, "bert")
    people.forget()
    for way in WAYS:
        for data in ({"email": None}, {}, {"email": bert, "phones": [emptied(anna), bert]}, {"email": emptied(anna)}):
            new = customer(data) | {"decider_id": "c"}
            with undone(people, new["event_id"]) as connection:
                way(connection, new)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_refusal_quotes_no_value(people: People, postgres: EmbeddedPostgres, way: Way) -> None:
    ProducerStore(people.store.connection).register_producer("p")
    end_of_log = postgres.log.stat().st_size
    for data in (
        {"email": SECRET},
        {"phones": [SECRET]},
        {"email": {"$sealed": SECRET}},
        {"email": SECRET, "country": 7},
    ):
        with pytest.raises(psycopg.Error) as raised, people.store.connection.transaction(force_rollback=True):
            way(people.store.connection, customer(data))
        said = raised.value.diag
        assert SECRET not in f"{said.message_primary} {said.message_detail} {said.message_hint}"
        if way is not copy:
            # COPY has the row in its context; only the owner of the tables may use it
            assert SECRET not in str(said.context)
    logged = postgres.log.read_bytes()[end_of_log:].decode()
    assert logged.count("ERROR") == 4
    assert SECRET not in logged


def test_the_server_logs_no_statement_and_no_row_that_it_refuses(people: People, postgres: EmbeddedPostgres) -> None:
    end_of_log = postgres.log.stat().st_size
    people.store.connection.execute("create temporary table mails (address text, sent boolean not null)")
    with pytest.raises(psycopg.errors.NotNullViolation, match=SECRET):
        people.store.connection.execute(f"insert into mails values ('{SECRET}')".encode())
    logged = postgres.log.read_bytes()[end_of_log:].decode()
    assert ("ERROR" in logged, SECRET in logged) == (True, False)


def test_a_plain_value_is_not_even_staged(people: People) -> None:
    ProducerStore(people.store.connection).register_producer("p")
    for data, error in (({"email": SECRET}, "do not fit"), ({"email": {"$sealed": SECRET}}, "is malformed")):
        with pytest.raises(psycopg.Error, match=error):
            stage(people.store.connection, customer(data))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_event_sent_again_is_stored_once_before_and_after_a_forget(people: People, way: Way) -> None:
    anna, bert = sealed(people), sealed(people, "bert")
    data = {"email": anna, "phones": [bert, anna]}
    first = customer(data) | {"decider_id": "c"}
    append_one(people.store.connection, first)
    nothing = emptied(anna)

    def again(stored_once: bool, **data: Any) -> None:  # noqa: ANN401 - JSON
        sent = customer(data) | {name: first[name] for name in ("event_id", "command_id", "decider_id")}
        if stored_once:
            with undone(people, first["event_id"]) as connection:
                way(connection, sent)
            return
        with pytest.raises(EventIdReused), undone(people, first["event_id"]) as connection:
            way(connection, sent)

    other = anna["$sealed"][:-4] + "AAAA"
    again(True, **data)
    again(False, email={"$sealed": other}, phones=[bert, anna])
    people.forget()
    again(True, **data)
    again(True, email=nothing, phones=[bert, nothing])
    again(False, email=nothing, phones=[bert, nothing], country="FR")
    again(False, email=nothing, phones=[nothing, nothing])
    again(False, email=nothing, phones=[bert])
    again(False, email=None, phones=[bert, nothing])
    people.readmit()
    new = sealed(people)
    assert key_of(new) != key_of(anna)
    again(True, email=new, phones=[bert, new])
    again(True, email=nothing, phones=[bert, new])
    again(False, email=new, phones=[new, new])


def test_a_batch_mixes_events_that_were_sent_before_with_new_ones(people: People) -> None:
    anna, bert = sealed(people), sealed(people, "bert")
    first = customer({"email": anna}) | {"decider_id": "c"}
    append_one(people.store.connection, first)
    people.forget()
    again = first | {"data": customer({"email": emptied(anna)})["data"]}
    new = customer({"email": bert}) | {"decider_id": "d"}
    batch = [
        {key: each[key] for key in ("event", "event_id", "decider", "decider_id", "command_id")}
        | {"data": json.loads(each["data"])}
        for each in (again, new)
    ]
    call = "select array_agg(appended) from event_store.append_events(%s::jsonb)"
    assert value(people.store.connection, call, json.dumps(batch)) == [False, True]
    batch[1] |= {"event_id": str(uuid4()), "data": json.loads(customer({"email": anna})["data"])}
    with pytest.raises(KeyGone, match=key_of(anna)), refusals():
        people.store.connection.execute(call, (json.dumps(batch),))


def test_a_bare_insert_without_a_schema_takes_any_key(people: People) -> None:
    insert(people.store.connection, event(data=json.dumps({"a": {"$sealed": UNKNOWN}})))
