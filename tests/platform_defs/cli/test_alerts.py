"""`millrace show incidents`: what is wrong, and whether a receiver accepts a message."""

import json
import re
from typing import Any

import pytest

from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.store import AlertStore
from tests.operations.alerts.conftest import hook
from tests.operations.alerts.hook import SECRET, Hook
from tests.operations.alerts.test_receiver import _nothing_is_set
from tests.support.command_line import millrace

__all__ = ["_nothing_is_set", "hook"]


def seen(subject: str, wait_s: int = 0) -> dict[str, object]:
    words = {"what": f"{subject} is late", "cause": "7 events wait", "remedy": "millrace status", "page": ""}
    return {"kind": "late", "subject": subject, "severity": "ticket", "wait_s": wait_s, **words}


def test_incidents_are_listed_with_cause_and_who_was_told(store: PlatformStore, dsn: str) -> None:
    assert "There are no incidents." in millrace("show", "incidents", dsn=dsn)
    assert "No look has happened yet" in millrace("show", "incidents", dsn=dsn)
    alerts = AlertStore(store.connection)
    alerts.observe_incidents("event_store", [seen("orders\x1b[2J"), seen("mails", 60)])
    claimed = alerts.claim_alert()
    assert claimed
    alerts.settle_alert(claimed.incident_id, "nothing", "HTTP 500")
    said = millrace("show", "incidents", dsn=dsn)
    assert "orders\N{REPLACEMENT CHARACTER}[2J is late" in said
    assert "7 events wait" in said
    assert "open, in vain: HTTP 500" in said
    assert "open, not told yet" in said
    assert re.search(r"Looked at \d+ seconds ago\.", said)
    assert "A message has not arrived for" in said
    first, second = map(json.loads, millrace("show", "incidents", "--json", dsn=dsn).splitlines())
    assert {first["subject"], second["subject"]} == {"orders\x1b[2J", "mails"}
    # the alert is sent, and the incident ends
    alerts.settle_alert(claimed.incident_id, "nothing")
    assert "open, told" in millrace("show", "incidents", dsn=dsn)
    alerts.observe_incidents("event_store", [], hold_s=0)
    assert "over, its end not told yet" in millrace("show", "incidents", dsn=dsn)


def test_a_message_that_arrives_is_said_with_the_answer(hook: Hook) -> None:
    said = millrace("show", "incidents", "--test", MILLRACE_ALERT_URL=hook.url, MILLRACE_ALERT_SECRET=SECRET)
    assert said == f"http://127.0.0.1:{hook.server_address[1]} took it: HTTP 204 No Content.\n"
    assert hook.until(1) == [("test", "")]


def test_a_message_that_does_not_arrive_is_said_with_its_remedy(hook: Hook) -> None:
    def test(**env: Any) -> str:  # noqa: ANN401 - a keyword of `millrace`
        return millrace("show", "incidents", "--test", MILLRACE_ALERT_URL=hook.url, **env)

    hook.answer = lambda _: 404
    with pytest.raises(MillraceError, match=r"did not take it: HTTP 404 Not Found.*Is MILLRACE_ALERT_URL whole"):
        test(MILLRACE_ALERT_SECRET=SECRET)
    with pytest.raises(MillraceError, match="MILLRACE_PUSH_ALLOW"):
        test(MILLRACE_ALERT_SECRET=SECRET, MILLRACE_DSN="postgresql://db.example.com/x")
    with pytest.raises(MillraceError, match="MILLRACE_ALERT_URL is not set"):
        millrace("show", "incidents", "--test")
    with pytest.raises(MillraceError, match="MILLRACE_ALERT_SECRET is not set"):
        test()
    assert len(hook.alerts) == 1
