"""A streaming query that is restarted repeatedly, each time with new processes on the server."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from millrace.event_store.platform import PlatformStore
from tests.support.building.event_log_reads import filed, stream
from tests.support.factories import append_to, ids_of_one_partition, purge, register_orders
from tests.support.patience import patience


def grow(log: PlatformStore, sizes: dict[int, int]) -> None:
    for partition, size in sizes.items():
        append_to(log, *ids_of_one_partition(log.connection, 1, partition) * size)
    log.sequence_events()


def test_a_restarted_query_goes_on(store: PlatformStore, dsn: str, spark: SparkSession, tmp_path: Path) -> None:
    register_orders(store)
    files = tmp_path / "files"

    def run(**options: object) -> None:
        rows = stream(spark, dsn, columns=["partition", "position"], **options)
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
        assert writer.trigger(availableNow=True).start(str(files)).awaitTermination(patience())

    grow(store, {0: 4, 1: 2})
    run(startingOffsets={"0": 2, "1": 0})
    begun = [(0, 2), (0, 3), (1, 0), (1, 1)]
    assert filed(files) == begun
    grow(store, {0: 3, 2: 1})
    purge(store, 0, 6)
    with pytest.raises(StreamingQueryException, match=r"at position 4 of log partition 0.*'failOnDataLoss' is 'true'"):
        run(startingOffsets="latest")
    # unread events of the other log partitions come, too: the checkpoint decides, not startingOffsets
    run(startingOffsets="latest", failOnDataLoss="false", deciders=["order"])
    assert filed(files) == sorted([*begun, (0, 6), (2, 0)])
