"""What Dagster's own storage says is wrong: runs and sensors that fail, breached checks, a dead daemon.

Belongs here: reading the storage, and the judgement. Not here: what the event store says
(`millrace.resources.alerts.standing`), telling somebody (`millrace.resources.alerts.alerter`), how long the storage is
waited for (`patient`).

A check of `millrace.platform_defs.checks` that only counts what the store says is left to the store, which answers also
while Dagster is dead.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import dagster as dg
from dagster import AssetCheckSeverity, DagsterEventType, DagsterRunStatus, RunRecord, RunsFilter

from millrace.platform_defs.alerts.runs import FailedRuns, first_cause
from millrace.resources.alerts.incidents import (
    DAEMON_IDLE_S,
    QUEUED_S,
    SENSOR_FAILURES,
    Finding,
    age,
)
from millrace.resources.alerts.standing import Keys

SOURCE = "dagster"
# Names of `millrace.assets.consumption`, `jobs` and `sensors`, which import Spark: with them the sequencer's process
# would have 70 MB more. A test compares them.
LAG_CHECK = "lag_within_objective"
ALL_CHECKS = "apply_schema"
# what the store says itself, or what mends itself
LEFT_OUT = {"names_are_known", "no_dead_letters", "no_quarantined_changes", "log_is_not_held_up", "leases_are_in_time"}
SLOTS = "slots_are_healthy"
# so many evaluations are read at once; and so many ids of events before the last one are read anew
EVALUATIONS = 1000
OVERLAP = 1000
# so many of the newest runs of all checks are looked at
FEW = 20
# a sensor whose last tick is older, and older than two of its own intervals, is not declared any more, or a schedule
SENSOR_GONE_S = 3600
SCHEDULE_GONE_S = 8 * 86_400
# a code location none of whose sensors ticked for so long, or for two intervals, does not load; after a day it was
# taken away
LOCATION_SILENT_S = 600
LOCATION_GONE_S = 86_400
INTERVALS = 2


@dataclass(frozen=True)
class _Evaluated:
    """The newest evaluation of a check: what it said, when, and in which run."""

    evaluation: dg.AssetCheckEvaluation
    at: float
    run_id: str


class _Automation:
    """A sensor or a schedule that is on, and its newest ticks, the last one first; times in seconds."""

    def __init__(self, state: Any, ticks: Sequence[Any]) -> None:  # noqa: ANN401 - types without a public name
        self.name, self.ticks = state.instigator_name, ticks
        self.location = state.origin.repository_origin.code_location_origin.location_name
        self.scheduled = state.instigator_type.value == "SCHEDULE"
        self.interval_s = getattr(state.instigator_data, "min_interval", None) or 0
        self.ticked_at = ticks[0].timestamp
        self.failures = ticks[0].consecutive_failure_count

    @property
    def gone_s(self) -> float:
        """After how long without a tick it is not declared any more."""
        return SCHEDULE_GONE_S if self.scheduled else max(SENSOR_GONE_S, INTERVALS * self.interval_s)


def _silent_locations(automations: Sequence[_Automation], now: float) -> Iterator[tuple[str, float]]:
    """Return the code locations none of whose sensors ticks, and for how long."""
    sensors: dict[str, list[_Automation]] = {}
    for each in automations:
        if not each.scheduled:
            sensors.setdefault(each.location, []).append(each)
    for location, of_it in sensors.items():
        silent_s = now - max(each.ticked_at for each in of_it)
        promised_s = max(LOCATION_SILENT_S, INTERVALS * min(each.interval_s for each in of_it))
        if promised_s < silent_s <= promised_s + LOCATION_GONE_S:
            yield location, silent_s


class DagsterStanding:
    """What is wrong in one Dagster instance; for one thread at a time."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._runs = FailedRuns(instance)
        # the newest evaluation of each check, and how far they were read
        self._checks: dict[dg.AssetCheckKey, _Evaluated] = {}
        self._read_to: int | None = None

    def found(self, known: Keys) -> list[Finding]:
        """Look once."""
        now = time.time()
        daemon = [*self._daemon(now)]
        return [
            *daemon,
            *self._queue(now),
            *self._automation(now, daemon_lives=not daemon),
            *self._runs.found(SOURCE, known),
            *self._breached(),
        ]

    def _daemon(self, now: float) -> Iterator[Finding]:
        wanted = set(self._instance.get_required_daemon_types())
        silent = {
            name: now - beat.timestamp
            for name, beat in self._instance.get_daemon_heartbeats().items()
            if name in wanted and now - beat.timestamp > DAEMON_IDLE_S
        }
        if silent:
            told = ", ".join(f"{name} for {age(idle)}" for name, idle in sorted(silent.items()))
            yield Finding(SOURCE, "daemon", "daemon", f"No sign of life: {told}.", "/deployment/daemons")

    def _queue(self, now: float) -> Iterator[Finding]:
        queued = RunsFilter(statuses=[DagsterRunStatus.QUEUED])
        for record in self._instance.get_run_records(queued, limit=1, ascending=True):
            waits = now - record.create_timestamp.timestamp()
            if waits > QUEUED_S:
                yield Finding(
                    SOURCE,
                    "queue",
                    "queue",
                    f"The oldest run, of {record.dagster_run.job_name}, has waited for {age(waits)}.",
                    "/runs",
                )

    def _automation(self, now: float, *, daemon_lives: bool) -> Iterator[Finding]:
        # the class of types has no public name
        states = {s.selector_id: s for s in self._instance.all_instigator_state() if s.status.value != "STOPPED"}
        newest = self._instance.get_batch_ticks([*states], limit=2) if states else {}
        automations = [_Automation(states[selector], ticks) for selector, ticks in newest.items() if ticks]
        silent = dict(_silent_locations(automations, now)) if daemon_lives else {}
        for location, silent_s in silent.items():
            cause = f"None of its sensors has ticked for {age(silent_s)}, though Dagster's daemon lives."
            yield Finding(SOURCE, "location", location, cause, "/deployment/locations")
        for each in automations:
            # while its location is silent nobody knows better
            if daemon_lives and each.location not in silent and now - each.ticked_at > each.gone_s:
                continue
            if each.failures < (1 if each.scheduled else SENSOR_FAILURES):
                continue
            error = next((tick.tick_data.error for tick in each.ticks if tick.tick_data.error), None)
            yield Finding(
                SOURCE,
                "sensor",
                f"the {'schedule' if each.scheduled else 'sensor'} {each.name}",
                f"{each.failures} ticks failed in a row. {first_cause(error)}",
                f"/automation?search={quote(each.name)}",
            )

    def _breached(self) -> Iterator[Finding]:
        self._read_evaluations()
        failing = {key: seen for key, seen in self._checks.items() if not seen.evaluation.passed}
        if not failing:
            return
        whole = self._last_of_all_checks()
        for key, seen in failing.items():
            if whole is not None and seen.at < (whole.start_time or 0) and seen.run_id != whole.dagster_run.run_id:
                # all checks ran, and this one was not there: it is not declared any more
                continue
            yield from of_check(key, seen.evaluation)

    def _read_evaluations(self) -> None:
        """Keep the newest evaluation of each check: of all that are stored at first, then of those since."""
        storage = self._instance.event_log_storage
        # a lower id may be stored after a higher one, by another process
        cursor = None if self._read_to is None else max(self._read_to - OVERLAP, 0)
        while True:
            wanted = dg.EventRecordsFilter(event_type=DagsterEventType.ASSET_CHECK_EVALUATION, after_cursor=cursor)
            records = storage.get_event_records(wanted, limit=EVALUATIONS, ascending=True)
            for record in records:
                entry = record.event_log_entry
                if (event := entry.dagster_event) is not None:
                    evaluation = event.asset_check_evaluation_data
                    # read anew in the order of their ids, the newest comes last again
                    self._checks[evaluation.asset_check_key] = _Evaluated(evaluation, record.timestamp, entry.run_id)
                cursor = record.storage_id
                self._read_to = max(self._read_to or 0, cursor)
            if len(records) < EVALUATIONS:
                return

    def _last_of_all_checks(self) -> RunRecord | None:
        """Return the newest run of the job that runs every check, and did so: no run of a part of it."""
        wanted = RunsFilter(job_name=ALL_CHECKS, statuses=[DagsterRunStatus.SUCCESS])
        return next(
            (each for each in self._instance.get_run_records(wanted, limit=FEW) if is_whole(each.dagster_run)), None
        )


def is_whole(run: dg.DagsterRun) -> bool:
    """Say whether a run is of all its job, and no selection, nor a run anew of what failed."""
    parts = (run.asset_selection, run.asset_check_selection, run.op_selection)
    return not any(parts) and run.parent_run_id is None


def of_check(key: dg.AssetCheckKey, evaluation: dg.AssetCheckEvaluation) -> Iterator[Finding]:
    """Say what a breached check means: most are an incident of their own."""
    name, asset = key.name, key.asset_key
    page = f"/assets/{'/'.join(quote(part, safe='') for part in asset.path)}?view=checks"
    values: Mapping[str, Any] = {label: value.value for label, value in evaluation.metadata.items()}
    if name in LEFT_OUT:
        return
    if name == LAG_CHECK and len(asset.path) == 2:
        waits, objective = float(values.get("lag_seconds", 0)), float(values.get("objective_seconds", 0))
        cause = (
            f"{int(values.get('lag', 0)):,} events wait, the oldest for {age(waits)}; {objective:.0f} s are promised."
        )
        yield Finding(SOURCE, "late", asset.path[-1], cause, page)
    elif name == SLOTS and isinstance(values.get("problems"), Mapping):
        # the store has those as an incident of their own
        stopped = _listed(values.get("stopped_tables", []))
        for capture, problems in values["problems"].items():
            if left := [str(problem) for problem in _listed(problems) if problem not in stopped]:
                yield Finding(SOURCE, "slot", str(capture), "; ".join(left), page)
    else:
        told = "; ".join(f"{label}: {value}" for label, value in values.items())
        said = " ".join(filter(None, [evaluation.description, told])) or "It says no more."
        grave = "" if evaluation.severity is AssetCheckSeverity.ERROR else "A warning. "
        yield Finding(SOURCE, "check", f"{name} of {asset.to_user_string()}", grave + said, page)


def _listed(problems: object) -> Sequence[object]:
    return problems if isinstance(problems, Sequence) and not isinstance(problems, str) else [problems]
