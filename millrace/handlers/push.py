"""Pushes the events of a rows view to its URL by HTTP POST, many streams at once.

| answer                        | meaning                   | what becomes of the event                             |
|-------------------------------|---------------------------|-------------------------------------------------------|
| 2xx                           | taken                     | acknowledged                                          |
| 410                           | no events any more        | given back; the view is disabled                      |
| 4xx but 408, 410, 425 and 429 | this event is refused     | failed: sent again, later each time, then dead letter |
| any other, a redirect, none   | the receiver is not there | given back for a later try, however often             |

A receiver pauses its pushes by Retry-After with a 429 or 503. After some unanswered deliveries in a row, one delivery
at a time probes whether the receiver is back, with growing pauses up to a minute.

Pushes of a view with a secret are signed as Standard Webhooks says: `webhook-id` is the event's id, the same for each
retry. The receiver may see an event again, but never out of its stream's order.

A view with `push_unseal` is sent opened values. An answer may repeat them, so of it only the status is kept.

Not here: where pushes may go and how a push is sent (`receivers`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import psycopg

from millrace.errors import InvalidSetting, MillraceError, TryLater
from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from millrace.handlers.bodies import FORMS, traceparent_of
from millrace.handlers.consumer import Consumer
from millrace.handlers.declaration import Refused, Subscription, Told
from millrace.handlers.receivers import Allowed, Answer, Endpoint
from millrace.handlers.store import PushStore
from millrace.patience import AWAY_S, BUSY_S, PATIENCE_S
from millrace.personal.sealer import Sealer
from millrace.postgres.connecting import connect
from millrace.signing import signed

RETRY_MS = 5_000
# streams at once
CONCURRENCY = 16
# the longest Retry-After that counts
LONGEST_PAUSE_S = 3600.0
# answers 4xx that say "later", not "never"
NOT_NOW = {408, 425, 429}
# answers with a Retry-After of the receiver, and not of one event
BUSY = {429, 503}
# after this many unanswered deliveries in a row, one delivery at a time probes
DEAD_AFTER = 5
# no answer, or the answer of a proxy in front of a receiver that is away
AWAY = {0, 502, 503, 504}


class NotThere(TryLater, Told):
    """The receiver is not there; the store keeps this text unchanged."""


@dataclass
class PushReport:
    """The work of a push: events that were acknowledged, and the seconds that it took."""

    events: int = 0
    busy_s: float = 0.0


def push_events(
    dsn: str,
    view: str,
    *,
    budget_s: float,
    idle_s: float,
    allowed: Sequence[str] = (),
    on_failure: Callable[[str], None] = lambda _: None,
    concurrency: int = CONCURRENCY,
    owner: str | None = None,
    keys: Path | None = None,
) -> PushReport:
    """Deliver events until nothing came for `idle_s` or the budget of seconds is used up.

    Args:
        dsn: The event store.
        view: A rows view with a URL.
        budget_s: How long events are delivered at most.
        idle_s: How long no event must have come.
        allowed: Networks and hosts that pushes may go to, in addition to public addresses.
        on_failure: Called with the answer's text of the first deliveries that fail, which the store does not keep.
        concurrency: How many streams are delivered at once.
        owner: The name of its attachment to the view; None for a generated one.
        keys: The folder of the keys of personal data, for a view that is sent opened values.

    Raises:
        MillraceError: The view has no URL.
        UnknownView: The view is not registered.
        InvalidSetting: The view is sent opened values, and there are no keys.
    """
    with connect(dsn) as connection:
        row = next(iter(PlatformStore(connection).poll_views([view])), None)
        if row is None or not row.edge_function_url:
            raise MillraceError(
                f"View {view} has nothing to drain it into.",
                detail="It is no view of a declared read model, and not registered with an edge_function_url.",
                hint="Declare a read model for it, or register it with a URL.",
            )
        options = PushStore(connection).push_options(view)
    if options.push_unseal and keys is None:
        raise InvalidSetting(f"View {view} is sent opened values, and MILLRACE_KEYS is not set where it is drained.")
    sealer = Sealer.from_folder(keys) if keys and options.push_unseal else None
    url, form = options.edge_function_url or "", options.push_format
    pusher = Pusher(dsn, view, url, Allowed(allowed), on_failure, form, unseal=options.push_unseal)
    # a delivery may take the timeout twice, to connect and for the rest, and a name is looked up before
    consumer = Consumer(
        dsn,
        Subscription(
            pusher.deliver,
            view,
            concurrency=concurrency,
            # the view's own value may be shorter than one delivery
            lock_timeout_s=PATIENCE_S,
            timeout_s=max(PATIENCE_S, 4 * BUSY_S),
            upcast=options.push_upcast,
        ),
        name=owner,
        sealer=sealer,
        opens_text=True,
    )
    stop, began = threading.Event(), time.monotonic()
    faults: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(stop)
        except BaseException as error:  # noqa: BLE001 - raised below
            faults.append(error)

    running = threading.Thread(target=run, name=f"push {view}", daemon=True)
    running.start()
    try:
        while running.is_alive() and not _is_over(consumer, pusher, began, budget_s, idle_s):
            running.join(0.02)
    finally:
        stop.set()
        running.join()
        pusher.close()
    if faults:
        raise faults[0]
    return PushReport(consumer.counters.handled, pusher.busy_until - began if consumer.counters.leased else 0.0)


def _is_over(consumer: Consumer, pusher: "Pusher", began: float, budget_s: float, idle_s: float) -> bool:
    now, idle_since = time.monotonic(), consumer.idle_since
    return now - began >= budget_s or pusher.gone or (idle_since is not None and now - idle_since >= idle_s)


class Pusher:
    """Sends events to a URL, from many threads; each has a connection of its own.

    Attributes:
        gone: Whether the receiver wants no more events.
        busy_until: When the last delivery ended.
    """

    def __init__(
        self,
        dsn: str,
        view: str,
        url: str,
        allowed: Allowed,
        on_failure: Callable[[str], None],
        form: str = "json",
        *,
        unseal: bool = False,
    ) -> None:
        self._type, self._body = FORMS[form]
        self._dsn, self._view, self._url, self._allowed = dsn, view, url, allowed
        self._on_failure, self._unseal = on_failure, unseal
        self._local = threading.local()
        self._endpoints: list[Endpoint] = []
        self._failures = 0
        self._lock = threading.Lock()
        self._not_before = 0.0
        # unanswered deliveries in a row; when the next probe may be sent, and how long the one after waits
        self._unanswered, self._probe_at, self._probe_s = 0, 0.0, RETRY_MS / 1000
        self._secrets_lock = threading.Lock()
        self._secrets: list[str] = []
        self._read_again_at = 0.0
        self.gone = False
        self.busy_until = time.monotonic()

    def deliver(self, event: Delivery) -> None:
        """Send an event; turn the answer into an outcome for the consumer.

        Raises:
            Refused: The receiver refuses the event.
            NotThere: The receiver is not there.
        """
        pause, is_probe = self._pause()
        if self.gone or pause > 0:
            raise NotThere("The receiver is away, or asked for a pause.", after_s=max(pause, RETRY_MS / 1000))
        body = self._body(event).encode()
        endpoint: Endpoint | None = getattr(self._local, "endpoint", None)
        if endpoint is None:
            endpoint = self._local.endpoint = Endpoint(self._url, self._allowed)
            self._endpoints.append(endpoint)
        answer = endpoint.post(body, self._headers(event, body), BUSY_S)
        if self._unseal:
            answer = answer.status_only()
        self.busy_until = time.monotonic()
        self._count_answer(away=answer.status in AWAY, is_probe=is_probe)
        if answer.status // 100 == 2:
            return
        with self._lock:
            self._failures += 1
            if self._failures <= 20:  # Dagster keeps each
                self._on_failure(
                    f"{event.decider} {event.decider_id}, offset {event.offset}: {answer.error}: {answer.body_text}"
                )
        if answer.status == 410:
            self._disable(answer)
        elif answer.status // 100 == 4 and answer.status not in NOT_NOW:
            raise Refused(answer.error)
        after_s = RETRY_MS / 1000
        if answer.status in BUSY and (requested_s := seconds_of(answer.retry_after)) is not None:
            after_s = min(requested_s, LONGEST_PAUSE_S)
            self._not_before = time.monotonic() + after_s
        raise NotThere(answer.error, after_s=after_s)

    def _pause(self) -> tuple[float, bool]:
        """Return how long to wait before sending, and whether this delivery is a probe, for which the others wait."""
        with self._lock:
            now = time.monotonic()
            pause = max(self._not_before, self._probe_at) - now
            is_probe = pause <= 0 and self._unanswered >= DEAD_AFTER
            if is_probe:
                # connecting and answering have a timeout each
                self._probe_at = now + 2 * BUSY_S
            return pause, is_probe

    def _count_answer(self, *, away: bool, is_probe: bool) -> None:
        with self._lock:
            if not away:
                self._unanswered, self._probe_at, self._probe_s = 0, 0.0, RETRY_MS / 1000
                return
            self._unanswered += 1
            # of the deliveries under way at once, only the first counts
            if is_probe or self._unanswered == DEAD_AFTER:
                self._probe_at = time.monotonic() + self._probe_s
                self._probe_s = min(2 * self._probe_s, PATIENCE_S)

    def close(self) -> None:
        """End all connections."""
        for endpoint in self._endpoints:
            endpoint.close()

    def _headers(self, event: Delivery, body: bytes) -> dict[str, str]:
        message_id = str(event.event_id)
        headers = {"Content-Type": self._type, "webhook-id": message_id}
        if (trace := traceparent_of(event)) is not None:
            headers["traceparent"] = trace
        with self._secrets_lock:
            if time.monotonic() >= self._read_again_at:
                try:
                    with connect(self._dsn) as connection:
                        self._secrets = PushStore(connection).push_secrets(self._view)
                except psycopg.OperationalError as error:
                    # nothing is sent unsigned, and the event is not at fault
                    raise NotThere("The store does not say what to sign with.", after_s=RETRY_MS / 1000) from error
                self._read_again_at = time.monotonic() + AWAY_S
            secrets = self._secrets
        return headers | signed(message_id, body, secrets) if secrets else headers

    def _disable(self, answer: Answer) -> None:
        with self._lock:
            if self.gone:
                return
            self.gone = True
            try:
                with connect(self._dsn) as connection:
                    PlatformStore(connection).enable_view(
                        self._view, False, reason=f"Its receiver is gone: {answer.error}"
                    )
            except (MillraceError, psycopg.Error) as error:
                # the next drain gets that answer again; the event is not at fault
                self._on_failure(
                    f"The receiver of view {self._view} wants no more, and the view cannot be disabled: {error}."
                    " A member of event_store_owner can: millrace view disable."
                )


def seconds_of(retry_after: str) -> float | None:
    """Return the seconds that a Retry-After asks for, as a number or as a time; None for any other text."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    try:
        until = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return None
    return max((until - datetime.now(UTC)).total_seconds(), 0.0) if until.tzinfo else None
