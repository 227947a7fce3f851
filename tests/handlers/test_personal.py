"""Personal values that are opened for handlers and for pushes, and what is kept of errors that may quote them."""

import asyncio
import gc
import json
import logging
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pydantic import BaseModel

from millrace.errors import InvalidSetting, Malformed, TryLater
from millrace.event_store import Delivery, Views
from millrace.event_store.platform import PlatformStore
from millrace.handlers import push
from millrace.personal import Forgotten, Sealed
from tests.handlers.test_consume import handled_by
from tests.support.customers import BERT, SECRET, People, key_of, moved, people
from tests.support.factories import append_to, everything, rows, value
from tests.support.logins import logins
from tests.support.patience import wait_until
from tests.support.views.consuming import Seen, consuming, wait_consumed
from tests.support.views.receiver import Receiver, deliver, receiver

__all__ = ["people", "receiver"]


class Letter(BaseModel):
    email: int


def failing(event: Delivery, connection: psycopg.Connection) -> None:
    """Quote the value, each stream in its way."""
    match event.decider_id:
        case "chained":
            try:
                connection.execute("select %s::int", (event.data["email"],))
            except psycopg.Error as error:
                raise RuntimeError(SECRET) from error
        case "exits":
            raise SystemExit(SECRET)
        case "later":
            raise TryLater(SECRET, after_s=600)
        case "never":
            raise TryLater(SECRET, after_s=-1)
        case "lost":
            raise psycopg.errors.SerializationFailure(SECRET)
        case "pydantic":
            event.as_(Letter)
        case "sql":
            connection.execute("select %s::int", (event.data["email"],))
        case _:
            raise ValueError(f"{event.data} is no more")


def errors(people: People, view: str) -> dict[str, str]:
    query = "select decider_id, last_error from event_store.stream_locks where view = %s and last_error is not null"
    return dict(rows(people.store.connection, query, view))


def test_a_handler_gets_values_and_what_it_may_not_open_as_it_is(people: People, dsn: str) -> None:
    people.client().append("customer", "a", moved(), moved("bert"))
    people.forget(BERT)
    with logins(people.store.connection) as login:
        for roles, kinds in (
            (["event_store_consumer", "event_store_personal"], [str, Forgotten]),
            (["event_store_consumer"], [Sealed, Sealed]),
        ):
            seen, view = Seen(), f"v{len(roles)}"
            user, handler = login(*roles).info.user, handled_by(seen.add, view=view, deciders=["customer"])
            with consuming(make_conninfo(dsn, user=user), handler, sealer=people.sealer()):
                wait_consumed(people.store, view)
            assert [type(event.data["email"]) for event in seen.events] == kinds
            assert SECRET not in str(seen.events)
            assert (seen.events[0].data["email"] == SECRET) is (kinds[0] is str)


def test_of_errors_that_may_quote_a_value_no_text_is_kept(
    people: People, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ways = ("chained", "exits", "later", "lost", "never", "pydantic", "sql")
    for way in ways:
        people.client().append("customer", way, moved())
    both = [handled_by(failing, view="v"), handled_by(failing, view="w", deciders=["order"])]
    with consuming(dsn, *both, sealer=people.sealer()):
        people.store.sequence_events()
        wait_until(lambda: len(errors(people, "v")) == len(ways), "each has failed")
        # a value that the handler got earlier may be in the text, too; one that it never got is not
        append_to(people.store, "o-1")
        people.store.sequence_events()
        wait_until(lambda: "o-1" in errors(people, "v") and "o-1" in errors(people, "w"), "the order, too")
    first = failing.__code__.co_firstlineno
    told = {way: text.split(" (") for way, text in errors(people, "v").items()}
    assert {way: text for way, (text, _) in told.items()} == {
        "chained": "RuntimeError 22P02", "exits": "SystemExit", "later": "TryLater", "lost": "SerializationFailure 40001",
        "never": "ValueError", "pydantic": "ValidationError", "sql": "InvalidTextRepresentation 22P02", "o-1": "ValueError",
    }  # fmt: skip
    assert told["exits"][1] == f"{__name__}.failing, line {first + 9})"
    assert errors(people, "w")["o-1"].startswith("ValueError: {'n': 1} is no more")
    assert SECRET not in caplog.text
    assert SECRET not in str(everything(people.store))


def test_without_the_right_errors_keep_their_text(people: People, dsn: str) -> None:
    people.client().append("customer", "a", moved())
    with logins(people.store.connection) as login:
        user = login("event_store_consumer").info.user
        with consuming(make_conninfo(dsn, user=user), handled_by(failing), sealer=people.sealer()):
            people.store.sequence_events()
            wait_until(lambda: errors(people, "v") != {}, "it has failed")
        assert "is no more" in errors(people, "v")["a"]


def test_a_task_that_a_handler_leaves_behind_logs_no_text(
    people: People, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    people.client().append("customer", "a", moved())

    async def fail(text: str) -> None:
        raise ValueError(text)

    async def handle(event: Delivery) -> None:
        asyncio.ensure_future(fail(event.data["email"]))  # noqa: RUF006 - left behind
        await asyncio.sleep(0)

    with consuming(dsn, handled_by(handle), sealer=people.sealer()):
        wait_consumed(people.store, "v")
        wait_until(lambda: gc.collect() >= 0 and "never retrieved" in caplog.text, "the task is gone")
    assert "error=ValueError" in caplog.text
    assert SECRET not in caplog.text


def test_consumers_of_rows_get_values_and_drains_what_is_stored(people: People) -> None:
    people.client().append("customer", "a", moved())
    people.store.register_view("rows", "-infinity")
    people.store.register_view("bulk", "-infinity", mode="bulk")
    people.store.sequence_events()
    (event,) = people.client().stream_events("rows")
    assert event.data["email"] == SECRET
    (lease,) = people.client().claim_batch("bulk", "me")
    assert [event.data for event in people.client().read_batch("bulk", lease)] == people.data()


@pytest.fixture
def pushed(people: People, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> PlatformStore:
    monkeypatch.setattr(push, "RETRY_MS", 0)
    client = people.client()
    client.register_view("hook", "-infinity", edge_function_url=receiver.url, max_attempts=1, deciders=["customer"])
    client.append("customer", "a", moved())
    return client


@pytest.mark.parametrize("form", ["json", "cloudevents"])
def test_a_push_has_values_where_the_view_says_so(
    people: People, pushed: PlatformStore, dsn: str, receiver: Receiver, form: str
) -> None:
    sealed = json.dumps(people.data()[0]["email"])
    for stream, unseal in (("sealed", False), ("opened", True)):
        pushed.register_view("hook", push_unseal=unseal, push_format=form)
        # digits stay, and a text that looks like a sealed value
        more = f'"n": 1.10, "m": 0.1234567890123456789, "t": {json.dumps(sealed)}'
        data = f'{{"customer_id": "anna", "email": {sealed}, "country": "DE", {more}}}'
        call = (
            "select event_store.append_event('customer_moved', %s, 'customer', %s, %s::jsonb, gen_random_uuid(), null)"
        )
        pushed.connection.execute(call, (uuid4(), stream, data))
        pushed.sequence_events()
        if unseal:
            with pytest.raises(InvalidSetting, match="MILLRACE_KEYS is not set"):
                deliver(dsn)
        deliver(dsn, keys=people.folder)
        (text,) = [each for each in receiver.texts if f'"{stream}"' in each]
        assert f'"email": {json.dumps(SECRET) if unseal else sealed}' in text
        assert all(each in text for each in more.split(", "))
    pushed.append("customer", "forgotten", moved("bert"))
    people.forget(BERT)
    pushed.sequence_events()
    deliver(dsn, keys=people.folder)
    assert receiver.bodies[-1]["data"]["email"] == {"$sealed": f"1.{key_of(people.data()[-1]['email'])}.0.0"}
    assert SECRET not in str(everything(people.store))


def test_of_an_answer_to_opened_values_only_the_status_is_kept(
    people: People, pushed: PlatformStore, dsn: str, receiver: Receiver
) -> None:
    pushed.register_view("hook", push_unseal=True)
    answers, said = [500, 0, 400], list[str]()
    receiver.answer = lambda body: (answers.pop(0) if answers else 400, str(body["data"]["email"]).encode())
    pushed.sequence_events()
    deliver(dsn, keys=people.folder, said=said.append)
    assert errors(people, "hook") == {"a": "HTTP 400"}
    assert [each.split(": ")[1] for each in said] == ["HTTP 500", "No answer.", "HTTP 400"]
    receiver.answer = lambda body: (410, str(body["data"]["email"]).encode())
    pushed.retry_dead_letters("hook")
    deliver(dsn, keys=people.folder, said=said.append)
    assert errors(people, "hook") == {"a": "HTTP 410"}
    reason = "select reason from event_store.audit_log order by audit_id desc limit 1"
    assert value(pushed.connection, reason) == "Its receiver is gone: HTTP 410"
    assert SECRET not in str(said) + str(everything(people.store))


def test_a_role_that_may_not_open_values_sends_them_nowhere(pushed: PlatformStore, receiver: Receiver) -> None:
    with logins(pushed.connection) as login:
        consumer = Views(login("event_store_consumer"))
        personal = Views(login("event_store_consumer", "event_store_personal"))
        for view in ("hook", "new"):
            with pytest.raises(Malformed, match="only a member of event_store_personal"):
                consumer.register_view(view, edge_function_url=receiver.url, push_unseal=True)
        assert personal.register_view("hook", push_unseal=True).push_unseal
        changes: tuple[dict[str, Any], ...] = ({"edge_function_url": "https://evil.example"}, {"deciders": []})
        for change in changes:
            with pytest.raises(Malformed, match="only a member of event_store_personal"):
                consumer.register_view("hook", **change)
        # what changes nothing, and what stops it
        assert consumer.register_view("hook", edge_function_url=receiver.url).push_unseal
        assert not consumer.register_view("hook", push_unseal=False).push_unseal
