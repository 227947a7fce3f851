"""The checks of read models on Dagster's pages: the last verdict stays visible after newer materializations.

Dagster shows verdicts only for an asset's newest materialization, and drains record one every few minutes. A repeated
verdict names its materialization: so clocks do not decide whether it is visible.
"""

import json
from collections.abc import Iterable, Sequence
from typing import cast

import dagster as dg

from millrace.resources.postgres import PostgresResource

LAG_CHECK = "lag_within_objective"
NAMES_CHECK = "names_are_known"
APPROVAL_CHECK = "version_is_approved"
LOADS_CHECK = "declaration_loads"
INDEXES_CHECK = "indexes_are_made"

_PLANNED = "PLANNED"
_FINISHED = {"SUCCEEDED", "FAILED"}


def judge(instance: dg.DagsterInstance, checks: Iterable[dg.AssetChecksDefinition], postgres: PostgresResource) -> None:
    """Evaluate checks and record their verdicts, except for checks that need Spark, which may take long."""
    for check in checks:
        if check.required_resource_keys & {"postgres", "spark"} == {"postgres"}:
            found, key = cast(dg.AssetCheckResult, check(postgres=postgres)), check.check_key
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(key.asset_key, key.name, found.passed, found.metadata, severity=found.severity)
            )


def repeat_verdicts(instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey], run_id: str | None = None) -> None:
    """Repeat the last verdict of each check of these assets if a newer materialization hides it.

    After a kill at any point the next call continues. A running check will give its own verdict, except in the run
    `run_id`: its checks are planned but give no verdict.
    """
    records = {record.asset_entry.asset_key: record.asset_entry for record in instance.get_asset_records(assets)}
    names = (LAG_CHECK, NAMES_CHECK, APPROVAL_CHECK, LOADS_CHECK, INDEXES_CHECK)
    keys = [dg.AssetCheckKey(asset, name) for asset in records for name in names]
    storage = instance.event_log_storage
    for key, latest in storage.get_latest_asset_check_execution_by_key(keys).items():
        newest = records[key.asset_key].last_materialization_record
        # by the rules of Dagster's page
        if latest.status.value == _PLANNED:
            run = instance.get_run_by_id(latest.run_id)
            is_current = latest.run_id != run_id and run is not None and not run.is_finished
        elif newest is None or latest.run_id == newest.run_id:
            is_current = True
        elif target := latest.evaluation and latest.evaluation.target_materialization_data:
            is_current = target.storage_id == newest.storage_id
        else:
            is_current = newest.timestamp < latest.create_timestamp
        if is_current:
            continue
        finished = {status for status in type(latest.status) if status.value in _FINISHED}
        for last in storage.get_asset_check_execution_history(key, limit=1, status=finished):
            evaluation = json.loads(dg.serialize_value(last.evaluation))
            evaluation["target_materialization_data"] = newest and {
                "__class__": "AssetCheckEvaluationTargetMaterializationData",
                "storage_id": newest.storage_id,
                "run_id": newest.run_id,
                "timestamp": newest.timestamp,
            }
            instance.report_runless_asset_event(dg.deserialize_value(json.dumps(evaluation), dg.AssetCheckEvaluation))
