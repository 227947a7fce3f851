"""The content of a push: a signature as in Standard Webhooks, a trace, and a CloudEvent if the view wants one."""

import re
from dataclasses import replace
from datetime import datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from millrace.errors import TryLater
from millrace.event_schemas.moves import default
from millrace.event_store.platform import PlatformStore
from millrace.handlers import push
from millrace.handlers.receivers import Allowed
from millrace.handlers.store import PushStore
from millrace.signing import made_secret
from tests.support.factories import new_event, pump
from tests.support.sql_calls import append_events, get_events
from tests.support.views.receiver import Receiver, deliver, place, pushed, receiver, wake

__all__ = ["pushed", "receiver"]

FIRST, SECOND, FOREIGN = made_secret(), made_secret(), made_secret()
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def verified(receiver: Receiver, secret: str, number: int = -1) -> object:
    return Webhook(secret).verify(receiver.texts[number], receiver.given[number])


def test_each_try_of_a_push_is_the_same_signed_message(
    pushed: PlatformStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RETRY_MS", 60_000)
    PushStore(pushed.connection).set_push_secret("hook", FIRST)
    place(pushed, "a", events=("placed",))
    receiver.answer = lambda _: 500
    assert deliver(dsn) == 0
    receiver.answer = lambda _: 204
    wake(pushed)
    assert deliver(dsn) == 1
    assert len(receiver.given) == 2
    for number, headers in enumerate(receiver.given):
        assert headers["webhook-id"] == receiver.bodies[0]["event_id"]
        assert verified(receiver, FIRST, number) == receiver.bodies[0]
    with pytest.raises(WebhookVerificationError):
        verified(receiver, FOREIGN)


def test_while_receivers_change_over_both_secrets_verify(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    secrets = PushStore(pushed.connection)
    secrets.set_push_secret("hook", FIRST)
    secrets.set_push_secret("hook", SECOND)
    place(pushed, "a", events=("placed",))
    assert deliver(dsn) == 1
    assert verified(receiver, FIRST) == verified(receiver, SECOND)
    secrets.set_push_secret("hook", FOREIGN, 0)
    place(pushed, "a", events=("paid",))
    assert deliver(dsn) == 1
    assert verified(receiver, FOREIGN)
    for gone in (FIRST, SECOND):
        with pytest.raises(WebhookVerificationError):
            verified(receiver, gone)


def test_a_new_secret_counts(
    pushed: PlatformStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "AWAY_S", 0.0)
    secrets = PushStore(pushed.connection)
    secrets.set_push_secret("hook", FIRST)
    place(pushed, "a")

    def rotate(_: object) -> int:
        secrets.set_push_secret("hook", SECOND, 0)
        return 204

    receiver.answer = rotate
    assert deliver(dsn) == 3
    assert verified(receiver, FIRST, 0)
    assert verified(receiver, SECOND, 1)
    assert verified(receiver, SECOND, 2)


def test_what_nobody_can_sign_is_not_sent(pushed: PlatformStore, receiver: Receiver) -> None:
    place(pushed, "a", events=("placed",))
    (event,) = pushed.lease_events("hook", 1)
    pusher = push.Pusher("host=/nowhere", "hook", receiver.url, Allowed(["127.0.0.1"]), lambda _: None)
    with pytest.raises(TryLater, match="what to sign with"):
        pusher.deliver(event)
    pusher.close()
    assert receiver.texts == []


def test_without_a_secret_a_push_is_not_signed(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    traces = {"one": TRACE, "no trace": "no traceparent", "none": None}
    append_events(
        pushed,
        (
            replace(new_event(name), metadata={"traceparent": trace} if trace else None)
            for name, trace in traces.items()
        ),
    )
    pump(pushed, "hook")
    assert deliver(dsn) == 3
    sent = {headers["webhook-id"]: headers for headers in receiver.given}
    carried = {body["decider_id"]: sent[body["event_id"]].get("traceparent") for body in receiver.bodies}
    assert carried == {"one": TRACE, "no trace": None, "none": None}
    assert all("webhook-signature" not in headers for headers in receiver.given)


# CloudEvents 1.0, if a view wants them ------------------------------------------------------------------------------

# the specification's rule for names of attributes
NAME = re.compile(r"[a-z0-9]{1,20}")


def test_a_cloud_event_is_whole_in_the_body(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    PushStore(pushed.connection).set_push_secret("hook", FIRST)
    pushed.register_view("hook", push_format="cloudevents")
    metadata = {"correlation_id": "request-7", "user": "ada", "traceparent": TRACE}
    append_events(pushed, [replace(new_event("ö/1"), metadata=metadata), new_event("ö/1", event="paid")])
    pump(pushed, "hook")
    assert deliver(dsn) == 2
    placed, paid = get_events(pushed, "ö/1", "order")
    first, second = receiver.bodies
    assert first == {
        "specversion": "1.0", "id": str(placed.event_id), "source": "/deciders/order", "type": "placed", "subject": "ö/1",
        "time": placed.created_at.isoformat(), "datacontenttype": "application/json", "data": placed.data,
        "eventversion": 1, "streamversion": 1, "final": False, "commandid": str(placed.command_id),
        "offset": str(placed.offset), "correlationid": "request-7", "traceparent": TRACE,
    }  # fmt: skip
    assert (second["previousid"], second["streamversion"]) == (str(placed.event_id), 2)
    assert {"correlationid", "traceparent"}.isdisjoint(second)
    for body in (first, second):
        assert all(NAME.fullmatch(name) for name in body)
        assert datetime.fromisoformat(body["time"]).tzinfo is not None
    headers = receiver.given[0]
    assert headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert (headers["webhook-id"], headers["traceparent"]) == (first["id"], TRACE)
    assert Webhook(FIRST).verify(receiver.texts[0], headers) == first
    assert paid.previous_id == placed.event_id


def test_data_keep_their_digits_and_a_source_is_a_uri(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    pushed.register_decider_event("an order/ü", "placed", "An order was placed.")
    pushed.register_view("hook", push_format="cloudevents")
    append_events(pushed, [replace(new_event(decider="an order/ü"), data=None), new_event()])
    pushed.append_json(
        '[{"decider": "order", "decider_id": "o-2", "event": "placed", "data": {"n": 0.10000000000000000000000001},'
        ' "event_id": "00000000-0000-4000-8000-000000000001", "command_id": "00000000-0000-4000-8000-000000000002"}]'
    )
    pump(pushed, "hook")
    assert deliver(dsn) == 3
    assert {body["source"] for body in receiver.bodies} == {"/deciders/an%20order%2F%C3%BC", "/deciders/order"}
    assert [body["data"] for body in receiver.bodies if body["source"] != "/deciders/order"] == [None]
    assert any('"data": {"n": 0.10000000000000000000000001}' in text for text in receiver.texts)


def test_a_view_changes_its_form_and_back(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    assert pushed.register_view("hook", push_format="cloudevents").push_format == "cloudevents"
    assert pushed.register_view("hook", lock_timeout_s=7).push_format == "cloudevents"
    (entry, *_) = [each for each in pushed.audit_log("hook") if "push_format" in str(each.detail.get("changed"))]
    assert entry.detail["changed"]["push_format"] == {"from": "json", "to": "cloudevents"}
    assert pushed.register_view("hook", push_format="json").push_format == "json"
    place(pushed, "a", events=("placed",))
    assert deliver(dsn) == 1
    assert "specversion" not in receiver.bodies[0]
    assert receiver.given[0]["content-type"] == "application/json"


def test_data_are_pushed_in_the_shape_that_is_asked_for(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    place(pushed, "a", events=("placed",))
    for version in (2, 3):
        pushed.register_decider_event("order", "placed", "An order was placed.", event_version=version)
        pushed.register_event_upcast("order", "placed", version, [default(f"v{version}", 1)])
    assert deliver(dsn) == 1
    assert pushed.register_view("hook", push_upcast=True).push_upcast
    assert pushed.register_view("hook", push_format="cloudevents").push_upcast
    place(pushed, "b", events=("placed",))
    assert deliver(dsn) == 1
    old, new = receiver.bodies
    assert {"v2", "v3"}.isdisjoint(old["data"])
    assert new["data"] == {**old["data"], "v2": 1, "v3": 1}
    assert new["eventversion"] == 1
