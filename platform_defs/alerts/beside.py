"""Alerts beside the sequencer: whether they are on, and the thread that sends them.

Belongs here: turning settings into a running alerter, or into a sentence why there is none; what `millrace up` knows is
wrong. Not here: what an alerter does (`millrace.resources.alerts.alerter`).
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.platform_defs.alerts.patient import DagsterSource
from millrace.platform_defs.local.supervisor import MARK, said_of_service, services_down
from millrace.resources.alerts.alerter import Source, run_alerter
from millrace.resources.alerts.incidents import Finding
from millrace.resources.alerts.receiver import AlertReceiver, BadAlertSettings, alert_settings
from millrace.resources.alerts.standing import Keys
from millrace.resources.settings import Settings

# how long the end of a process waits for a message that is under way
END_S = 2.0

logger = logging.getLogger(__name__)


class ServicesSource:
    """The services of the `millrace up` in a home: those that are not ready."""

    def __init__(self, home: Path) -> None:
        self._home = home
        # of two homes on one store each has its own word
        self.name = f"services of {home}"

    def found(self, _known: Keys) -> list[Finding]:
        """Return an incident for each service that is not ready."""
        down = services_down(self._home)
        return [Finding(self.name, "service", each.name, said_of_service(each)) for each in down]


@contextmanager
def alerts_beside(dsn: str, settings: Settings) -> Iterator[None]:
    """Send alerts beside other work, in a thread of their own, if the settings say where; bad ones are logged only."""
    try:
        found = alert_settings(settings)
    except BadAlertSettings as error:
        logger.warning("No alerts are sent. %s", error)
        found = None
    if found is None:
        yield
        return
    for warning in found.warnings:
        logger.warning("%s", warning)
    logger.info("alerts go %s", said_of_alerts(settings))
    # Dagster's storage tells at each start what its schema is made of
    logging.getLogger("alembic").setLevel(logging.WARNING)
    sources: list[Source] = [DagsterSource()] if os.environ.get("DAGSTER_HOME") else []
    if MARK in os.environ:
        # we are one of them
        sources.append(ServicesSource(settings.home))
    stop = threading.Event()
    # a daemon: a receiver, or a name that nobody knows, holds the end of the process up for no longer than this
    thread = threading.Thread(target=run_alerter, args=(dsn, stop, found, sources), name="alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(END_S)


def said_of_alerts(settings: Settings) -> str:
    """Say whether alerts are sent, and where to; of the URL, whose path may be a secret, only the host."""
    try:
        found = alert_settings(settings)
    except BadAlertSettings as error:
        return f"off: {error.message} {error.hint or ''}".strip()
    if found is None:
        return "off; set MILLRACE_ALERT_URL"
    with AlertReceiver(found) as receiver:
        signed = "signed" if found.secret else "not signed"
        return f"to {receiver.place} ({found.form}, {signed})"
