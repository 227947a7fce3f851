"""The metrics of an event store: its log, its sequencer, its views, producers, captures and alerts.

A scrape only reads, takes no lock that blocks another session, and gives up after some seconds. Its cost grows with the
lag of views, up to 5,000 events in all, and not with the log.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import psycopg
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from millrace.capture.store import CaptureInfo, CaptureStore
from millrace.event_store import PartitionInfo, ViewInfo
from millrace.event_store.following import as_of_now
from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.store import AlertStore
from millrace.operations.metrics.families import Samples, counter, gauge, seconds_since
from millrace.patience import ASK_S, POLL_S
from millrace.postgres.connecting import connect
from millrace.producers import ProducerStore
from millrace.redact import masked

# events that a scrape reads to count lags; a lag beyond it is "at least" this. It costs some 30 ms of the server.
COUNTED = 5_000

logger = logging.getLogger(__name__)


class StoreMetrics(Collector):
    """Collects the metrics of one event store over a connection that is kept, and replaced after it breaks.

    `millrace_up` is 0, and everything else missing, while the store does not answer.

    Args:
        dsn: The event store, as a role that may read it.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection | None = None
        self._turn = threading.Lock()
        self._was_up = True

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the store as they are now."""
        found: list[Metric] = []
        # if a scrape hangs, the next ones do not wait for it
        if self._turn.acquire(timeout=ASK_S):
            try:
                if self._connection is None or self._connection.closed:
                    # `answer_s` also ends a call on a server that is silent
                    self._connection = connect(self._dsn, answer_s=ASK_S, application_name="millrace metrics")
                    # a longer scrape is of no use to the monitoring
                    self._connection.execute(f"set statement_timeout = '{ASK_S}s'".encode())
                    self._connection.execute(f"set lock_timeout = '{POLL_S}s'".encode())
                connection = self._connection
                # all figures are from one moment
                with as_of_now(connection):
                    found = [*metrics_of(connection)]
            except psycopg.Error as error:
                self.close()
                if self._was_up:
                    logger.warning("metrics: %s", masked(str(error).strip(), self._dsn))
            finally:
                self._turn.release()
            self._was_up = bool(found)
        yield gauge("up", "Whether the event store answers.", [], [([], float(bool(found)))])
        yield from found

    def close(self) -> None:
        """Close the connection; the next scrape makes another one."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None


def metrics_of(connection: psycopg.Connection) -> Iterator[Metric]:
    """Return the metrics of an event store, in the order of the docs."""
    store = PlatformStore(connection)
    partitions = store.partition_info()
    yield from _log(partitions)
    yield from _sequencer(store)
    yield from _views(store.view_info(most=COUNTED), sum(partition.high_water_mark for partition in partitions))
    totals = ProducerStore(connection).producer_totals()
    yield gauge("producers", "Registered producers.", [], [([], totals.producers)])
    yield gauge("producer_open_messages", "Transactions begun and not settled.", [], [([], totals.open)])
    outcomes = ("committed", "duplicates", "refused", "aborted", "abandoned", "expired", "superseded")
    yield counter(
        "producer_messages",
        "Messages of all producers, by what became of them.",
        ["outcome"],
        [([outcome], getattr(totals, outcome)) for outcome in outcomes],
    )
    scheduled = store.scheduled_statistics()
    yield gauge("scheduled_waiting_events", "Scheduled events that wait.", [], [([], scheduled.waiting)])
    yield gauge("scheduled_refused_events", "Scheduled events that were refused.", [], [([], scheduled.refused)])
    yield gauge(
        "scheduled_overdue_seconds", "How long ago the next one was due.", [], [([], seconds_since(scheduled.next_at))]
    )
    yield gauge(
        "scheduled_late_seconds",
        "By how much 99 % of the last 1,000 came late at most.",
        [],
        [] if scheduled.late_s is None else [([], scheduled.late_s)],
    )
    yield from _captures(CaptureStore(connection).capture_info())
    yield gauge(
        "standing_seconds",
        "For how long something has been wrong, by what it is, of what, and how bad.",
        ["kind", "subject", "severity"],
        [([each.kind, each.subject, each.severity], seconds_since(each.since)) for each in store.standing(COUNTED)],
    )
    state = AlertStore(connection).alert_state()
    yield gauge(
        "alerts_idle_seconds",
        "Seconds since the last look for incidents.",
        [],
        [] if state.observed_at is None else [([], seconds_since(state.observed_at))],
    )
    yield gauge("alerts_open_incidents", "Incidents that are open.", [], [([], state.open_incidents)])
    yield gauge(
        "alerts_undelivered_seconds",
        "For how long the oldest message about them has been tried in vain.",
        [],
        [([], seconds_since(state.undelivered_since))],
    )


def _log(partitions: Sequence[PartitionInfo]) -> Iterator[Metric]:
    def samples(value: Callable[[PartitionInfo], float]) -> Samples:
        return [([str(partition.partition)], value(partition)) for partition in partitions]

    labels = ["partition"]
    yield counter(
        "log_positions",
        "Positions given in a log partition: its high-water mark.",
        labels,
        samples(lambda p: p.high_water_mark),
    )
    yield gauge(
        "log_earliest_position", "The first position that is kept.", labels, samples(lambda p: p.earliest_position)
    )
    yield gauge(
        "log_archived_position",
        "Up to before which position events are archived.",
        labels,
        samples(lambda p: p.archived_position),
    )
    yield gauge(
        "log_unarchived_seconds",
        "The age of the first event that is not archived; 0 if all are.",
        labels,
        samples(lambda p: seconds_since(p.unarchived_since)),
    )
    yield gauge("log_bytes", "Its share of the tables of events, in bytes.", labels, samples(lambda p: p.bytes))
    yield gauge(
        "log_idle_seconds",
        "How long ago the newest event was appended.",
        labels,
        samples(lambda p: seconds_since(p.last_activity)),
    )


def _sequencer(store: PlatformStore) -> Iterator[Metric]:
    yield gauge(
        "sequencer_idle_seconds",
        "Seconds since the last look for events without a position: new events wait that long.",
        [],
        [([], seconds_since(store.last_sequenced()))],
    )
    holder = store.sequencer_holder()
    yield gauge(
        "sequencer_held_seconds",
        "For how long the session with this pid has kept everybody from sequencing.",
        ["pid"],
        [] if holder is None else [([str(holder.pid)], seconds_since(holder.open_since))],
    )
    writer = store.oldest_writer()
    yield gauge(
        "oldest_writer_seconds",
        "For how long the oldest transaction that has written has been open, by pid or the name it was prepared under.",
        ["pid", "prepared"],
        [] if writer is None else [([str(writer.pid or ""), writer.prepared or ""], seconds_since(writer.open_since))],
    )


def _views(views: Iterable[ViewInfo], positions: int) -> Iterator[Metric]:
    rows = [*views]

    def samples(value: Callable[[ViewInfo], float]) -> Samples:
        return [([view.view, view.mode], value(view)) for view in rows]

    labels = ["view", "mode"]
    yield gauge("view_enabled", "Whether a view is given events.", labels, samples(lambda v: v.enabled))
    yield gauge("view_lag_events", "Events that a view wants and has not.", labels, samples(lambda v: v.lag))
    yield gauge(
        "view_lag_exact",
        "1 if these numbers are exact, 0 if they are lower bounds.",
        labels,
        samples(lambda v: v.exact),
    )
    yield gauge(
        "view_lag_seconds",
        "The age of the first of these that no dead letter holds.",
        labels,
        samples(lambda v: v.lag_seconds),
    )
    yield gauge(
        "view_position", "Positions of the log that a view has passed.", labels, samples(lambda v: positions - v.behind)
    )
    yield gauge("view_in_flight_streams", "Streams delivered and not answered.", labels, samples(lambda v: v.in_flight))
    yield gauge("view_waiting_streams", "Streams that wait for their next try.", labels, samples(lambda v: v.waiting))
    yield gauge("view_dead_letters", "Streams that were given up.", labels, samples(lambda v: v.dead_letters))
    yield gauge(
        "view_leased_partitions", "Log partitions leased to a consumer.", labels, samples(lambda v: v.leased_partitions)
    )
    yield gauge("view_consumers", "Consumers that live.", labels, samples(lambda v: v.consumers))


def _captures(captures: Sequence[CaptureInfo]) -> Iterator[Metric]:
    def samples(value: Callable[[CaptureInfo], float]) -> Samples:
        return [([capture.capture], value(capture)) for capture in captures]

    labels = ["capture"]
    yield gauge("capture_leased", "Whether a process works on a capture.", labels, samples(lambda c: c.leased))
    yield gauge(
        "capture_idle_seconds",
        "How long ago changes were stored.",
        labels,
        samples(lambda c: seconds_since(c.stored_at)),
    )
    yield gauge(
        "capture_waiting_changes", "Changes stored that are no events yet.", labels, samples(lambda c: c.unemitted)
    )
    yield gauge(
        "capture_quarantined_changes", "Changes that cannot be events.", labels, samples(lambda c: c.quarantined)
    )
    yield gauge(
        "capture_held_changes", "Changes behind a quarantined one of their row.", labels, samples(lambda c: c.held)
    )
    yield gauge("capture_open_gaps", "Ranges of changes that are missing.", labels, samples(lambda c: c.open_gaps))
    yield gauge(
        "capture_stopped_tables", "Tables that cannot be captured.", labels, samples(lambda c: c.tables_stopped)
    )
    yield gauge(
        "capture_tables_to_backfill",
        "Tables whose first rows are not all read.",
        labels,
        samples(lambda c: c.tables_to_backfill),
    )
