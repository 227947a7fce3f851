"""Which failed runs have no later success, and why they failed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from dagster import DagsterEventType, DagsterRunStatus, RunRecord, RunsFilter

from millrace.assets.partitions import VIEW_EVENTS, is_log_partition, log_partition_key, log_partition_of
from millrace.platform_defs.names import DRAIN, PARTITION_TAG, VIEW_TAG

RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
# Dagster's job for runs that select assets
OF_ASSETS = "__ASSET_JOB"
# Dagster's message for a run that it gives up without a reason
NO_REASON = "This run has been marked as failed from outside the execution context."
# Dagster keeps runs for a week (`prune`)
RETENTION = timedelta(days=7)
# runs per read; a run is stored a little after its timestamp
PAGE, OVERLAP = 1000, timedelta(minutes=1)


class FailedRuns:
    """The newest failed run of each name within a week, unless its work is done since; for one thread at a time."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._failed: dict[str, RunRecord] = {}
        self._causes: dict[str, str] = {}
        self._read_to = datetime.now(UTC) - RETENTION

    def read_failures(self) -> list[tuple[str, RunRecord, str]]:
        """Return the name, the run and the cause of each failed run; the events of a run are read once."""
        oldest = datetime.now(UTC) - RETENTION
        since, read_to = max(oldest, self._read_to - OVERLAP), self._read_to
        for record in self._ended(DagsterRunStatus.FAILURE, since):
            name, read_to = name_of(record.dagster_run), max(read_to, record.update_timestamp)
            self._failed[name] = max(record, self._failed.get(name, record), key=lambda each: each.update_timestamp)
        if self._failed:
            # drop runs whose name succeeded later
            first = min(record.update_timestamp for record in self._failed.values())
            for record in self._ended(DagsterRunStatus.SUCCESS, max(since, first)):
                name, read_to = name_of(record.dagster_run), max(read_to, record.update_timestamp)
                if name in self._failed and self._failed[name].update_timestamp < record.update_timestamp:
                    del self._failed[name]
        # if reading fails half way, the next call reads it all again
        self._read_to = read_to
        names = {record.dagster_run.run_id: name for name, record in self._failed.items()}
        # an operator may have removed a run
        present = self._instance.get_run_ids(RunsFilter(run_ids=[*names], updated_after=oldest)) if names else []
        self._causes = {run_id: self._causes.get(run_id) or self._why(run_id) for run_id in present}
        self._failed = {names[run_id]: self._failed[names[run_id]] for run_id in present}
        self._drop_built()
        return [(name, each, self._causes[each.dagster_run.run_id]) for name, each in self._failed.items()]

    def _ended(self, status: DagsterRunStatus, since: datetime) -> Iterator[RunRecord]:
        filters, cursor = RunsFilter(statuses=[status], updated_after=since), None
        while page := self._instance.get_run_records(filters, limit=PAGE, cursor=cursor):
            yield from page
            if len(page) < PAGE:
                return
            cursor = page[-1].dagster_run.run_id

    def _drop_built(self) -> None:
        """Drop each run if, for every one of its assets, all of its partitions were built since."""
        targets = {name: built_by(record.dagster_run) for name, record in self._failed.items()}
        sought = set().union(*targets.values())
        built: dict[tuple[dg.AssetKey, str | None], float] = {}
        for asset in {asset for asset, _ in sought}:
            partitions, kind = {part for of, part in sought if of == asset}, DagsterEventType.ASSET_MATERIALIZATION
            if newest := self._instance.get_latest_storage_id_by_partition(asset, kind, partitions):
                last = dg.AssetRecordsFilter(asset, storage_ids=[*newest.values()])
                for event in self._instance.fetch_materializations(last, limit=PAGE).records:
                    built[asset, event.partition_key] = event.timestamp
        for name, keys in targets.items():
            failed_at = self._failed[name].update_timestamp.timestamp()
            if keys and all(built.get(key, 0.0) > failed_at for key in keys):
                del self._failed[name]

    def _why(self, run_id: str) -> str:
        """Return the first error of a step, else the one that ended the run, else Dagster's last error with the run."""
        kinds = {DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE, DagsterEventType.ENGINE_EVENT}
        events = [event for entry in self._instance.all_logs(run_id, of_type=kinds) if (event := entry.dagster_event)]
        steps = [event.step_failure_data.error for event in events if event.is_step_failure]
        ended = [event for event in events if event.is_job_failure]
        errors = [event.job_failure_data.error for event in ended if event.event_specific_data]
        engine_errors = [event.engine_event_data.error for event in reversed(events) if event.is_engine_event]
        messages = [event.message for event in ended if event.message not in {None, NO_REASON}]
        causes = [*map(first_cause, [*steps, *errors]), *messages, *map(first_cause, engine_errors)]
        return next(filter(None, causes), "It says no reason.")


def name_of(run: dg.DagsterRun) -> str:
    """Return a run's name: its job or assets, and its view, day or log partitions."""
    selected = ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ()))
    what = f"of {selected}" if run.job_name == OF_ASSETS else run.job_name
    part = run.tags.get(VIEW_TAG) or run.tags.get(PARTITION_TAG)
    first, last = (run.tags.get(tag) for tag in RANGE_TAGS)
    # an hourly run of a job takes everything that is due: its next success does this run's work
    if part is None and first is not None and run.job_name == OF_ASSETS:
        part = first if first == last else f"{first} to {last}"
    return f"{what} ({part})" if part else what


def built_by(run: dg.DagsterRun) -> set[tuple[dg.AssetKey, str]]:
    """Return the partitions of assets that a run was asked for; none where these cannot be known."""
    assets = [VIEW_EVENTS] if run.job_name == DRAIN else run.asset_selection or ()
    one = run.tags.get(PARTITION_TAG)
    first, last = (run.tags.get(tag, one) for tag in RANGE_TAGS)
    partitions = {first} if first and first == last else set()
    if first and last and first != last and is_log_partition(first) and is_log_partition(last):
        partitions = {*map(log_partition_key, range(log_partition_of(first), log_partition_of(last) + 1))}
    return {(asset, partition) for asset in assets for partition in partitions}


def first_cause(error: Any) -> str:  # noqa: ANN401 - the type has no public name
    """Return the innermost cause: Dagster wraps an error in others."""
    while error is not None and error.cause is not None:
        error = error.cause
    return "" if error is None else str(error.message).strip()
