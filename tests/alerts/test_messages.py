"""How messages look, and what in them cannot do anything."""

import json
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

from millrace.resources.alerts.incidents import CAUSE_BYTES, KINDS, SUBJECT_BYTES, Finding
from millrace.resources.alerts.messages import message_of
from millrace.resources.alerts.store import ClaimedIncident
from tests.support.pages.documents import quoted, table

BEGAN = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
INCIDENT = ClaimedIncident(
    message_id=UUID(int=1),
    lease_token=1,
    phase="began",
    incident_id=UUID(int=2),
    kind="dead_letters",
    subject="mails",
    severity="ticket",
    cause="order o-1, after 3 attempts: no such address",
    remedy="millrace dead-letters mails",
    page="/runs",
    began_at=BEGAN,
    over_at=None,
    flaps=0,
    tries=1,
)


def test_the_body_says_what_is_wrong_since_when_and_what_helps() -> None:
    message = message_of([INCIDENT], "https://ui.example.com/")
    assert message.message_id == "msg_00000000000000000000000000000001"
    assert json.loads(message.body("standard")) == {
        "type": "incident.began",
        "timestamp": "2030-01-01T10:00:00.000Z",
        "data": {
            "kind": "dead_letters",
            "severity": "ticket",
            "title": "The view mails gave up a stream",
            "incidents": [
                {
                    "incident_id": "00000000-0000-0000-0000-000000000002",
                    "subject": "mails",
                    "title": "The view mails gave up a stream",
                    "cause": INCIDENT.cause,
                    "remedy": INCIDENT.remedy,
                    "link": "https://ui.example.com/runs",
                    "began_at": "2030-01-01T10:00:00.000Z",
                    "over_at": None,
                    "came_back": 0,
                }
            ],
        },
    }
    without = json.loads(message_of([replace(INCIDENT, page="")], "x").body("standard"))
    assert without["data"]["incidents"][0]["link"] is None


def test_the_end_says_when() -> None:
    over = replace(INCIDENT, phase="over", over_at=datetime(2030, 1, 1, 11, tzinfo=UTC))
    body = json.loads(message_of([over], "").body("standard"))
    assert (body["type"], body["timestamp"]) == ("incident.over", "2030-01-01T11:00:00.000Z")
    assert body["data"]["title"] == "Over: The view mails gave up a stream"
    text = json.loads(message_of([over], "").body("slack"))["text"]
    assert text.splitlines()[1] == "from 2030-01-01 10:00:00 UTC to 2030-01-01 11:00:00 UTC"


def test_slack_sees_no_mention_and_no_link_but_ours() -> None:
    hostile = replace(INCIDENT, subject="<!channel>", cause="<http://evil|click> & <@U1>\x1b[2J", remedy="<a>")
    text = json.loads(message_of([hostile], "https://ui.example.com").body("slack"))["text"]
    assert text.count("<") == 1
    assert "<https://ui.example.com/runs|Open in the UI>" in text
    assert "&lt;http://evil|click&gt; &amp; &lt;@U1&gt;" in text
    assert "\x1b" not in text


def test_slack_is_told_of_many_in_a_text_that_it_takes() -> None:
    many = [replace(INCIDENT, subject=f"view_{n}", cause="x" * CAUSE_BYTES) for n in range(50)]
    text = json.loads(message_of(many, "").body("slack"))["text"]
    assert "50 views gave up streams" in text
    assert text.endswith("and 40 more: millrace alerts")
    assert len(text) < 12_000
    # the command does not list what is over
    ended = [replace(each, phase="over", over_at=each.began_at) for each in many]
    assert json.loads(message_of(ended, "").body("slack"))["text"].endswith("and 40 more")


def test_every_kind_has_words_for_one_and_for_many_and_a_remedy_that_takes_any_name_as_one_word() -> None:
    for kind in KINDS.values():
        assert kind.one.format(subject="x")
        assert kind.many.format(number=2)
        assert kind.remedy.format(subject="x")
    remedy = str(Finding("s", "dead_letters", "mails; rm -rf $HOME `id` 'x'", "").fields()["remedy"])
    assert shlex.split(remedy.rpartition("then: ")[2]) == ["millrace", "retry", "mails; rm -rf $HOME `id` 'x'"]


def test_texts_that_others_wrote_show_no_password_fit_and_can_be_stored() -> None:
    refused = Finding("dagster", "run", "nightly", "cannot reach postgresql://ada:geheim@db/x password=geheim")
    assert refused.fields()["cause"] == "cannot reach postgresql://ada:***@db/x password=***"
    finding = Finding("s", "run", "é\x00\ud800" * 400, "\x00\ud800cause" * 9000, "/" + "x" * 5000)
    fields = finding.fields()
    for name, most in (("subject", SUBJECT_BYTES), ("cause", CAUSE_BYTES), ("page", 1000)):
        assert len(str(fields[name]).encode()) <= most
        assert "\x00" not in str(fields[name])
    assert finding.key == ("run", fields["subject"])
    # the store counts bytes, and what it refuses keeps all others back
    assert Finding("s", "run", "x", "", "/" + "€" * 800).fields()["page"] == ""
    # long ones that differ at their ends are two
    assert Finding("s", "run", "x" * 900 + "a", "").key != Finding("s", "run", "x" * 900 + "b", "").key
    assert Finding("s", "run", "drain", "").fields()["cause"] == "The run drain failed"


def test_the_tables_of_the_page_have_every_kind_and_every_field() -> None:
    told = {quoted(row[0])[0]: row[1:] for row in table("docs/monitoring.md", "kind")}
    assert {name: row[-1] for name, row in told.items()} == {name: kind.severity for name, kind in KINDS.items()}
    body = json.loads(message_of([INCIDENT], "").body("standard"))
    fields = {"type", "timestamp", *(f"data.{name}" for name in body["data"] if name != "incidents")}
    fields |= {f"data.incidents[].{name}" for name in body["data"]["incidents"][0]}
    assert {name for row in table("docs/monitoring.md", "field") for name in quoted(row[0])} == fields
