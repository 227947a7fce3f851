"""Settings that cannot be used, receivers that do not take a message: each is a sentence with its remedy."""

import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from millrace.resources.alerts import receiver
from millrace.resources.alerts.messages import trial_message as trial
from millrace.resources.alerts.receiver import AlertReceiver, AlertSettings, BadAlertSettings, Delivery, alert_settings
from millrace.resources.settings import Settings
from tests.alerts.hook import SECRET, Hook, settings_for
from tests.subscriptions.test_receivers import raw

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
    assert abs(alert.timestamp - time.time()) < 60
    assert alert.body["type"] == "incident.test"


def test_another_secret_is_found_out(hook: Hook) -> None:
    other = AlertSettings(hook.url, "whsec_" + "A" * 32, "standard", "", ["127.0.0.1"])
    assert send(other).delivered
    assert len(hook.forged) == 1


def test_slack_gets_a_text_with_or_without_a_signature(hook: Hook) -> None:
    assert send(settings_for(hook, "slack")).delivered
    assert hook.forged == []
    hook.signed = False
    assert send(AlertSettings(hook.url, None, "slack", "", ["127.0.0.1"])).delivered
    assert [set(alert.body) for alert in hook.alerts] == [{"text"}] * 2
    assert hook.alerts[1].webhook_id == ""


def test_without_a_url_there_are_no_alerts(given: Given) -> None:
    assert given() is None
    assert given(alert_url="", alert_secret="whatever") is None


URLS = (
    "alerts.example.com/x",
    "ftp://example.com/hidden",
    "http://",
    "nonsense",
    "http://[::1",
    "https://x:no-port/",
    "https://hooks.example.com/${MILLRACE_PUSH_SECRET_UNSET}",
)
# what is no secret, and why
SECRETS = (
    ("", "MILLRACE_ALERT_SECRET is not set"),
    ("hunter2hunter2hunter2hunter2hunt", "does not begin with whsec_"),
    ("whsec_hunter2!hunter2hunter2hunter2", "not base64"),
    ("whsec_" + "A" * 31, "not base64"),
    ("whsec_é" + "A" * 31, "not base64"),
    ("whsec_" + "A" * 28, "21 bytes; 24 to 64"),
    ("whsec_" + "A" * 88, "66 bytes; 24 to 64"),
)


def test_what_is_no_url_or_no_secret_is_said_and_not_shown(given: Given) -> None:
    for url in URLS:
        with pytest.raises(BadAlertSettings) as refused:
            given(alert_url=url, alert_secret=SECRET)
        said = str(refused.value)
        assert said.startswith("MILLRACE_ALERT_URL cannot be sent to: "), url
        assert "https://alerts.example.com" in said
        # its path may be a secret
        assert "hidden" not in said
    for secret, why in SECRETS:
        with pytest.raises(BadAlertSettings, match=why) as refused:
            given(alert_url="https://alerts.example.com/", alert_secret=secret)
        assert "openssl rand -base64 32" in str(refused.value)
        assert "hunter2" not in str(refused.value)
        assert refused.value.__cause__ is None


def test_settings_that_cannot_be_used_are_said_with_what_is_allowed(given: Given) -> None:
    with pytest.raises(BadAlertSettings) as refused:
        given(alert_url="https://alerts.example.com/", alert_secret=SECRET, alert_format="teams")
    assert "MILLRACE_ALERT_FORMAT is 'teams'" in str(refused.value)
    assert "standard, slack" in str(refused.value)
    found = given(alert_format="slack", alert_secret="", ui_url="dagster:3000")
    assert found is not None
    assert (found.secret, found.ui_address) == (None, "")
    (warning,) = found.warnings
    assert "MILLRACE_UI_URL is 'dagster:3000'" in warning
    found = given(ui_url="https://dagster.example.com")
    assert found is not None
    assert (found.ui_address, found.warnings) == ("https://dagster.example.com", ())
    assert "alerts.example.com" not in repr(found)


def test_receivers_of_this_machine_are_those_of_the_embedded_store_only(given: Given) -> None:
    embedded = given(alert_url="http://127.0.0.1:9/", alert_secret=SECRET)
    assert embedded is not None
    with AlertReceiver(embedded) as to:
        assert to.problem() is None
    own = given(dsn="postgresql://db.example.com/events")
    assert own is not None
    for found in (own, leading_to("http://10.1.2.3/hidden"), leading_to("http://[::1]:8080/hidden")):
        with AlertReceiver(found) as to:
            problem = to.problem()
        assert problem is not None
        assert "not public" in problem
        assert "MILLRACE_PUSH_ALLOW" in problem
        assert "hidden" not in problem
        said = send(found)
        assert not said.delivered
        assert "MILLRACE_PUSH_ALLOW" in said.said


def test_a_name_that_nobody_knows_is_said() -> None:
    for host in ("nowhere.invalid", "x" * 70 + ".invalid"):
        found = leading_to(f"https://{host}/hidden")
        with AlertReceiver(found) as to:
            problem = str(to.problem())
        assert f"https://{host}" in problem
        assert "its name is not known here" in problem
        said = send(found)
        assert not said.delivered
        assert "did not answer" in (said.error or "")
        assert "hidden" not in said.said


ANSWERS = {
    500: "HTTP 500 Internal Server Error",
    302: "a redirect is not followed: set MILLRACE_ALERT_URL to where it leads",
    308: "a redirect is not followed",
    404: "Is MILLRACE_ALERT_URL whole",
    400: "Is MILLRACE_ALERT_FORMAT what it expects",
    429: "fewer messages",
    600: "HTTP 600",
}


def test_an_answer_that_is_no_success_is_said_with_its_remedy(hook: Hook) -> None:
    for number, (status, remedy) in enumerate(ANSWERS.items(), 1):
        hook.answer = lambda _, status=status: status  # type: ignore[misc]
        said = send(settings_for(hook))
        assert (said.delivered, remedy in said.said) == (False, True), said
        # scheme, host and port; not the path
        assert f"http://127.0.0.1:{hook.server_address[1]} " in said.said
        assert "hidden" not in said.said
        assert len(hook.alerts) == number


def test_a_receiver_that_hangs_costs_its_deadline_only_and_what_one_says_is_shown_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that drips byte by byte: `subscriptions/test_receivers.py`."""
    over = threading.Event()

    def talk(to: socket.socket) -> None:
        to.sendall(b"HTTP/1.1 400 Bad\r\nContent-Length: 15\r\n\r\nno_text\x1b[31mred")

    def hang(_: socket.socket) -> None:
        over.wait()

    with raw(talk) as (port, _):
        said = send(leading_to(f"http://127.0.0.1:{port}/", "127.0.0.1"))
    assert "It said: no_text" in said.said
    assert "\x1b" not in said.said
    assert "no_text" not in (said.error or "")
    monkeypatch.setattr(receiver, "TIMEOUT_S", 0.5)
    with raw(hang) as (port, _):
        # it goes on until it is told that this has come back
        said = send(leading_to(f"http://127.0.0.1:{port}/", "127.0.0.1"))
        over.set()
    assert not said.delivered


def test_a_port_where_nothing_listens_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said = send(leading_to(f"http://127.0.0.1:{port}/", "127.0.0.1"))
    assert "nothing listens there" in said.said
    assert "refused" in said.said
