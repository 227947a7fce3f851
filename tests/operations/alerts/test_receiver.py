"""Unusable settings, and receivers that refuse a message: each gives a sentence with its remedy."""

import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from millrace.operations.alerts.messages import trial_message as trial
from millrace.operations.alerts.receiver import AlertReceiver, AlertSettings, BadAlertSettings, Delivery, alert_settings
from millrace.settings import Settings
from tests.operations.alerts.hook import SECRET, Hook, settings_for
from tests.support.factories import start
from tests.support.patience import patience

Given = Callable[..., AlertSettings | None]


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALERT_URL", "ALERT_SECRET", "ALERT_FORMAT", "UI_URL", "PUSH_ALLOW", "DSN", "PORT"):
        monkeypatch.delenv(f"MILLRACE_{name}", raising=False)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    def settings(**values: str) -> AlertSettings | None:
        for name, value in values.items():
            monkeypatch.setenv(f"MILLRACE_{name.upper()}", value)
        return alert_settings(Settings())

    return settings


def send(settings: AlertSettings) -> Delivery:
    with AlertReceiver(settings) as to:
        return to.send(trial(uuid4(), datetime.now(UTC)))


def leading_to(url: str, *allowed: str) -> AlertSettings:
    return AlertSettings(url, SECRET, "standard", "", allowed)


def test_a_message_is_signed_so_that_the_library_verifies_it(hook: Hook) -> None:
    assert send(settings_for(hook)).delivered
    (alert,) = hook.alerts
    assert hook.forged == []
    assert alert.webhook_id.startswith("msg_")
    assert "." not in alert.webhook_id
    assert abs(alert.timestamp - time.time()) < patience()
    assert alert.body["type"] == "incident.test"


def test_slack_gets_a_text_with_or_without_a_signature(hook: Hook) -> None:
    assert send(settings_for(hook, "slack")).delivered
    assert hook.forged == []
    hook.signed = False
    assert send(AlertSettings(hook.url, None, "slack", "", ["127.0.0.1"])).delivered
    assert [set(alert.body) for alert in hook.alerts] == [{"text"}] * 2
    assert hook.alerts[1].webhook_id == ""


WRONG_URLS = (
    "alerts.example.com/x", "ftp://example.com/hidden", "http://", "http://[::1", "https://x:no-port/",
    "https://hooks.example.com/${MILLRACE_PUSH_SECRET_UNSET}",
)  # fmt: skip
WRONG_SECRETS = {
    "": "MILLRACE_ALERT_SECRET is not set",
    "hunter2hunter2hunter2hunter2hunt": "does not begin with whsec_",
    "whsec_hunter2!hunter2hunter2hunter2": "not base64",
    "whsec_" + "A" * 28: "21 bytes; 24 to 64",
}


def test_settings_that_cannot_be_used_are_said_without_secrets(given: Given) -> None:
    assert given() is None
    assert given(alert_url="", alert_secret="whatever") is None
    url = "https://alerts.example.com/"
    wrong = [
        *((each, SECRET, "standard", "MILLRACE_ALERT_URL cannot be sent to: ", url) for each in WRONG_URLS),
        *((url, each, "standard", why, "openssl rand -base64 32") for each, why in WRONG_SECRETS.items()),
        (url, SECRET, "teams", "MILLRACE_ALERT_FORMAT is 'teams'", "standard, slack"),
    ]
    for each, secret, form, why, remedy in wrong:
        with pytest.raises(BadAlertSettings) as refused:
            given(alert_url=each, alert_secret=secret, alert_format=form)
        delivery = str(refused.value)
        assert (why in delivery, remedy in delivery, refused.value.__cause__) == (True, True, None)
        # the URL's path may be a secret
        assert ("hidden" in delivery, "hunter2" in delivery) == (False, False)


def test_slack_needs_no_secret_and_a_ui_may_have_no_address(given: Given) -> None:
    found = given(alert_url="https://alerts.example.com/", alert_format="slack", ui_url="dagster:3000")
    assert found is not None
    assert (found.secret, found.ui_address) == (None, "")
    (warning,) = found.warnings
    assert "MILLRACE_UI_URL is 'dagster:3000'" in warning
    found = given(ui_url="https://dagster.example.com")
    assert found is not None
    assert (found.ui_address, found.warnings) == ("https://dagster.example.com", ())
    assert "alerts.example.com" not in repr(found)


def test_receivers_that_nothing_can_reach_are_said(given: Given) -> None:
    embedded = given(alert_url="http://127.0.0.1:9/", alert_secret=SECRET)
    assert embedded is not None
    with AlertReceiver(embedded) as to:
        # with the embedded store this machine is an allowed receiver
        assert to.problem() is None
    own = given(dsn="postgresql://db.example.com/events")
    assert own is not None
    inwards = (own, leading_to("http://10.1.2.3/hidden"), leading_to("http://[::1]:8080/hidden"))
    unknown = (leading_to("https://nowhere.invalid/hidden"), leading_to(f"https://{'x' * 70}.invalid/hidden"))
    for found, before, after in (
        *((each, "MILLRACE_PUSH_ALLOW", "MILLRACE_PUSH_ALLOW") for each in inwards),
        *((each, "its name is not known here", "did not answer") for each in unknown),
    ):
        with AlertReceiver(found) as to:
            problem = to.problem()
        assert problem is not None
        delivery = send(found)
        assert (before in problem, delivery.delivered, after in delivery.outcome) == (True, False, True)
        assert "hidden" not in problem + delivery.outcome
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "nothing listens there" in send(leading_to(f"http://127.0.0.1:{port}/", "127.0.0.1")).outcome


def test_an_answer_that_is_no_success_is_said_with_its_remedy(hook: Hook) -> None:
    remedies = {
        500: "HTTP 500 Internal Server Error", 404: "Is MILLRACE_ALERT_URL whole", 429: "fewer messages", 600: "HTTP 600",
        302: "a redirect is not followed: set MILLRACE_ALERT_URL to where it leads",
        400: "Is MILLRACE_ALERT_FORMAT what it expects",
    }  # fmt: skip
    for number, (status, remedy) in enumerate(remedies.items(), start=1):
        hook.answer = lambda _, status=status: status  # type: ignore[misc]
        delivery = send(settings_for(hook))
        assert not delivery.delivered
        assert remedy in delivery.outcome
        # scheme, host and port; not the path
        assert f"http://127.0.0.1:{hook.server_address[1]} " in delivery.outcome
        assert "hidden" not in delivery.outcome
        assert len(hook.alerts) == number


def test_what_a_receiver_says_is_shown_and_not_kept() -> None:
    def talk() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 400 Bad\r\nContent-Length: 15\r\n\r\nno_text\x1b[31mred")

    with socket.create_server(("127.0.0.1", 0)) as server:
        talks = start(talk)
        delivery = send(leading_to(f"http://127.0.0.1:{server.getsockname()[1]}/", "127.0.0.1"))
        talks.result(patience())
    assert "It said: no_text" in delivery.outcome
    assert "\x1b" not in delivery.outcome
    assert "no_text" not in (delivery.error or "")
