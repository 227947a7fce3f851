"""What is wrong as Dagster's own storage says it: runs and sensors that fail, breached checks, a dead daemon.

A check that shows a row of `standing.sql` is left to the store, which answers also while Dagster is dead.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import dagster as dg
from dagster import AssetCheckSeverity, DagsterEventType, DagsterRunStatus, RunRecord, RunsFilter

from millrace.assets.partitions import is_log_partition, log_partition_key, log_partition_of
from millrace.resources.alerts.findings import DAEMON_IDLE_S, Finding, age

# from when on something is wrong; times in seconds
QUEUED_S = 600
SENSOR_FAILURES = 5
# Names of `millrace.assets` and `millrace.platform_defs` whose modules import Spark: with them the sequencer's process
# would have 70 MB more. A test compares them.
ALL_CHECKS, SLOTS, DRAIN, VIEW_TAG = "apply_schema", "slots_are_healthy", "drain", "millrace/view"
DRAINED = dg.AssetKey(["consumption", "view_events"])
# what the store says itself, or what mends itself
LEFT_OUT = {
    "names_are_known", "no_dead_letters", "no_quarantined_changes", "log_is_not_held_up", "leases_are_in_time",
    "messages_are_settled", "lag_within_objective",
}  # fmt: skip
PARTITION_TAG = "dagster/partition"
RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
# what users call an asset's own run
OF_ASSETS = "__ASSET_JOB"
# what Dagster says where it gives a run up without a word
UNTOLD = "This run has been marked as failed from outside the execution context."
# Dagster keeps runs for a week (`prune`)
KEPT = timedelta(days=7)
# so many runs and evaluations are read at once, and so many failed runs are asked after in one look
PAGE, MOST_ASKED = 1000, 50
# so many ids of events before the last one are read anew: a lower id may be stored after a higher one. A run is stored
# a little after the time that it bears.
OVERLAP, RUN_OVERLAP = 1000, timedelta(minutes=1)
# a sensor whose last tick is older, and older than two of its own intervals, is not declared any more, or a schedule
SENSOR_GONE_S = 3600
SCHEDULE_GONE_S = 8 * 86_400
# a code location none of whose sensors ticked for so long, or for two intervals, does not load; after a day it was
# taken away
LOCATION_SILENT_S = 600
LOCATION_GONE_S = 86_400
INTERVALS = 2


class DagsterStanding:
    """What is wrong in one Dagster instance; for one thread at a time."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        # the newest failed run of each name that nothing mended, why runs failed, and up to when runs were read
        self._failed: dict[str, RunRecord] = {}
        self._causes: dict[str, str] = {}
        self._runs_to: datetime | None = None
        # the newest evaluation of each check with its time and its run, and how far they were read
        self._checks: dict[dg.AssetCheckKey, tuple[dg.AssetCheckEvaluation, float, str]] = {}
        self._read_to: int | None = None

    def found(self) -> list[Finding]:
        """Look once."""
        now = time.time()
        daemon = [*self._daemon(now)]
        return [
            *daemon,
            *self._queue(now),
            *self._automation(now, daemon_lives=not daemon),
            *self.failed_runs(),
            *self.breached_checks(),
        ]

    def _daemon(self, now: float) -> Iterator[Finding]:
        wanted = set(self._instance.get_required_daemon_types())
        beats = {name: beat.timestamp for name, beat in self._instance.get_daemon_heartbeats().items()}
        silent = {name: at for name, at in beats.items() if name in wanted and now - at > DAEMON_IDLE_S}
        if silent:
            yield Finding(
                "daemon",
                "dagster",
                "daemon",
                _at(min(silent.values())),
                "page",
                "Dagster's daemon is dead",
                f"No sign of life: {', '.join(f'{name} for {age(now - at)}' for name, at in sorted(silent.items()))}.",
                "Nothing is started meanwhile: no drain, no capture, no schedule. Start the service `daemon`; its log says"
                " why it ended.",
                "/deployment/daemons",
            )

    def _queue(self, now: float) -> Iterator[Finding]:
        queued = RunsFilter(statuses=[DagsterRunStatus.QUEUED])
        for record in self._instance.get_run_records(queued, limit=1, ascending=True):
            since = record.create_timestamp.timestamp()
            if now - since > QUEUED_S:
                yield Finding(
                    "queue",
                    "dagster",
                    "queue",
                    _at(since),
                    "ticket",
                    "Runs wait in Dagster's queue",
                    f"The oldest run, of {record.dagster_run.job_name}, has waited for {age(now - since)}.",
                    "Are runs at work that do not end? Terminate them in the UI, or let more run at once in dagster.yaml.",
                    "/runs",
                )

    def _automation(self, now: float, *, daemon_lives: bool) -> Iterator[Finding]:
        """Return sensors and schedules that fail, and the code locations none of whose sensors ticks."""
        # the class of types has no public name
        states = {s.selector_id: s for s in self._instance.all_instigator_state() if s.status.value != "STOPPED"}
        newest = self._instance.get_batch_ticks([*states], limit=2) if states else {}
        ticked = [(states[selector], ticks) for selector, ticks in newest.items() if ticks]
        silent = _silent_locations(ticked, now) if daemon_lives else {}
        for location, since in silent.items():
            yield Finding(
                "location",
                "dagster",
                location,
                _at(since),
                "page",
                f"The declarations in {location} do not load",
                f"None of its sensors has ticked for {age(now - since)}, though Dagster's daemon lives.",
                "Nothing of it is started meanwhile. The UI shows the error below Deployment; correct the declarations and"
                " reload them there. If it was taken away on purpose, this is over after a day.",
                "/deployment/locations",
            )
        for state, ticks in ticked:
            scheduled, failures = _is_schedule(state), ticks[0].consecutive_failure_count
            gone_s = SCHEDULE_GONE_S if scheduled else max(SENSOR_GONE_S, INTERVALS * _interval(state))
            # while its location is silent nobody knows better
            if daemon_lives and _location(state) not in silent and now - ticks[0].timestamp > gone_s:
                continue
            if failures < (1 if scheduled else SENSOR_FAILURES):
                continue
            error = next((tick.tick_data.error for tick in ticks if tick.tick_data.error), None)
            name = f"the {'schedule' if scheduled else 'sensor'} {state.instigator_name}"
            yield Finding(
                "sensor",
                "dagster",
                name,
                None,
                "ticket",
                f"{name} fails again and again",
                f"{failures} ticks failed in a row. {_first_cause(error)}",
                "Its ticks in the UI, below Automation, have the error.",
                f"/automation?search={quote(state.instigator_name)}",
            )

    def failed_runs(self) -> Iterator[Finding]:
        """Return the newest failed run of each name within a week, unless a run did since what it had to do."""
        oldest = datetime.now(UTC) - KEPT
        since = oldest if self._runs_to is None else max(oldest, self._runs_to - RUN_OVERLAP)
        new: dict[str, RunRecord] = {}
        for record in self._records(RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=since)):
            self._runs_to = max(self._runs_to or oldest, record.update_timestamp)
            # the newest come first
            new.setdefault(named(record.dagster_run), record)
        self._failed |= new
        ids = [record.dagster_run.run_id for record in self._failed.values()]
        # somebody may have removed one
        there = self._records(RunsFilter(run_ids=ids, updated_after=oldest)) if ids else ()
        kept = {record.dagster_run.run_id for record in there}
        self._failed = {name: each for name, each in self._failed.items() if each.dagster_run.run_id in kept}
        # where there are more than are asked after in one look, each has its turn in the end
        for name in random.sample([*self._failed], min(len(self._failed), MOST_ASKED)):
            if self._is_mended(self._failed[name]):
                del self._failed[name]
        self._causes = {
            run_id: self._causes.get(run_id) or self._why(run_id) for run_id in map(_run_id, self._failed.values())
        }
        for name, record in self._failed.items():
            yield Finding(
                "run",
                "dagster",
                name,
                record.update_timestamp,
                "ticket",
                f"The run {name} failed",
                self._causes[_run_id(record)],
                "Its page in the UI has the cause and the log; run it again there once the cause is repaired.",
                f"/runs/{_run_id(record)}",
            )

    def _records(self, wanted: RunsFilter) -> Iterator[RunRecord]:
        cursor: str | None = None
        while page := self._instance.get_run_records(wanted, limit=PAGE, cursor=cursor):
            yield from page
            cursor = page[-1].dagster_run.run_id

    def _is_mended(self, failed: RunRecord) -> bool:
        """Say whether a run of this name succeeded since, or all that it was to build was built since."""
        run, since = failed.dagster_run, failed.update_timestamp
        tags = {
            tag: run.tags[tag] for tag in (VIEW_TAG, PARTITION_TAG, *RANGE_TAGS) if tag in run.tags and named_by(run)
        }
        succeeded = RunsFilter(
            job_name=run.job_name, statuses=[DagsterRunStatus.SUCCESS], tags=tags, updated_after=since
        )
        if any(named(each.dagster_run) == named(run) for each in self._instance.get_run_records(succeeded, limit=PAGE)):
            return True
        assets = [DRAINED] if run.job_name == DRAIN else [*(run.asset_selection or ())]
        partitions = partitions_of(run)
        return bool(assets and partitions) and all(
            partitions <= {record.partition_key for record in self._built(asset, partitions, since)} for asset in assets
        )

    def _built(self, asset: dg.AssetKey, partitions: set[str], since: datetime) -> Sequence[dg.EventLogRecord]:
        wanted = dg.AssetRecordsFilter(asset, asset_partitions=[*partitions], after_timestamp=since.timestamp())
        return self._instance.fetch_materializations(wanted, limit=PAGE).records

    def _why(self, run_id: str) -> str:
        """Return the first error of a step; else what ended the run; else the last error that Dagster met with it."""
        kinds = {DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE, DagsterEventType.ENGINE_EVENT}
        events = [event for entry in self._instance.all_logs(run_id, of_type=kinds) if (event := entry.dagster_event)]
        steps = [event.step_failure_data.error for event in events if event.is_step_failure]
        ended = [event for event in events if event.is_job_failure]
        errors = [event.job_failure_data.error for event in ended if event.event_specific_data]
        met = [event.engine_event_data.error for event in reversed(events) if event.is_engine_event]
        said = [event.message for event in ended if event.message not in {None, UNTOLD}]
        causes = [*map(_first_cause, [*steps, *errors]), *said, *map(_first_cause, met)]
        return next(filter(None, causes), "It says no reason.")

    def breached_checks(self) -> Iterator[Finding]:
        """Return the checks whose newest evaluation failed, if the store does not say the same."""
        self._read_evaluations()
        failing = {key: seen for key, seen in self._checks.items() if not seen[0].passed}
        whole = self._last_of_all_checks() if failing else None
        for key, (evaluation, at, run_id) in failing.items():
            # all checks ran since, and this one was not there: it is not declared any more
            if whole is None or at >= (whole.start_time or 0) or run_id == _run_id(whole):
                yield from of_check(key, evaluation, at)

    def _read_evaluations(self) -> None:
        """Keep the newest evaluation of each check: of all that are stored at first, then of those since."""
        cursor = None if self._read_to is None else max(self._read_to - OVERLAP, 0)
        wanted = dg.EventRecordsFilter(event_type=DagsterEventType.ASSET_CHECK_EVALUATION, after_cursor=cursor)
        while True:
            records = self._instance.event_log_storage.get_event_records(wanted, limit=PAGE, ascending=True)
            for record in records:
                entry = record.event_log_entry
                if (event := entry.dagster_event) is not None:
                    evaluation = event.asset_check_evaluation_data
                    # read anew in the order of their ids, the newest comes last again
                    self._checks[evaluation.asset_check_key] = (evaluation, record.timestamp, entry.run_id)
                self._read_to = max(self._read_to or 0, record.storage_id)
            if len(records) < PAGE:
                return
            wanted = wanted._replace(after_cursor=records[-1].storage_id)

    def _last_of_all_checks(self) -> RunRecord | None:
        """Return the newest run of the whole job that runs every check: no run of a part of it, nor of what failed."""
        wanted = RunsFilter(job_name=ALL_CHECKS, statuses=[DagsterRunStatus.SUCCESS])
        for record in self._instance.get_run_records(wanted, limit=20):
            run = record.dagster_run
            if not any((run.asset_selection, run.asset_check_selection, run.op_selection, run.parent_run_id)):
                return record
        return None


def of_check(key: dg.AssetCheckKey, evaluation: dg.AssetCheckEvaluation, at: float) -> Iterator[Finding]:
    """Say what a breached check means, if the store does not."""
    page = f"/assets/{'/'.join(quote(part, safe='') for part in key.asset_key.path)}?view=checks"
    values: Mapping[str, Any] = {label: value.value for label, value in evaluation.metadata.items()}
    if key.name in LEFT_OUT:
        return
    if key.name == SLOTS and isinstance(values.get("problems"), Mapping):
        # the store has those as a problem of their own
        stopped = _listed(values.get("stopped_tables", []))
        for capture, problems in values["problems"].items():
            if left := [str(problem) for problem in _listed(problems) if problem not in stopped]:
                yield Finding(
                    "slot",
                    "capture",
                    str(capture),
                    _at(at),
                    "page",
                    f"The slot of the capture {capture} is in trouble",
                    "; ".join(left),
                    "`millrace capture status` has the problem and its remedy. A slot that nobody reads fills its source's"
                    " disk.",
                    page,
                )
        return
    told = "; ".join(f"{label}: {value}" for label, value in values.items())
    said = " ".join(filter(None, [evaluation.description, told])) or "It says no more."
    name = f"{key.name} of {key.asset_key.to_user_string()}"
    grave = "" if evaluation.severity is AssetCheckSeverity.ERROR else "A warning. "
    remedy = "The check in the UI has its figures; docs/operating.md says what helps."
    yield Finding(
        "check", "dagster", name, _at(at), "ticket", f"The check {name} is breached", grave + said, remedy, page
    )


def named(run: dg.DagsterRun) -> str:
    """Return what tells runs apart: the job or the assets, and which view, day or log partitions they are of."""
    selected = ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ()))
    what = f"of {selected}" if run.job_name == OF_ASSETS else run.job_name
    part = named_by(run)
    return f"{what} ({part})" if part else what


def named_by(run: dg.DagsterRun) -> str | None:
    """Return the view, the day or the log partitions that a run is named by."""
    first, last = (run.tags.get(tag) for tag in RANGE_TAGS)
    part = run.tags.get(VIEW_TAG) or run.tags.get(PARTITION_TAG)
    # the hourly run of a job takes what is there: its next success does what this one did not
    if part is None and first is not None and run.job_name == OF_ASSETS:
        return first if first == last else f"{first} to {last}"
    return part


def partitions_of(run: dg.DagsterRun) -> set[str]:
    """Return the partitions that somebody asked for in a run; none where nobody can say which these are."""
    one = run.tags.get(PARTITION_TAG)
    first, last = (run.tags.get(tag, one) for tag in RANGE_TAGS)
    if first and last and first != last and is_log_partition(first) and is_log_partition(last):
        return {log_partition_key(number) for number in range(log_partition_of(first), log_partition_of(last) + 1)}
    return {first} if first and first == last else set()


def _silent_locations(ticked: Sequence[tuple[Any, Sequence[Any]]], now: float) -> dict[str, float]:
    """Return the code locations none of whose sensors ticks, and since when."""
    last: dict[str, float] = {}
    shortest: dict[str, float] = {}
    for state, ticks in ticked:
        if not _is_schedule(state):
            location = _location(state)
            last[location] = max(last.get(location, 0.0), ticks[0].timestamp)
            shortest[location] = min(shortest.get(location, float("inf")), _interval(state))
    promised = {location: max(LOCATION_SILENT_S, INTERVALS * interval) for location, interval in shortest.items()}
    return {location: at for location, at in last.items() if 0 < now - at - promised[location] <= LOCATION_GONE_S}


def _location(state: Any) -> str:  # noqa: ANN401 - the type has no public name, here and below
    return str(state.origin.repository_origin.code_location_origin.location_name)


def _is_schedule(state: Any) -> bool:  # noqa: ANN401
    return bool(state.instigator_type.value == "SCHEDULE")


def _interval(state: Any) -> float:  # noqa: ANN401
    return getattr(state.instigator_data, "min_interval", None) or 0


def _run_id(record: RunRecord) -> str:
    return record.dagster_run.run_id


def _at(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)


def _listed(problems: object) -> Sequence[object]:
    return problems if isinstance(problems, Sequence) and not isinstance(problems, str) else [problems]


def _first_cause(error: Any) -> str:  # noqa: ANN401
    """Return what was wrong at first: Dagster wraps an error in others."""
    while error is not None and error.cause is not None:
        error = error.cause
    return "" if error is None else str(error.message).strip()
