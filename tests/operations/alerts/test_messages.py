"""The form of messages, and the characters in them that must have no effect."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

from millrace.operations.alerts.findings import CAUSE_BYTES, SUBJECT_BYTES, Finding
from millrace.operations.alerts.messages import message_of
from millrace.operations.alerts.store import Incident
from tests.support.pages.documents import quoted, table

BEGAN = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
INCIDENT = Incident(
    incident_id=UUID(int=2), source="event_store", kind="dead_letters", subject="mails", severity="ticket",
    what="The view mails gave up a stream", cause="order o-1, after 3 attempts: no such address",
    remedy="millrace dead list mails", page="/runs", began_at=BEGAN, confirmed=True, missing_since=None, over_at=None,
    told="nothing", due_at=BEGAN, tries=1, failing_since=BEGAN, last_error=None,
)  # fmt: skip
DATA = {
    "incident_id": "00000000-0000-0000-0000-000000000002", "kind": "dead_letters", "subject": "mails",
    "severity": "ticket", "title": INCIDENT.what, "cause": INCIDENT.cause, "remedy": INCIDENT.remedy,
    "link": "https://ui.example.com/runs", "began_at": "2030-01-01T10:00:00.000Z", "over_at": None,
}  # fmt: skip


def finding(subject: str, cause: str, page: str = "") -> Finding:
    return Finding("run", "dagster", subject, None, "ticket", f"The run {subject} failed", cause, "look", page)


def test_the_body_says_what_is_wrong_since_when_and_what_helps() -> None:
    message = message_of(INCIDENT, "https://ui.example.com/")
    assert message.message_id == "msg_00000000000000000000000000000002_began"
    told = {"type": "incident.began", "timestamp": "2030-01-01T10:00:00.000Z", "data": DATA}
    assert json.loads(message.body("standard")) == told
    without = json.loads(message_of(replace(INCIDENT, page=""), "x").body("standard"))
    assert without["data"]["link"] is None
    fields = {"type", "timestamp", *(f"data.{name}" for name in DATA)}
    assert {name for row in table("docs/monitoring.md", "field") for name in quoted(row[0])} == fields


def test_the_end_says_when_and_the_beginning_is_the_same_for_every_try() -> None:
    ended = replace(INCIDENT, over_at=datetime(2030, 1, 1, 11, tzinfo=UTC))
    assert message_of(ended, "") == message_of(INCIDENT, "")
    over = message_of(replace(ended, told="began"), "")
    body = json.loads(over.body("standard"))
    assert over.message_id.endswith("_over")
    assert (body["type"], body["timestamp"]) == ("incident.over", "2030-01-01T11:00:00.000Z")
    assert body["data"]["title"] == "Over: The view mails gave up a stream"
    text = json.loads(over.body("slack"))["text"]
    assert text.splitlines()[1] == "from 2030-01-01 10:00:00 UTC to 2030-01-01 11:00:00 UTC"


def test_slack_sees_no_mention_and_no_link_but_ours() -> None:
    cause = "<http://evil|click> & <@U1>\x1b[2J" + "x" * CAUSE_BYTES
    hostile = replace(INCIDENT, what="<!channel>", cause=cause, remedy="<a>")
    text = json.loads(message_of(hostile, "https://ui.example.com").body("slack"))["text"]
    assert text.count("<") == 1
    assert "<https://ui.example.com/runs|Open in the UI>" in text
    assert "&lt;http://evil|click&gt; &amp; &lt;@U1&gt;" in text
    assert "\x1b" not in text
    assert len(text) < 1000


def test_texts_that_others_wrote_fit_and_can_be_stored() -> None:
    fields = finding("é\x00\ud800" * 400, "\x00\ud800cause" * 9000, "/" + "x" * 5000).fields()
    for name, most in (("subject", SUBJECT_BYTES), ("what", 2 * SUBJECT_BYTES), ("cause", CAUSE_BYTES), ("page", 1000)):
        assert len(str(fields[name]).encode()) <= most
        assert "\x00" not in str(fields[name])
    # the store counts bytes, and one refused finding would block all others
    assert finding("x", "", "/" + "€" * 800).fields()["page"] == ""
    # long subjects that differ only at the end stay different
    assert finding("x" * 900 + "a", "").fields()["subject"] != finding("x" * 900 + "b", "").fields()["subject"]
    refused = finding("nightly", "cannot reach postgresql://ada:geheim@db/x password=geheim")
    assert refused.fields()["cause"] == "cannot reach postgresql://ada:***@db/x password=***"
