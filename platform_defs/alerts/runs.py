"""Failed runs of Dagster, and whether a later run mended them.

Belongs here: which runs failed and were not mended, and why they failed. Not here: the other things that Dagster knows
(`dagster`).

A failed run is mended by a later one that did what it had to do: of the same job or assets, of the same view or day,
and of each of its log partitions. A rebuild of one log partition says nothing of another one.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from dagster import DagsterEventType, DagsterRunStatus, RunRecord, RunsFilter

from millrace.assets.partitions import is_log_partition, log_partition_of
from millrace.resources.alerts.incidents import Finding
from millrace.resources.alerts.standing import Keys

# Names of `millrace.assets` and `millrace.platform_defs` whose modules import Spark: with them the sequencer's process
# would have 70 MB more. A test compares them.
VIEW_TAG = "millrace/view"
DRAINED = dg.AssetKey(["consumption", "view_events"])
DRAIN, SHARED_JOB, LEFT_TAG = "drain", "drain_views", "millrace/left"
PARTITION_TAG = "dagster/partition"
RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
# what users call an asset's own run
OF_ASSETS = "__ASSET_JOB"
# Dagster keeps runs for a week (`prune`)
KEPT = timedelta(days=7)
# so many runs are read at once, and so many later ones are looked at for one that failed
PAGE = 200
# so many different runs that failed are asked after in one look, whether they succeeded later
MOST_ASKED = 50
# so many of a view's newest materializations are looked at
FEW = 5
# what Dagster says where it gives a run up without a word
UNTOLD = "This run has been marked as failed from outside the execution context."
# a run is stored a little after the time that it bears
OVERLAP = timedelta(minutes=1)


class FailedRuns:
    """The runs that failed within a week and were not mended since; each is read once. For one thread at a time."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        # the newest failed run of each name that nothing mended, in which look it was asked after last, and up to when
        # they were read
        self._failed: dict[str, RunRecord] = {}
        self._asked: dict[str, int] = {}
        self._looks = 0
        self._read_to: datetime | None = None
        # the mended ones that may be read once more
        self._mended: dict[str, datetime] = {}

    def found(self, source: str, known: Keys) -> Iterator[Finding]:
        """Look once; why a run failed is read for those only that are not known."""
        self._read_new()
        self._forget_removed()
        self._looks += 1
        newest_first = sorted(self._failed, key=lambda name: self._failed[name].update_timestamp, reverse=True)
        # where there are more, each has its turn
        for name in sorted(newest_first, key=lambda name: self._asked.get(name, 0))[:MOST_ASKED]:
            self._asked[name] = self._looks
            if self._is_mended(self._failed[name]):
                record = self._failed.pop(name)
                self._mended[record.dagster_run.run_id] = record.update_timestamp
        self._asked = {name: look for name, look in self._asked.items() if name in self._failed}
        for name, record in self._failed.items():
            run_id = record.dagster_run.run_id
            finding = Finding(source, "run", name, "It failed.", f"/runs/{run_id}")
            yield finding if finding.key in known else Finding(source, "run", name, self._why(run_id), finding.page)

    def _read_new(self) -> None:
        """Read the runs that failed since the last look, or within a week."""
        oldest = datetime.now(UTC) - KEPT
        since = oldest if self._read_to is None else max(oldest, self._read_to - OVERLAP)
        failed = RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=since)
        cursor: str | None = None
        new: dict[str, RunRecord] = {}
        while page := self._instance.get_run_records(failed, limit=PAGE, cursor=cursor):
            for record in page:
                self._read_to = max(self._read_to or oldest, record.update_timestamp)
                if record.dagster_run.run_id not in self._mended:
                    # the newest come first
                    new.setdefault(named(record.dagster_run), record)
            cursor = page[-1].dagster_run.run_id
        self._failed |= new
        self._mended = {run_id: time for run_id, time in self._mended.items() if time >= since}

    def _forget_removed(self) -> None:
        """Forget the runs that are older than a week, or that somebody removed."""
        ids = [record.dagster_run.run_id for record in self._failed.values()]
        there: set[str] = set()
        for first in range(0, len(ids), PAGE):
            kept = RunsFilter(run_ids=ids[first : first + PAGE], updated_after=datetime.now(UTC) - KEPT)
            there |= {record.dagster_run.run_id for record in self._instance.get_run_records(kept)}
        self._failed = {name: each for name, each in self._failed.items() if each.dagster_run.run_id in there}

    def _is_mended(self, failed: RunRecord) -> bool:
        run = failed.dagster_run
        missing = log_partitions_of(run)
        # a range of log partitions has other tags than another range that holds it
        tags = {PARTITION_TAG: run.tags[PARTITION_TAG]} if missing is None and PARTITION_TAG in run.tags else {}
        alike = RunsFilter(
            job_name=run.job_name,
            statuses=[DagsterRunStatus.SUCCESS],
            tags=tags,
            updated_after=failed.update_timestamp,
        )
        for record in self._instance.get_run_records(alike, limit=PAGE):
            later = record.dagster_run
            if missing is None:
                if named(later) == named(run):
                    return True
            elif what(later) == what(run):
                missing -= log_partitions_of(later) or missing
                if not missing:
                    return True
        view = drained_by(run)
        return view is not None and self._drained_since(view, failed.update_timestamp)

    def _drained_since(self, view: str, since: datetime) -> bool:
        """Say whether another drain got on with a view: one that succeeded, or a shared one that did not leave it."""
        shown = self._instance.fetch_materializations(
            dg.AssetRecordsFilter(DRAINED, asset_partitions=[view], after_timestamp=since.timestamp()), limit=FEW
        ).records
        runs = (self._instance.get_run_by_id(run_id) for run_id in {record.run_id for record in shown})
        return any(
            run
            and (run.is_success or (run.job_name == SHARED_JOB and not run.is_failure))
            and view not in left_by(run.tags)
            for run in runs
        )

    def _why(self, run_id: str) -> str:
        """Return the first error of a step; else what ended the run; else the last error that Dagster met with it."""
        kinds = {DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE, DagsterEventType.ENGINE_EVENT}
        entries = self._instance.all_logs(run_id, of_type=kinds)
        for entry in entries:
            event = entry.dagster_event
            if event is not None and event.is_step_failure and event.step_failure_data.error:
                return first_cause(event.step_failure_data.error)
        events = [event for entry in reversed(entries) if (event := entry.dagster_event)]
        ended = [event.job_failure_data.error for event in events if event.is_job_failure and event.event_specific_data]
        met = [event.engine_event_data.error for event in events if event.is_engine_event]
        said = [event.message for event in events if event.is_job_failure and event.message not in {None, UNTOLD}]
        causes = [*map(first_cause, ended), *said, *map(first_cause, met)]
        return next(filter(None, causes), "It says no reason.")


def what(run: dg.DagsterRun) -> str:
    """Return the job of a run, or its assets where it has none of ours."""
    if run.job_name != OF_ASSETS:
        return run.job_name
    return "of " + ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ()))


def named(run: dg.DagsterRun) -> str:
    """Return what tells runs apart: the job or the assets, and which view, day or log partitions they are of."""
    first, last = (run.tags.get(tag) for tag in RANGE_TAGS)
    # the hourly run of a job takes what is there: its next success does what this one did not
    of_range = run.job_name == OF_ASSETS and first is not None
    part = run.tags.get(VIEW_TAG) or run.tags.get(PARTITION_TAG)
    if part is None and of_range:
        part = first if first == last else f"{first} to {last}"
    return f"{what(run)} ({part})" if part else what(run)


def drained_by(run: dg.DagsterRun) -> str | None:
    """Return the view that a run drains by itself; None if it is no such drain."""
    of_view = run.job_name == DRAIN or DRAINED in (run.asset_selection or ())
    return run.tags.get(PARTITION_TAG) if of_view else None


def log_partitions_of(run: dg.DagsterRun) -> set[int] | None:
    """Return the log partitions that somebody asked for in a run of assets; None if it is of no log partitions."""
    if run.job_name != OF_ASSETS:
        return None
    one = run.tags.get(PARTITION_TAG)
    first, last = (run.tags.get(tag, one) for tag in RANGE_TAGS)
    if first is None or last is None or not (is_log_partition(first) and is_log_partition(last)):
        return None
    return set(range(log_partition_of(first), log_partition_of(last) + 1))


def left_by(tags: Mapping[str, str]) -> Mapping[str, str]:
    """Return the views that a shared drain has left, by what it wrote into its tags."""
    left: dict[str, str] = json.loads(tags.get(LEFT_TAG, "{}"))
    return left


def first_cause(error: Any) -> str:  # noqa: ANN401 - its class is private to Dagster
    """Return what was wrong at first: Dagster wraps an error in others."""
    while error is not None and error.cause is not None:
        error = error.cause
    return "" if error is None else str(error.message).strip()
