"""The log partitions of a read model on its page in Dagster: which are green, and making them green or red.

Dagster shows a partition as failed if its newest event is a planned materialization of a failed run. A drain learns
only in the end which log partitions made no progress, so a failed drain plans those late, under its own run. Dagster
has no public call for that: the event is built in Dagster's stored form, which later versions must be able to read.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import dagster as dg

from millrace.assets.lineage import COLUMN_LINEAGE, rollup_lineage
from millrace.assets.partitions import log_partition_key, log_partitions
from millrace.assets.verdicts import repeat_verdicts
from millrace.read_models.declared.declaration import ReadModel

# what Dagster reads a version from
CODE_VERSION_TAG, DATA_VERSION_TAG = "dagster/code_version", "dagster/data_version"
GREEN, RUNNING = "MATERIALIZED", "IN_PROGRESS"
# the log level: a run's page lists these between its own events
INFO = 20


def code_version(model: ReadModel) -> str:
    """Return what tells a declaration's rows from those of another one: Dagster says that the code changed."""
    return model.fingerprint[:12]


class ShownPartitions:
    """The log partitions of one read model as Dagster shows them, changed in the name of a run.

    Args:
        instance: Dagster.
        run: The run.
        model: The read model.
        lineage: The lineage of its columns.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        run: dg.DagsterRun,
        model: ReadModel,
        lineage: dg.TableColumnLineage | None = None,
    ) -> None:
        # Dagster's API reads the lineage from the newest materialization. The open-source UI (1.13) does not draw it.
        self._newest = {COLUMN_LINEAGE: lineage} if lineage else {}
        self._instance = instance
        self._run = run
        self._code = code_version(model)
        self.asset = dg.AssetKey(["read_models", model.name])
        self._rollups = [
            dg.AssetMaterialization(["read_models", each.name], metadata={COLUMN_LINEAGE: rollup_lineage(each)})
            for each in model.rollups
        ]

    def states(self, partitions: Collection[int]) -> dict[int, str | None]:
        """Return the states of log partitions by one query: MATERIALIZED, FAILED, IN_PROGRESS, or None for missing."""
        keys = {log_partition_key(partition): partition for partition in partitions}
        statuses = self._instance.get_status_by_partition(self.asset, [*keys], log_partitions(len(keys))) or {}
        return {partition: state.name if (state := statuses.get(key)) else None for key, partition in keys.items()}

    def make_green(self, metadata: Mapping[int, Mapping[str, Any]], table: Mapping[str, Any]) -> None:
        """Record a materialization of each log partition with its metadata, and of each rollup, in one statement.

        The last one also has the metadata of the whole table.
        The verdicts of the read model's checks stay visible.
        """
        found = [
            dg.AssetMaterialization(
                self.asset,
                partition=log_partition_key(partition),
                metadata=shown,
                # what Dagster compares below the model: other code, or another position, gave other rows
                tags={CODE_VERSION_TAG: self._code, DATA_VERSION_TAG: f"{self._code}-{shown['position']}"},
            )
            for partition, shown in metadata.items()
        ]
        if found:
            found[-1] = found[-1].with_metadata({**found[-1].metadata, **table, **self._newest})
            # rollups after their rows: Dagster calls an asset outdated that is older than its upstream
            found += self._rollups
        self._store(
            dg.DagsterEventType.ASSET_MATERIALIZATION,
            [
                {
                    "__class__": "StepMaterializationData",
                    "materialization": json.loads(dg.serialize_value(one)),
                    "asset_lineage": [],
                }
                for one in found
            ],
        )
        if found:
            repeat_verdicts(self._instance, [self.asset])

    def make_red(self, causes: Mapping[int, str]) -> None:
        """Show log partitions as failed with this run, which must end as failed; each page has the cause."""
        self._store(
            dg.DagsterEventType.ASSET_OBSERVATION,
            [
                {
                    "__class__": "AssetObservationData",
                    "asset_observation": json.loads(
                        dg.serialize_value(
                            dg.AssetObservation(
                                self.asset, partition=log_partition_key(partition), metadata={"fails": cause}
                            )
                        )
                    ),
                }
                for partition, cause in causes.items()
            ],
        )
        self._store(
            dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
            [
                {
                    "__class__": "AssetMaterializationPlannedData",
                    "asset_key": json.loads(dg.serialize_value(self.asset)),
                    "partition": log_partition_key(partition),
                    "partitions_subset": None,
                }
                for partition in causes
            ],
        )

    def _store(self, kind: dg.DagsterEventType, events: Sequence[Mapping[str, Any]]) -> None:
        entries = [
            dg.EventLogEntry(  # type: ignore[no-untyped-call]
                error_info=None,
                level=INFO,
                user_message="",
                run_id=self._run.run_id,
                timestamp=time.time(),
                job_name=self._run.job_name,
                dagster_event=dg.DagsterEvent(
                    event_type_value=kind.value,
                    job_name=self._run.job_name,
                    event_specific_data=cast(Any, dg.deserialize_value(json.dumps(event))),
                    message="",
                ),
            )
            for event in events
        ]
        if entries:
            self._instance.event_log_storage.store_event_batch(entries)
