"""What is wrong according to Dagster's own storage, judged by one table: alerts and metrics are made from it.

A check that shows a row of `standing.sql` is left to the store, which also answers while Dagster is dead.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from millrace.operations.alerts.findings import DAEMON_IDLE_S, Finding, age
from millrace.platform_defs.dagster_internals.breached_checks import breached, causes
from millrace.platform_defs.failed_runs import FailedRuns, first_cause
from millrace.platform_defs.liveness import beats, silent_locations, ticking


class Kind(NamedTuple):
    """The threshold in seconds, the severity and the remedy of a kind of finding."""

    wrong_from: float
    severity: str
    remedy: str


TICKS = "Its ticks in the UI, below Automation, have the error."
# for a sensor and a schedule the threshold is failed ticks in a row, not seconds
KINDS = {
    "daemon": Kind(DAEMON_IDLE_S, "page", "Start the service `daemon`, without which no drain, capture or schedule starts; its"
                   " log says why it ended."),
    "location": Kind(600, "page", "Correct the declarations and reload them in the UI below Deployment, where the error is, for"
                     " nothing of it is started meanwhile; if it was taken away on purpose, this is over after a day."),
    "queue": Kind(600, "ticket", "Terminate in the UI the runs that do not end, or let more run at once in dagster.yaml."),
    "sensor": Kind(5, "ticket", TICKS),
    "schedule": Kind(1, "ticket", TICKS),
    "run": Kind(0, "ticket", "Its page in the UI has the cause and the log; run it again there once the cause is repaired."),
    "check": Kind(0, "ticket", "The check in the UI has its figures; docs/operating.md says what helps."),
    "slot": Kind(0, "page", "`millrace capture status` has the problem and its remedy; a slot without a reader fills its"
                 " source's disk."),
}  # fmt: skip


class DagsterStanding:
    """What is wrong in one Dagster instance; for one thread at a time."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self._runs = FailedRuns(instance)

    def found(self) -> list[Finding]:
        """Return the findings; none of sensors and schedules while the daemon is dead: their state is unknown then."""
        now, found, alive = time.time(), list[Finding](), list[Finding]()
        dead_s, beat = KINDS["daemon"].wrong_from, beats(self.instance)
        if silent := {name: at for name, at in sorted(beat.items()) if now - at >= dead_s}:
            silences = ", ".join(f"{name} for {age(now - at)}" for name, at in silent.items())
            what, since = "Dagster's daemon is dead", min(silent.values())
            found.append(
                _found("daemon", "daemon", since, what, f"No sign of life: {silences}.", "/deployment/daemons")
            )
        else:
            alive += self._automation(now)
        queued = RunsFilter(statuses=[DagsterRunStatus.QUEUED])
        for record in self.instance.get_run_records(queued, limit=1, ascending=True):
            since = record.create_timestamp.timestamp()
            if now - since >= KINDS["queue"].wrong_from:
                cause = f"The oldest run, of {record.dagster_run.job_name}, has waited for {age(now - since)}."
                found.append(_found("queue", "queue", since, "Runs wait in Dagster's queue", cause, "/runs"))
        return [*found, *alive, *self.failed_runs(), *self.breached_checks()]

    def _automation(self, now: float) -> Iterator[Finding]:
        """Return the code locations without a sensor that ticks, and the sensors and schedules that fail."""
        ticks = ticking(self.instance)
        silent = silent_locations(ticks, now, KINDS["location"].wrong_from)
        for location, since in silent.items():
            what = f"The declarations in {location} do not load"
            cause = f"None of its sensors has ticked for {age(now - since)}, though Dagster's daemon lives."
            yield _found("location", location, since, what, cause, "/deployment/locations")
        for each in ticks:
            # while its location is silent, whether it is still declared is unknown
            declared = each.location in silent or each.is_declared(now)
            if declared and each.failures >= KINDS[each.kind].wrong_from:
                name = f"the {each.kind} {each.name}"
                cause = f"{each.failures} ticks failed in a row. {first_cause(each.error)}"
                page = f"/automation?search={quote(each.name)}"
                yield _found(each.kind, name, None, f"{name} fails again and again", cause, page)

    def failed_runs(self) -> Iterator[Finding]:
        """Return the newest failed run of each name within a week, unless a later run did its work."""
        for name, record, cause in self._runs.read_failures():
            since, page = record.update_timestamp.timestamp(), f"/runs/{record.dagster_run.run_id}"
            yield _found("run", name, since, f"The run {name} failed", cause, page)

    def breached_checks(self) -> Iterator[Finding]:
        """Return the checks whose newest evaluation failed, unless the store reports the same."""
        for evaluation, at in breached(self.instance):
            page = f"/assets/{'/'.join(quote(part, safe='') for part in evaluation.asset_key.path)}?view=checks"
            for (kind, name), cause in causes(evaluation).items():
                summaries = {"check": f"check {name} is breached", "slot": f"slot of the capture {name} is in trouble"}
                yield _found(kind, name, at, f"The {summaries[kind]}", cause, page)


def _found(kind: str, subject: str, since: float | None, what: str, cause: str, page: str) -> Finding:
    about = "capture" if kind == "slot" else "dagster"
    began = None if since is None else datetime.fromtimestamp(since, UTC)
    return Finding(kind, about, subject, began, KINDS[kind].severity, what, cause, KINDS[kind].remedy, page)
