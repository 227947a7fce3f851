"""Which checks failed in their newest evaluation, and why."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster import AssetCheckSeverity, DagsterRunStatus, RunsFilter
from sqlalchemy import text

from millrace.assets.verdicts import LAG_CHECK, NAMES_CHECK
from millrace.platform_defs.names import ALL_CHECKS, OF_STORE, SLOTS

# checks that the store reports itself, or that recover by themselves
LEFT_OUT = {*OF_STORE, LAG_CHECK, NAMES_CHECK}
# Dagster has no call that returns the newest evaluation of every check
BREACHED = text("""
select evaluation_event from asset_check_executions
where execution_status = 'FAILED' and evaluation_event_storage_id in (
  select max(evaluation_event_storage_id) from asset_check_executions
  where execution_status in ('SUCCEEDED', 'FAILED') group by asset_key, check_name
)
order by evaluation_event_storage_id
""")


def breached(instance: dg.DagsterInstance) -> Iterator[tuple[dg.AssetCheckEvaluation, float]]:
    """Return each newest evaluation that failed and its time, unless the store reports the same."""
    with instance.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        entries = [dg.deserialize_value(text, dg.EventLogEntry) for (text,) in connection.execute(BREACHED)]
    ran = RunsFilter(job_name=ALL_CHECKS, statuses=[DagsterRunStatus.SUCCESS])
    whole = None
    for record in instance.get_run_records(ran, 20) if entries else []:
        run = record.dagster_run
        # a run of the whole job, with every check: neither a part of it nor a retry from a failure
        if not any((run.asset_selection, run.asset_check_selection, run.op_selection, run.parent_run_id)):
            whole = record
            break
    for entry in entries:
        evaluation = entry.dagster_event.asset_check_evaluation_data if entry.dagster_event else None
        # all checks ran since, without this one: it is not declared any more
        gone = whole and entry.timestamp < (whole.start_time or 0) and entry.run_id != whole.dagster_run.run_id
        if evaluation and not gone and evaluation.check_name not in LEFT_OUT:
            yield evaluation, entry.timestamp


def causes(evaluation: dg.AssetCheckEvaluation) -> dict[tuple[str, str], str]:
    """Return causes by kind and subject: for slots without those that the store reports, else the check's own."""
    values: dict[str, Any] = {label: value.value for label, value in evaluation.metadata.items()}
    if evaluation.check_name == SLOTS and isinstance(values.get("problems"), dict):
        # the store reports stopped tables itself
        stopped = values.get("stopped_tables", [])
        remaining = {
            name: [each for each in found if each not in stopped] for name, found in values["problems"].items()
        }
        return {("slot", capture): "; ".join(problems) for capture, problems in remaining.items() if problems}
    figures = "; ".join(f"{label}: {value}" for label, value in values.items())
    grave = "" if evaluation.severity is AssetCheckSeverity.ERROR else "A warning. "
    text = " ".join(filter(None, [evaluation.description, figures])) or "It says no more."
    return {("check", f"{evaluation.check_name} of {evaluation.asset_key.to_user_string()}"): grave + text}
