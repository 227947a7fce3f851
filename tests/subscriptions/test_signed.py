"""Pushes that a receiver can trust: signed as Standard Webhooks says, with two secrets while one is rotated."""

from dataclasses import replace

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from millrace.resources.consumers.declaration import TryLater
from millrace.resources.event_store import EventStore
from millrace.resources.signing import made_secret
from millrace.resources.subscriptions import push
from millrace.resources.subscriptions.receivers import Allowed
from millrace.resources.subscriptions.store import PushStore
from tests.support.factories import new_event, pump
from tests.support.views.receiver import Receiver, deliver, place, pushed, receiver, wake

__all__ = ["pushed", "receiver"]

FIRST, SECOND, FOREIGN = made_secret(), made_secret(), made_secret()
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def verified(receiver: Receiver, secret: str, number: int = -1) -> object:
    return Webhook(secret).verify(receiver.texts[number], receiver.given[number])


def test_each_try_of_a_push_is_the_same_message_signed_with_the_secret_of_its_view(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    PushStore(pushed.connection).set_push_secret("hook", FIRST)
    place(pushed, "a", events=("placed",))
    receiver.answer = lambda _: 500
    assert deliver(dsn) == 0
    receiver.answer = lambda _: 204
    wake(pushed)
    assert deliver(dsn) == 1
    assert len(receiver.given) > 1
    for number, headers in enumerate(receiver.given):
        assert headers["webhook-id"] == receiver.bodies[0]["event_id"]
        assert verified(receiver, FIRST, number) == receiver.bodies[0]
    with pytest.raises(WebhookVerificationError):
        verified(receiver, FOREIGN)


def test_while_receivers_change_over_both_secrets_verify(pushed: EventStore, dsn: str, receiver: Receiver) -> None:
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


def test_a_drain_that_runs_takes_a_new_secret(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "SECRETS_KNOWN_S", 0.0)
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


def test_while_nobody_can_say_what_to_sign_with_nothing_is_sent_and_no_event_to_blame(
    pushed: EventStore, receiver: Receiver
) -> None:
    place(pushed, "a", events=("placed",))
    (event,) = pushed.lease_events("hook", 1)
    pusher = push.Pusher("host=/nowhere", "hook", receiver.url, Allowed(["127.0.0.1"]), lambda _: None)
    with pytest.raises(TryLater, match="what to sign with"):
        pusher.deliver(event)
    pusher.close()
    assert receiver.texts == []


def test_without_a_secret_a_push_is_not_signed_and_a_trace_goes_on_at_the_receiver(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    traces = {"one": TRACE, "no trace": "no traceparent", "none": None}
    pushed.append_events(
        replace(new_event(name), metadata={"traceparent": trace} if trace else None) for name, trace in traces.items()
    )
    pump(pushed, "hook")
    assert deliver(dsn) == 3
    sent = {headers["webhook-id"]: headers for headers in receiver.given}
    assert {body["decider_id"]: sent[body["event_id"]].get("traceparent") for body in receiver.bodies} == {
        "one": TRACE,
        "no trace": None,
        "none": None,
    }
    assert all("webhook-signature" not in headers for headers in receiver.given)
