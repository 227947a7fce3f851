"""The form of a message, equal on every retry: the JSON of Standard Webhooks, or the text of Slack."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from millrace.operations.alerts.findings import clean, cut
from millrace.operations.alerts.store import Incident

STANDARD, SLACK = "standard", "slack"
FORMATS = (STANDARD, SLACK)
MARKS = {"began": ":red_circle:", "over": ":large_green_circle:", "test": ":white_circle:"}


@dataclass(frozen=True)
class Message:
    """A message: its id for the receiver, and its body in each format."""

    message_id: str
    standard: str
    slack: str

    def body(self, form: str) -> str:
        """Return the body in one of `FORMATS`."""
        return self.slack if form == SLACK else self.standard


def message_of(incident: Incident, ui_address: str) -> Message:
    """Make the due message about an incident: its beginning, or its end if its beginning was sent."""
    over_at = incident.over_at if incident.told == "began" else None
    phase, title = ("over", f"Over: {incident.what}") if over_at else ("began", incident.what)
    link = f"{ui_address.rstrip('/')}{incident.page}" if incident.page and ui_address else None
    standard = {
        "type": f"incident.{phase}",
        "timestamp": _time(over_at or incident.began_at),
        "data": {
            "incident_id": str(incident.incident_id),
            "kind": incident.kind,
            "subject": incident.subject,
            "severity": incident.severity,
            "title": title,
            "cause": incident.cause,
            "remedy": incident.remedy,
            "link": link,
            "began_at": _time(incident.began_at),
            "over_at": over_at and _time(over_at),
        },
    }
    lines = [f"{MARKS[phase]} *{_plain(title)}*"]
    if over_at:
        lines.append(f"from {_clock(incident.began_at)} to {_clock(over_at)}")
    else:
        # Slack limits texts
        lines += [_plain(cut(incident.cause, 700)), _plain(incident.remedy)]
        lines += [f"<{link}|Open in the UI>"] if link else []
    return Message(named(incident.incident_id, phase), _json(standard), _json({"text": "\n".join(lines)}))


def trial_message(message_id: UUID, now: datetime) -> Message:
    """Make the message that tests whether a receiver accepts messages."""
    text = "Millrace can send alerts here. Nothing is wrong: this is the message of `millrace show incidents --test`."
    data = {"kind": "test", "severity": "ticket", "title": text}
    standard = {"type": "incident.test", "timestamp": _time(now), "data": data}
    return Message(named(message_id, "test"), _json(standard), _json({"text": f"{MARKS['test']} {_plain(text)}"}))


def named(incident_id: UUID, phase: str) -> str:
    """Return a message's `webhook-id`; it has no full stop, because that separates the signed parts."""
    return f"msg_{incident_id.hex}_{phase}"


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _clock(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _plain(text: str) -> str:
    """Return a text in which Slack sees no link, no mention and no command: only these three characters start one."""
    return clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
