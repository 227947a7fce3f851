"""What the event store says is wrong: late views, dead letters, gaps, quarantine, transactions that hold the log up.

Belongs here: reading, and the judgement by the thresholds of `incidents`. Not here: what Dagster knows
(`millrace.platform_defs.alerts`), telling somebody (`alerter`).
"""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from millrace.resources.alerts.incidents import (
    CAPTURE_IDLE_S,
    LATE_S,
    OLD_WRITER_S,
    SEQUENCER_HELD_S,
    SEQUENCER_IDLE_S,
    Finding,
    age,
)
from millrace.resources.alerts.store import AlertStore
from millrace.resources.capture.store import CaptureInfo, CaptureStore
from millrace.resources.event_store import EventStore, ViewInfo
from millrace.resources.read_models.store import ReadModelStore

SOURCE = "event_store"
# where the UI shows what the store is about
LOG_PAGE = "/assets/event_store/event_log?view=checks"
LOCKS_PAGE = "/assets/event_store/stream_locks?view=checks"
CHANGES_PAGE = "/assets/change_capture/wal_events?view=checks"
QUARANTINE_PAGE = "/assets/change_capture/change_events?view=checks"
SENSORS_PAGE = "/automation"

Keys = Collection[tuple[str, str]]


def found_in_store(store: EventStore, known: Keys) -> Iterator[Finding]:
    """Look at the event store; the causes of incidents that are known are not looked for again."""
    now = datetime.now(UTC)
    yield from _log(store, now)
    for view in store.view_info():
        yield from _view(store, view, known)
    for capture in CaptureStore(store.connection).capture_info():
        yield from _capture(store, capture, known, now)


def _since(time: datetime | None, now: datetime) -> float:
    return 0.0 if time is None else (now - time.astimezone(UTC)).total_seconds()


def _log(store: EventStore, now: datetime) -> Iterator[Finding]:
    holder = store.sequencer_holder()
    held = _since(holder.open_since if holder else None, now)
    if holder is not None and held > SEQUENCER_HELD_S:
        yield Finding(
            SOURCE,
            "log_held",
            f"process {holder.pid}",
            f"Process {holder.pid} of login {holder.login or 'unknown'} ({holder.application_name or 'no application name'})"
            f" holds the sequencer in a transaction that has been open for {age(held)}.",
            LOG_PAGE,
        )
    else:
        idle = _since(store.last_sequenced(), now)
        if idle > SEQUENCER_IDLE_S:
            yield Finding(
                SOURCE,
                "not_sequenced",
                "the log",
                f"Nobody has looked for new events for {age(idle)}: they have no position.",
                LOG_PAGE,
            )
    writer = store.oldest_writer()
    open_for = _since(writer.open_since if writer else None, now)
    if writer is not None and open_for > OLD_WRITER_S:
        who = f"process {writer.pid}" if writer.pid else f"the prepared transaction {writer.prepared}"
        yield Finding(
            SOURCE,
            "old_writer",
            who,
            f"It has written, and has been open for {age(open_for)}: {who} of login {writer.login or 'unknown'}"
            + (f" ({writer.application_name})." if writer.application_name else "."),
            LOG_PAGE,
        )


def _view(store: EventStore, view: ViewInfo, known: Keys) -> Iterator[Finding]:
    if view.enabled and view.lag_seconds > LATE_S:
        model, serves = _model_of(store, view.view)
        # a version that is being built is behind until it is built, and nobody reads it
        if serves or not view.consumers:
            yield _late(view, model if serves else None)
    if view.dead_letters:
        alerts = AlertStore(store.connection)
        cause = f"{view.dead_letters:,} streams wait for an operator."
        first = None if ("dead_letters", view.view) in known else alerts.first_dead_letter(view.view)
        if first is not None:
            cause = f"{first.decider} {first.decider_id} was given up after attempt {first.attempts}: {first.last_error or 'no reason given'}"
        yield Finding(SOURCE, "dead_letters", view.view, cause, LOCKS_PAGE)


def _late(view: ViewInfo, model: str | None) -> Finding:
    live = f"{view.consumers or 'No'} consumer{'s' * (view.consumers != 1)} of the view {view.view} live{'s' * (view.consumers == 1)}"
    return Finding(
        SOURCE,
        "late",
        model or view.view,
        f"{'' if view.exact else 'At least '}{view.lag:,} events wait, the oldest for {age(view.lag_seconds)}. {live};"
        f" {view.waiting:,} of its streams wait for a retry, {view.dead_letters:,} are dead letters.",
        f"/assets/read_models/{model}?view=checks" if model else SENSORS_PAGE,
    )


def _model_of(store: EventStore, view: str) -> tuple[str | None, bool]:
    """Return the read model that a view is consumed for, and whether people read this version of it."""
    models = ReadModelStore(store.connection)
    found = models.version_of_view(view)
    if found is None:
        return None, True
    return found.model, any(each.serves for each in models.model_versions(found.model) if each.version == found.version)


def _capture(store: EventStore, capture: CaptureInfo, known: Keys, now: datetime) -> Iterator[Finding]:
    name, captures = capture.capture, CaptureStore(store.connection)
    if capture.open_gaps:
        gaps = [] if ("gap", name) in known else captures.capture_gaps(name)
        reasons = [gap.reason for gap in reversed(gaps) if gap.resolved_by_generation is None]
        missing = f"{capture.open_gaps} ranges of changes are missing."
        yield Finding(SOURCE, "gap", name, reasons[0] if reasons else missing, CHANGES_PAGE)
    idle = _since(capture.stored_at, now)
    if capture.stored_at is not None and idle > CAPTURE_IDLE_S and not capture.open_gaps:
        cause = f"It has stored nothing for {age(idle)}, and reads slot {capture.slot}."
        yield Finding(SOURCE, "capture_idle", name, cause, CHANGES_PAGE)
    if capture.tables_stopped:
        tables = [] if ("stopped_table", name) in known else captures.captured_tables(name)
        why = next((f"{each.name}: {each.stopped_reason}" for each in tables if each.stopped_reason), None)
        cause = why or f"Of its tables, {capture.tables_stopped:,} cannot be captured."
        yield Finding(SOURCE, "stopped_table", name, cause, CHANGES_PAGE)
    waiting = capture.quarantined + capture.held
    if waiting:
        changes = [] if ("quarantine", name) in known else captures.quarantined_changes(name, limit=1)
        first = next((f"{each.decider} {each.decider_id}: {each.fault}" for each in changes if each.fault), None)
        cause = first or f"{waiting:,} changes wait for an operator."
        yield Finding(SOURCE, "quarantine", name, cause, QUARANTINE_PAGE)
