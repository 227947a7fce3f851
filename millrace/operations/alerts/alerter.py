"""The loop that looks for incidents and reports them to a receiver.

Any number of alerters may run on one store: an alerter claims a message for half a minute to send it. It is sent once,
unless its alerter is killed before it can record that, or stalls for longer: then once more, with the same
`webhook-id`. No transaction is open during a call to the receiver.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import errors

from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.findings import Source, StoreSource, unreadable
from millrace.operations.alerts.messages import message_of
from millrace.operations.alerts.receiver import (
    AlertReceiver,
    AlertSettings,
    BadAlertSettings,
    alert_settings,
    alert_summary,
)
from millrace.operations.alerts.store import AlertStore
from millrace.patience import ASK_S, BUSY_S, FAREWELL_S, PATIENCE_S, WATCH_S
from millrace.postgres.connecting import connect
from millrace.redact import masked
from millrace.settings import Settings

# a finding that is absent for this long is over
HOLD_S = 2 * PATIENCE_S

logger = logging.getLogger(__name__)


class Alerter:
    """Looks for incidents and reports them, on one connection.

    Args:
        connection: The event store, in autocommit, as a member of event_store_owner.
        receiver: The receiver of the messages.
        sources: Sources of findings beside the store.
        hold_s: How long a finding must be absent before it counts as over.
    """

    def __init__(
        self,
        connection: psycopg.Connection,
        receiver: AlertReceiver,
        sources: Sequence[Source] = (),
        *,
        hold_s: int = HOLD_S,
    ) -> None:
        self._connection, self._alerts = connection, AlertStore(connection)
        self._receiver, self._hold_s = receiver, hold_s
        self._sources = [StoreSource(PlatformStore(connection)), *sources]
        self._last_failure = ""

    def tick(self) -> None:
        """Look at each source, and send what is due."""
        self.observe()
        self.send()

    def observe(self) -> None:
        """Look at each source; a source that cannot be read ends nothing."""
        for source in self._sources:
            with self._connection.transaction():
                # takes this alerter's turn: it then sees everything that another alerter stored before
                self._alerts.observe_incidents(source.name, [], complete=False)
                try:
                    with self._connection.transaction():
                        found, complete = source.found(), True
                except Exception as error:
                    if self._connection.closed:
                        raise
                    found, complete = [unreadable(source.name, error)], False
                self._alerts.observe_incidents(source.name, [each.fields() for each in found], complete, self._hold_s)

    def send(self) -> None:
        """Send the due messages until one does not arrive; a limited number between two looks."""
        for _ in range(50):
            incident = self._alerts.claim_alert()
            if incident is None:
                return
            headline = f"{'began' if incident.told == 'nothing' else 'over'}: {incident.what}"
            delivery = self._receiver.send(message_of(incident, self._receiver.settings.ui_address))
            self._alerts.settle_alert(incident.incident_id, incident.told, delivery.error)
            if delivery.delivered:
                logger.info("alert %s", headline)
                self._last_failure = ""
                continue
            if delivery.outcome != self._last_failure:
                logger.warning("The alert %s is tried again, for it did not arrive: %s", headline, delivery.outcome)
            self._last_failure = delivery.outcome
            # the next one would not arrive either; each gets its turn, because this one now waits longer
            return


@contextmanager
def alerting(dsn: str, settings: Settings, sources: Sequence[Source]) -> Iterator[None]:
    """Send alerts beside other work, in their own thread, if the settings have a receiver; only log bad settings."""
    try:
        receiver_settings = alert_settings(settings)
    except BadAlertSettings as error:
        logger.warning("No alerts are sent. %s", error)
        receiver_settings = None
    if receiver_settings is None:
        yield
        return
    for warning in receiver_settings.warnings:
        logger.warning("%s", warning)
    logger.info("alerts go %s", alert_summary(settings))
    stop = threading.Event()
    # a daemon thread: a receiver, or a name that does not resolve, delays the end of the process by no more than this
    thread = threading.Thread(
        target=run_alerter, args=(dsn, stop, receiver_settings, sources), name="alerts", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(FAREWELL_S)


def run_alerter(
    dsn: str,
    stop: threading.Event,
    settings: AlertSettings,
    sources: Sequence[Source] = (),
    *,
    every_s: float = WATCH_S,
    hold_s: int = HOLD_S,
) -> None:
    """Look and send until `stop` is set; outlast restarts of the server and all other errors."""
    pause_s, last_reason = every_s, ""
    with AlertReceiver(settings) as receiver:
        if problem := receiver.problem():
            logger.warning("%s It is tried all the same.", problem)
        while not stop.is_set():
            try:
                with connected(dsn) as connection:
                    alerter = Alerter(connection, receiver, sources, hold_s=hold_s)
                    while not stop.is_set():
                        alerter.tick()
                        pause_s, last_reason = every_s, ""
                        stop.wait(every_s)
            except Exception as error:  # noqa: BLE001  else this loop would end in silence
                reason = masked(str(error).strip() or type(error).__name__, dsn)
                if isinstance(error, errors.InsufficientPrivilege):
                    reason += ". They need a login that is a member of event_store_owner."
                elif isinstance(error, errors.UndefinedFunction | errors.UndefinedTable | errors.InvalidSchemaName):
                    reason += ". Run: millrace migrate"
                if reason != last_reason:
                    logger.warning("Alerts wait: %s", reason)
                last_reason, pause_s = reason, min(pause_s * 2, PATIENCE_S)
                stop.wait(pause_s)


def connected(dsn: str) -> psycopg.Connection:
    """Connect for calls that wait only briefly for locks."""
    connection = connect(
        dsn,
        # longer than the server itself allows a statement
        answer_s=WATCH_S,
        application_name="millrace alerts",
    )
    connection.execute(f"set statement_timeout = '{BUSY_S}s'".encode())
    connection.execute(f"set lock_timeout = '{ASK_S}s'".encode())
    return connection
