"""The loop that looks for incidents and tells a receiver of them.

Belongs here: whose turn it is, which sources were read, sending what is due, going on after whatever breaks. Not here:
what is wrong (`standing`, Dagster's source), what is kept and when something is over (`sql/functions/alerts`), one
request (`receiver`).

Any number of alerters may run on one store: one at a time looks at a source, and each message is leased by who sends
it. It is sent once, unless its sender is killed before it could say so: then once more, with the same `webhook-id`. The
loop works on a connection of its own, in autocommit: no transaction is open while a receiver is asked.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import psycopg
from psycopg import errors

from millrace.resources.alerts.incidents import Finding, title
from millrace.resources.alerts.messages import message_of
from millrace.resources.alerts.receiver import AlertReceiver, AlertSettings
from millrace.resources.alerts.standing import SOURCE, Keys, found_in_store
from millrace.resources.alerts.store import AlertStore
from millrace.resources.connecting import connect
from millrace.resources.event_store import EventStore
from millrace.resources.showing import masked

# times in seconds
LOOK_EVERY_S = 15
TICK_S = 5.0
# what nobody sees any more for so long is over
HOLD_S = 120
# a try takes 10 s, and looking up a name may take some more
LEASE_S = 120
LONGEST_PAUSE_S = 60.0
ANSWER_S = 15.0
# so many messages are sent between two looks
MOST_AT_ONCE = 20
ALERTER = "alerter"

# a message, the token of its lease, and why it did not arrive
Sent = tuple[UUID, int, str | None]

logger = logging.getLogger(__name__)


class Unreadable(Exception):
    """A source cannot be read now; the text says why."""


class Source(Protocol):
    """Something beside the store that knows what is wrong."""

    name: str

    def found(self, known: Keys) -> list[Finding]:
        """Return what is wrong now; the causes of what is `known` are not needed.

        Raises:
            Unreadable: Nobody can say.
        """


class Alerter:
    """Looks and tells, on one connection.

    Args:
        connection: The event store, in autocommit, as a member of event_store_owner.
        receiver: Who is told.
        sources: What knows more than the store.
        every_s: How often somebody looks, in seconds.
        hold_s: For how long nobody must see what is over.
        unsettled: Tries that the store was not told of: a connection was lost.
    """

    def __init__(
        self,
        connection: psycopg.Connection,
        receiver: AlertReceiver,
        sources: Sequence[Source] = (),
        *,
        every_s: int = LOOK_EVERY_S,
        hold_s: int = HOLD_S,
        unsettled: list[Sent] | None = None,
    ) -> None:
        self._store, self._alerts = EventStore(connection), AlertStore(connection)
        self._receiver, self._sources = receiver, sources
        self._every_s, self._hold_s = every_s, hold_s
        self._unsettled = [] if unsettled is None else unsettled
        self._failing = ""

    def tick(self) -> None:
        """Look if it is our turn, and send what is due."""
        self._settle()
        if turns := self._alerts.claim_look(self._every_s, [*self._looks()]):
            self.look({each.source for each in turns}, turns[0].looked_at)
        self.send()

    def look(self, ours: Collection[str] | None = None, looked_at: datetime | None = None) -> int:
        """Read the sources that are `ours`, by default all; return how many incidents are open then.

        It began at `looked_at`, by the store's clock: what somebody saw who began later counts more.
        """
        known = {(each.kind, each.subject) for each in self._alerts.open_incidents() if each.over_at is None}
        found: list[Finding] = []
        read = []
        for name, look in self._looks().items():
            if ours is not None and name not in ours:
                continue
            # another alerter may know sources that this one does not: each has its own word on whether one is readable
            read.append(f"{ALERTER} of {name}")
            try:
                # a source that fails halfway has found nothing
                found += look(known)
            except Exception as error:
                if self._store.connection.closed:
                    raise
                found.append(Finding(read[-1], "unreadable", name, _why(error)))
            else:
                read.append(name)
        return self._alerts.observe_incidents([each.fields() for each in found], read, self._hold_s, looked_at)

    def send(self) -> None:
        """Send the messages that are due, until one does not arrive."""
        for _ in range(MOST_AT_ONCE):
            incidents = self._alerts.claim_alert(LEASE_S)
            if not incidents:
                return
            first = incidents[0]
            about = f"{first.phase}: {title(first.kind, [each.subject for each in incidents])}"
            delivery = self._receiver.send(message_of(incidents, self._receiver.settings.ui_address))
            self._unsettled.append((first.message_id, first.lease_token, delivery.error))
            self._settle()
            if delivery.delivered:
                logger.info("alert %s", about)
                self._failing = ""
                continue
            if delivery.said != self._failing:
                logger.warning("The alert %s is tried again, for it did not arrive: %s", about, delivery.said)
            self._failing = delivery.said
            # the next one would not arrive either; each has its turn, for this one waits longer now
            return

    def _settle(self) -> None:
        while self._unsettled:
            self._alerts.settle_alert(*self._unsettled[-1])
            self._unsettled.pop()

    def _looks(self) -> Mapping[str, Callable[[Keys], list[Finding]]]:
        return {SOURCE: self._found_in_store} | {each.name: each.found for each in self._sources}

    def _found_in_store(self, known: Keys) -> list[Finding]:
        return [*found_in_store(self._store, known)]


def run_alerter(
    dsn: str,
    stop: threading.Event,
    settings: AlertSettings,
    sources: Sequence[Source] = (),
    *,
    every_s: int = LOOK_EVERY_S,
    hold_s: int = HOLD_S,
    tick_s: float = TICK_S,
) -> None:
    """Look and tell until `stop` is set; outlast restarts of the server, and whatever else breaks."""
    pause_s, said = tick_s, ""
    unsettled: list[Sent] = []
    with AlertReceiver(settings) as receiver:
        if problem := receiver.problem():
            logger.warning("%s It is tried all the same.", problem)
        while not stop.is_set():
            try:
                with connected(dsn) as connection:
                    alerter = Alerter(
                        connection, receiver, sources, every_s=every_s, hold_s=hold_s, unsettled=unsettled
                    )
                    while not stop.is_set():
                        alerter.tick()
                        pause_s, said = tick_s, ""
                        stop.wait(tick_s)
            except Exception as error:  # noqa: BLE001  nobody else would tell that this loop ended
                reason = _said(error, dsn)
                if reason != said:
                    logger.warning("Alerts wait: %s", reason)
                said, pause_s = reason, min(pause_s * 2, LONGEST_PAUSE_S)
                stop.wait(pause_s)


def connected(dsn: str) -> psycopg.Connection:
    """Connect for calls that wait for nobody for long."""
    connection = connect(
        dsn,
        # beyond what the server itself allows a statement
        answer_s=ANSWER_S,
        application_name="millrace alerts",
    )
    connection.execute("set statement_timeout = '10s'")
    connection.execute("set lock_timeout = '5s'")
    return connection


def _why(error: Exception) -> str:
    """Say why a source cannot be read."""
    return str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"


def _said(error: Exception, dsn: str) -> str:
    text = masked(str(error).strip() or type(error).__name__, dsn)
    if isinstance(error, errors.InsufficientPrivilege):
        return f"{text}. They need a login that is a member of event_store_owner."
    if isinstance(error, errors.UndefinedFunction | errors.UndefinedTable | errors.InvalidSchemaName):
        return f"{text}. Run: millrace migrate"
    return text
