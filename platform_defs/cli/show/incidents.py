"""The command `millrace show incidents`: what is wrong now, and whether a receiver would get an alert."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated
from uuid import uuid4

import typer
from rich.text import Text

from millrace.operations.alerts.findings import age
from millrace.operations.alerts.store import AlertStore, Incident
from millrace.platform_defs.cli.options import DsnOption, chosen_store
from millrace.platform_defs.cli.output import JsonOption, in_utc, print_json
from millrace.platform_defs.screen import Screen
from millrace.settings import Settings

app = typer.Typer()


@app.command("incidents")
def incidents_command(
    test: Annotated[
        bool, typer.Option("--test", help="Send one message that says that nothing is wrong, and show the answer.")
    ] = False,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """List what is wrong now, each with its first cause, and whether an alert was sent."""
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
    screen, now = Screen(), datetime.now(UTC)
    lines = [line for each in incidents for line in _block(each)] or ["There are no incidents."]
    if state.observed_at is None:
        lines.append("No look has happened yet: `millrace run sequencer` looks where MILLRACE_ALERT_URL is set.")
    else:
        lines.append(f"Looked at {age((now - state.observed_at).total_seconds())} ago.")
        if state.undelivered_since is not None:
            lines.append(f"A message has not arrived for {age((now - state.undelivered_since).total_seconds())}.")
    for line in lines:
        screen.print(Text(line), soft_wrap=True)


def _test() -> None:
    from millrace.operations.alerts.messages import trial_message
    from millrace.operations.alerts.receiver import AlertReceiver, BadAlertSettings, NotDelivered, alert_settings

    found = alert_settings(Settings())
    if found is None:
        raise BadAlertSettings(
            "MILLRACE_ALERT_URL is not set: alerts have no receiver.",
            hint="Set it here as it is set for `millrace run sequencer`; docs/monitoring.md says what else there is.",
        )
    for warning in found.warnings:
        Screen(stderr=True).print(Text(warning, style="yellow"), soft_wrap=True)
    with AlertReceiver(found) as receiver:
        problem = receiver.problem()
        if problem is not None:
            raise NotDelivered(problem)
        delivery = receiver.send(trial_message(uuid4(), datetime.now(UTC)))
    if not delivery.delivered:
        raise NotDelivered(delivery.outcome)
    Screen().print(Text(delivery.outcome), soft_wrap=True)


def _block(incident: Incident) -> list[str]:
    """Describe an incident and what the receiver knows of it, in lines: a cause may be long."""
    state = "over" if incident.over_at else "seems over" if incident.missing_since else "open"
    if incident.last_error is not None:
        delivery = f"in vain: {incident.last_error}"
    elif incident.told == "began":
        delivery = "its end not told yet" if incident.over_at else "told"
    else:
        delivery = "to be told" if incident.confirmed else "not told yet"
    return [
        incident.what,
        f"  {incident.severity}, since {in_utc(incident.began_at)} UTC: {state}, {delivery}",
        *(f"  {line}" for line in [*incident.cause.splitlines(), incident.remedy]),
    ]
