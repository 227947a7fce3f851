"""How a message looks: the JSON that Standard Webhooks asks for, or the text that Slack takes.

Belongs here: bodies, from the rows of incidents. Not here: signing and sending them (`receiver`).

A body depends on what is stored only: it is the same for every try.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from millrace.resources.alerts.incidents import clean, cut, title
from millrace.resources.alerts.store import ClaimedIncident

STANDARD, SLACK = "standard", "slack"
FORMATS = (STANDARD, SLACK)
# characters of one incident's cause in Slack, whose texts are bounded
SLACK_CAUSE = 700
SLACK_LISTED = 10
MARKS = {"began": ":red_circle:", "over": ":large_green_circle:", "test": ":white_circle:"}


@dataclass(frozen=True)
class Message:
    """A message: what names it for its receiver, and its body in each format."""

    message_id: str
    standard: str
    slack: str

    def body(self, form: str) -> str:
        """Return the body in one of `FORMATS`."""
        return self.slack if form == SLACK else self.standard


def message_of(incidents: Sequence[ClaimedIncident], ui_address: str) -> Message:
    """Make the message about incidents of one kind, all of them beginning or all of them over."""
    first = incidents[0]
    over = first.phase == "over"
    about = title(first.kind, [each.subject for each in incidents])
    happened = (each.over_at or each.began_at for each in incidents)
    listed = [
        {
            "incident_id": str(each.incident_id),
            "subject": each.subject,
            "title": title(each.kind, [each.subject]),
            "cause": each.cause,
            "remedy": each.remedy,
            "link": _link(each, ui_address),
            "began_at": _time(each.began_at),
            "over_at": each.over_at and _time(each.over_at),
            "came_back": each.flaps,
        }
        for each in incidents
    ]
    standard = {
        "type": f"incident.{first.phase}",
        "timestamp": _time(min(happened)),
        "data": {
            "kind": first.kind,
            "severity": first.severity,
            "title": f"Over: {about}" if over else about,
            "incidents": listed,
        },
    }
    lines = [f"{MARKS[first.phase]} *{_plain(f'Over: {about}' if over else about)}*"]
    for each in incidents[:SLACK_LISTED]:
        link = _link(each, ui_address)
        name = f"{_plain(each.subject)}: " if len(incidents) > 1 else ""
        if over:
            lines.append(f"{name}from {_clock(each.began_at)} to {_clock(each.over_at or each.began_at)}")
            continue
        lines += [f"{name}{_plain(cut(each.cause, SLACK_CAUSE))}", _plain(each.remedy)]
        lines += [f"<{link}|Open in the UI>"] if link else []
    if len(incidents) > SLACK_LISTED:
        # the command lists what is wrong, and not what is over
        lines.append(f"and {len(incidents) - SLACK_LISTED} more{'' if over else ': millrace alerts'}")
    return Message(named(first.message_id), _json(standard), _json({"text": "\n".join(lines)}))


def trial_message(message_id: UUID, now: datetime) -> Message:
    """Make the message that tries whether a receiver takes them."""
    text = "Millrace can send alerts here. Nothing is wrong: somebody ran `millrace alerts --test`."
    standard = {
        "type": "incident.test",
        "timestamp": _time(now),
        "data": {"kind": "test", "severity": "ticket", "title": text, "incidents": []},
    }
    return Message(named(message_id), _json(standard), _json({"text": f"{MARKS['test']} {_plain(text)}"}))


def named(message_id: UUID) -> str:
    """Return a message's `webhook-id`: no full stop is in it, for that separates what is signed."""
    return f"msg_{message_id.hex}"


def _link(incident: ClaimedIncident, ui_address: str) -> str | None:
    return f"{ui_address.rstrip('/')}{incident.page}" if incident.page and ui_address else None


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _plain(text: str) -> str:
    """Return a text in which Slack sees no link, no mention and no command: it takes these three characters only."""
    return clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
