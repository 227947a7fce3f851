"""The command `millrace alerts`: what is wrong now, and whether a receiver would be told.

Belongs here: its options and how results look. Not here: sending alerts, which `millrace sequence` does
(`millrace.resources.alerts`).
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated
from uuid import uuid4

import typer
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, chosen_store
from millrace.platform_defs.cli.output import JsonOption, in_utc, print_json
from millrace.platform_defs.screen import Screen
from millrace.resources.alerts.store import AlertState, AlertStore, OpenIncident
from millrace.resources.settings import Settings

app = typer.Typer()


@app.command("alerts")
def alerts_command(
    test: Annotated[
        bool, typer.Option("--test", help="Send one message that says that nothing is wrong, and show the answer.")
    ] = False,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """List what is wrong now, with its first cause, and whether somebody was told."""
    if test:
        _test()
        return
    with chosen_store(dsn) as store:
        alerts = AlertStore(store.connection)
        incidents, state = alerts.open_incidents(), alerts.alert_state()
    if as_json:
        for each in incidents:
            print_json(asdict(each))
        return
    screen = Screen()
    blocks = [line for each in incidents for line in _block(each)] or ["There are no incidents."]
    for line in [*blocks, *_said(state, datetime.now(UTC))]:
        screen.print(Text(line), soft_wrap=True)


def _test() -> None:
    from millrace.resources.alerts.messages import trial_message
    from millrace.resources.alerts.receiver import AlertReceiver, BadAlertSettings, NotDelivered, alert_settings

    found = alert_settings(Settings())
    if found is None:
        raise BadAlertSettings(
            "MILLRACE_ALERT_URL is not set: there is nobody to send alerts to.",
            hint="Set it here as it is set for `millrace sequence`; docs/monitoring.md says what else there is.",
        )
    for warning in found.warnings:
        Screen(stderr=True).print(Text(warning, style="yellow"), soft_wrap=True)
    with AlertReceiver(found) as receiver:
        problem = receiver.problem()
        if problem is not None:
            raise NotDelivered(problem)
        delivery = receiver.send(trial_message(uuid4(), datetime.now(UTC)))
    if not delivery.delivered:
        raise NotDelivered(delivery.said)
    Screen().print(Text(delivery.said), soft_wrap=True)


def _said(state: AlertState, now: datetime) -> list[str]:
    """Say whether somebody looks, and whether messages arrive."""
    from millrace.resources.alerts.incidents import age

    if state.observed_at is None:
        return ["Nobody has ever looked: `millrace sequence` does where MILLRACE_ALERT_URL is set."]
    looked = f"Looked at {age((now - state.observed_at).total_seconds())} ago."
    if state.undelivered_since is None:
        return [looked]
    return [looked, f"A message has not arrived for {age((now - state.undelivered_since).total_seconds())}."]


def _block(incident: OpenIncident) -> list[str]:
    """Say what an incident is, in lines: a cause may be long."""
    from millrace.resources.alerts.incidents import title

    return [
        f"{title(incident.kind, [incident.subject])}",
        f"  {incident.severity}, since {in_utc(incident.began_at)} UTC: {_state(incident)}",
        *(f"  {line}" for line in [*incident.cause.splitlines(), incident.remedy]),
    ]


def _state(incident: OpenIncident) -> str:
    """Say what the receiver knows of an incident, and whether it is still seen."""
    if incident.over_at is not None:
        state = "over"
    elif incident.missing_since is not None:
        state = "seems over"
    else:
        state = "open"
    waits = "to be told" if incident.confirmed else "not told yet"
    told = waits
    if incident.told == "began":
        told = "told" if incident.over_at is None else "its end not told yet"
        if incident.undelivered:
            told = f"given up: {incident.last_error}" if incident.last_error else "given up"
    if incident.last_error is not None and incident.tries:
        told = f"in vain: {incident.last_error}"
    return f"{state}, {told}"
