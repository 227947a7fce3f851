"""Refusals for every way to add an event: by a function, in a message, by a bare INSERT or COPY."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from millrace.capture.store import CaptureStore
from millrace.errors import DeciderCaptured, Malformed, MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from millrace.producers import ProducerStore
from tests.support.capturing.captures import Source, T, append_foreign, events, inserted, table
from tests.support.factories import append, new_event, refusal, register_orders, rows, value
from tests.support.sql_calls import append_events, get_events

Event = dict[str, Any]
Way = Callable[[psycopg.Connection, Event], object]

COLUMNS: LiteralString = "event, event_id, decider, decider_id, data, command_id, previous_id, metadata"
MIB = 2**20
UUID_TEXT = "f156a3c4-9bd8-11ed-a8fc-0242ac120002"


def event(**other: object) -> Event:
    """Make an event with data and metadata as JSON text."""
    ids = {"event_id": str(uuid4()), "command_id": str(uuid4()), "previous_id": None}
    return {"event": "placed", "decider": "order", "decider_id": "o-1", "data": "{}", "metadata": None} | ids | other


def batch(bad: Event) -> str:
    """Make a JSON batch with a good event before this one."""

    def member(made: Event) -> str:
        texts = {name: made.get(name) for name in ("data", "metadata")}
        # a stated null is a claim about the stream
        plain = {k: v for k, v in made.items() if k not in texts and (k != "previous_id" or v is not None)}
        return json.dumps(plain)[:-1] + "".join(f', "{k}": {v or "null"}' for k, v in texts.items()) + "}"

    return f"[{member(event(decider_id='good'))}, {member(bad)}]"


APPEND: LiteralString = """
    select event_store.append_event(%(event)s, %(event_id)s, %(decider)s, %(decider_id)s::text, given.data,
      %(command_id)s, %(previous_id)s, v_metadata => %(metadata)s)
    from """


def append_one(connection: psycopg.Connection, bad: Event) -> object:
    return connection.execute(APPEND + "(select %(data)s::jsonb as data) given", bad)


def append_some(connection: psycopg.Connection, bad: Event) -> object:
    return connection.execute("select event_store.append_events(%s)", (batch(bad),))


def insert(connection: psycopg.Connection, bad: Event) -> object:
    return connection.execute(
        f"insert into event_store.events ({COLUMNS}) values"
        " (%(event)s, %(event_id)s, %(decider)s, %(decider_id)s, %(data)s, %(command_id)s, %(previous_id)s, %(metadata)s)",
        bad,
    )


def copy(connection: psycopg.Connection, bad: Event) -> None:
    with connection.cursor().copy(f"copy event_store.events ({COLUMNS}) from stdin") as lines:
        for each in (event(decider_id="good"), bad):
            lines.write_row([each[name] for name in COLUMNS.split(", ")])


def append_from_a_table(connection: psycopg.Connection, bad: Event) -> object:
    """Append an event that is stored compressed in a table, where it looks small."""
    connection.execute("create temporary table mine (data jsonb)")
    connection.execute("insert into mine values (%s)", (bad["data"],))
    return connection.execute(APPEND + "mine as given", bad)


def ingest(connection: psycopg.Connection, bad: Event) -> object:
    return connection.execute("select event_store.ingest_events('p', 0, 1, 0, %s)", (batch(bad),))


def stage(connection: psycopg.Connection, bad: Event) -> UUID | None:
    transaction = ProducerStore(connection).begin_transaction("p", 0, 1, 0).transaction_id
    connection.execute("select event_store.add_events(%s, %s)", (transaction, batch(bad)))
    return transaction


def stage_and_commit(connection: psycopg.Connection, bad: Event) -> object:
    return connection.execute("select event_store.commit_transaction(%s)", (stage(connection, bad),))


STORES: list[Way] = [append_one, append_some, insert, copy, append_from_a_table, ingest, stage_and_commit]
# events that a limit or an owner refuses are refused when they are staged
WAYS: list[Way] = [*STORES[:-1], stage]


def accepted(
    store: PlatformStore,
    bad: Iterable[tuple[Event, str]],
    error: type[MillraceError] = Malformed,
    ways: Sequence[Way] = WAYS,
) -> list[tuple[str, str, object]]:
    """Try each event in every way; return those not refused for this reason, and assert that none is stored."""
    ProducerStore(store.connection).register_producer("p")
    stored: LiteralString = "select count(*) from event_store.events"
    before = value(store.connection, stored)
    wrong: list[tuple[str, str, object]] = []
    for made, why in bad:
        for way in ways:
            said: object = "it was stored"
            try:
                with refusals(), store.connection.transaction(force_rollback=True):
                    way(store.connection, made)
            except error as refused:
                if why in str(refused.detail) and (refused.hint or not why):
                    continue
                said = refused
            wrong.append((way.__name__, str(made)[:200], said))
    assert value(store.connection, stored) == before
    return wrong


def nested(levels: int) -> str:
    """Make data with this many nested values, the innermost one included."""
    return '{"a": ' * (levels - 1) + "1" + "}" * (levels - 1)


TOO_MUCH = {
    '{"a": 1e900}': "901 digits",
    '{"a": 1e-900}': "901 digits",
    f'{{"a": {"7" * 901}}}': "901 digits",
    f'{{"a": [0.{"7" * 901}]}}': "902 digits",
    f'{{"a": 1.{"0" * 900}}}': "901 digits",
    '{"a": 1e131071}': "131072 digits",
    f'{{"a": [{"1, " * 5000}1e900], "b": "ü{"7" * 3000}"}}': "901 digits",
    nested(201): "200 levels",
    "[" * 5000 + "]" * 5000: "200 levels",
    f'{{"a": [{"1, " * 5000}1], "b": {nested(200)}}}': "200 levels",
    f'{{"a": "{"x" * MIB}"}}': "1048576 are allowed",
    f'{{"a": "{"?" * (MIB // 6)}"}}'.replace("?", "\\u0001"): "1048576 are allowed",
    f'{{"a": [{", ".join(["1e800"] * 2000)}]}}': "1048576 are allowed",
    # JSON that Postgres refuses
    '{"text": "a\\u0000b"}': "",
    '{"text": "\\ud800"}': "",
    '{"number": NaN}': "",
}
ENOUGH = [
    f'{{"a": {1.7976931348623157e308}}}',
    f'{{"a": {5e-324}}}',
    '{"a": 1e899}',
    f'{{"a": -{"7" * 450}.{"7" * 450}}}',
    f'{{"a": "{"7" * 5000}", "{"7" * 5000}": 1}}',
    nested(200),
    f'{{"a": [{"1, " * 5000}1], "b": {nested(199)}}}',
    f'{{"a": "{"x" * (MIB - 9)}"}}',
    '{"näme": "🌊", "nested": [null, {"a": 1.5}]}',
    *("null", '"text"', "5", "true", "[]"),
]


def test_data_beyond_a_limit_are_refused(orders: PlatformStore) -> None:
    assert accepted(orders, ((event(data=data), why) for data, why in TOO_MUCH.items())) == []
    # Postgres itself cannot produce the text of these data
    endless = event(data=f'{{"a": [{", ".join(["1e131071"] * 9000)}]}}')
    assert accepted(orders, [(endless, "far too many bytes")], ways=[append_some]) == []


def test_data_within_the_limits_are_stored_and_read(orders: PlatformStore) -> None:
    for number, data in enumerate(ENOUGH):
        append_some(orders.connection, event(decider_id=f"o-{number}", data=data))
        stored = value(orders.connection, "select data::text from event_store.get_events(%s, 'order')", f"o-{number}")
        assert json.loads(stored, parse_int=float) == json.loads(data, parse_int=float)


def test_a_session_lowers_the_limit_and_never_raises_it(orders: PlatformStore) -> None:
    ways = [append_one, append_some]
    orders.connection.execute("set event_store.max_data_bytes = 100000000")
    assert accepted(orders, [(event(data=f'{{"a": "{"x" * MIB}"}}'), "1048576 are allowed")], ways=ways) == []
    small = event(data=f'{{"a": "{"x" * 100}"}}')
    orders.connection.execute("set event_store.max_data_bytes = 100")
    assert accepted(orders, [(small, "event_store.max_data_bytes allows 100")], ways=ways) == []
    orders.connection.execute("reset event_store.max_data_bytes")
    append_one(orders.connection, small)


def test_names_and_descriptions_have_a_length(orders: PlatformStore) -> None:
    inserted_by_hand = "insert into event_store.deciders (decider, event, description) values (%s, %s, %s)"
    assert orders.register_decider_event("d" * 1024, "e" * 1024, "x" * 10_000)
    for decider, name, description in (("d" * 1025, "e", ""), ("d", "e" * 1025, ""), ("d", "e", "x" * 10_001)):
        with pytest.raises(Malformed):
            orders.register_decider_event(decider, name, description)
        with pytest.raises(psycopg.errors.CheckViolation):
            orders.connection.execute(inserted_by_hand, (decider, name, description))


def test_what_a_producer_keeps_has_a_length(orders: PlatformStore) -> None:
    producers = ProducerStore(orders.connection)
    producers.register_producer("p")
    large = "x" * MIB
    transaction = producers.begin_transaction("p", 0, 1, 0).transaction_id
    assert transaction is not None
    for call in (
        lambda: producers.ingest_events("p", 0, 1, 0, result=large),
        lambda: producers.ingest_events("p", 0, 1, 0, state={"a": large}),
        lambda: producers.add_state_change(transaction, "a", large),
        lambda: producers.commit_transaction(transaction, large),
        lambda: producers.abandon_transaction(transaction, "x" * 10_001),
    ):
        refusal(Malformed, call)
    producers.add_state_change(transaction, "a", "x" * (MIB - 2))
    assert producers.commit_transaction(transaction, "x" * (MIB - 2)).outcome == "committed"


def test_a_missing_empty_long_or_upper_case_id_is_refused(orders: PlatformStore) -> None:
    """A UUID names one stream; in upper case it would differ from Postgres' own text of it."""
    bad = [(event(**{name: None}), "is null") for name in ("event", "event_id", "decider", "decider_id", "command_id")]
    bad += [(event(decider_id=""), "decider_id is empty")]
    bad += [(event(decider_id=text), "at most 1024") for text in ("x" * 1025, "ü" * 513)]
    bad += [(event(decider_id=text), "lower case") for text in (UUID_TEXT.upper(), UUID_TEXT.replace("ed", "ED"))]
    bad += [(event(**{name: "a\0b"}), "") for name in ("event", "decider_id")]
    assert accepted(orders, bad, ways=STORES) == []


def test_any_other_text_is_an_id_and_the_text_of_a_uuid_is_its_stream(orders: PlatformStore) -> None:
    upper = UUID_TEXT.upper()
    for decider_id in (
        *("x" * 1024, "ü" * 512, "  ", "日本 🌊 'quo\"ted'", "a/b,c\\d\n%s"),
        *("ORDER-1", upper + "0", upper[:-1], "F" * 36, "É" * 18),
    ):
        stored = append(orders, decider_id)
        assert get_events(orders, decider_id, "order") == [stored]
    first = append(orders, UUID_TEXT)
    append(orders, str(UUID(upper)), first.event_id)
    assert len(get_events(orders, UUID(upper), "order")) == len(get_events(orders, UUID_TEXT, "order")) == 2


METADATA = {
    '"text"': "metadata is of type string, not an object",
    "[1]": "metadata is of type array, not an object",
    '{"correlation_id": 7}': "correlation_id of metadata is no text of 1 to 1024 bytes",
    '{"correlation_id": null}': "correlation_id of metadata is no text of 1 to 1024 bytes",
    '{"user": ""}': "user of metadata is no text of 1 to 1024 bytes",
    f'{{"traceparent": "{"x" * 1025}"}}': "traceparent of metadata is no text of 1 to 1024 bytes",
    **{f'{{"{name}": "x"}}': f"{name} of metadata is a reserved word" for name in ("due_at", "marks", "subject")},
    f'{{"a": {10**901}}}': "metadata has a number of 902 digits; at most 900 are allowed",
    f'{{"a": "{"x" * MIB}"}}': "bytes as text; at most 1048576 are allowed",
}


def test_metadata_that_do_not_fit_are_refused(orders: PlatformStore) -> None:
    assert accepted(orders, ((event(metadata=text), why) for text, why in METADATA.items()), ways=STORES) == []


def test_a_reserved_word_is_refused_unless_it_is_what_it_is_reserved_for(orders: PlatformStore) -> None:
    why = "$sealed of data is a reserved word: alone in its object, 1.<key>.<nonce>.<ciphertext> as base64url"
    key = "k" * 22
    texts = ("1.k.n", f"2.{key}.{key}.c", f"1.{key}..c", f"1.{key}.{key}.c.d", f"1.{key}.0.c", f"1.{key}.{key}.%")
    bad = [f'{{"$sealed": {text}}}' for text in ("null", "7", "{}", *map(json.dumps, texts))]
    bad += [f'{{"$sealed": "1.{key}.{key}.c", "a": 1}}']
    nests = ["%s", '{"a": %s}', '{"a": {"$sealed": "1.' + f'{key}.0.0"}}, "b": [[1, {{"c": %s}}]]}}', '{"$sealed": %s}']
    # so long that the limits are looked at
    nests += ['{"a": "' + "x" * 5000 + '", "b": [%s]}']
    cases = [(event(data=nest.replace("%s", text)), why) for text in bad for nest in nests]
    assert accepted(orders, cases, ways=STORES) == []
    for number, text in enumerate((f"1.{key}.{key}.c", f"1.{key}.0.0")):
        append(orders, f"sealed-{number}", data={"$sealed": text})
        append(orders, f"nested-{number}", data={"a": [{"$sealed": text}], "b": "x" * 1000 * number})
    append(orders, "other", data=["$sealed", {"a": '"$sealed": 1'}])
    for decider in ("privacy", "model:", "model:orders"):
        told = refusal(Malformed, partial(orders.register_decider_event, decider, "erased", ""))
        assert "reserved name" in str(told.detail)
    orders.register_decider_event("privacy:x", "erased", "")


@pytest.fixture
def captured(source: Source) -> CaptureStore:
    """Return a store with orders, a producer and a capture that has the row 7."""
    register_orders(PlatformStore(source.store.connection))
    source.commit(inserted(7))
    source.emit()
    return source.store


def test_nobody_else_appends_to_the_decider_of_a_captured_table(captured: CaptureStore) -> None:
    store = PlatformStore(captured.connection)
    (last,) = get_events(store, "[7]", T)
    junk = [
        event(decider=T, decider_id="[1]", event="updated"),
        event(decider=T, decider_id="[1]", event="nothing"),
        event(decider=T, decider_id="[7]", event="updated", previous_id=str(last.event_id)),
    ]
    why = f"decider {T} is that of public.t of capture c"
    assert accepted(store, ((each, why) for each in junk), DeciderCaptured) == []
    assert rows(captured.connection, "select decider, decider_id from event_store.events") == [(T, "[7]")]


def test_what_was_staged_before_is_refused_at_the_commit(captured: CaptureStore) -> None:
    captured.register_capture("c", "slot_c", "pub_c", [table("u")])
    producer = ProducerStore(captured.connection)
    producer.register_producer("p")
    transaction = producer.begin_transaction("p", 0, 1, 0, 60).transaction_id
    assert transaction is not None
    producer.add_events(transaction, [new_event("[1]", event="updated", decider=T).alone])
    captured.register_capture("c", "slot_c", "pub_c", [table("t")])
    refusal(DeciderCaptured, lambda: producer.commit_transaction(transaction))
    assert events(captured) == [("[7]", "inserted")]
    # any writer may append to a table that is no longer captured
    captured.register_capture("c", "slot_c", "pub_c", [table("u")])
    assert append_events(PlatformStore(captured.connection), [new_event("[1]", event="updated", decider=T)])[0].appended


def test_the_capture_appends_by_all_its_ways(source: Source) -> None:
    append_foreign(source.store, "inserted", 5)
    source.commit(inserted(1))
    assert source.emit().emitted == 1
    source.begin()
    assert source.backfill(2).appended == 1
    source.finish()
    assert events(source.store)[2:] == [("[2]", "backfilled"), ("[1]", "deleted"), ("[5]", "deleted")]
