"""A batch, a stream and a read model in a Spark session of a process of its own; its environment names the Spark.

A program, because a process that has used Spark Connect can use nothing else; `build_at` runs it.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from millrace.drain.view_drain import ViewDrain
from millrace.spark import spark_session
from millrace.spark.parallelism import batch_size, cores_of, task_number
from tests.support.building.drains import Everything
from tests.support.building.event_log_reads import load, stream
from tests.support.patience import patience
from tests.support.project import PROJECT
from tests.support.running.programs import ran

COLUMNS = ["partition", "position", "decider_id", "event"]
READER = {"columns": COLUMNS, "extract": {"text": ["text"]}, "minPartitions": 2}
# only this program has the project on its path; no Spark has it
PROGRAM = "import runpy, sys; sys.path.append({!r}); runpy.run_module('tests.support.building.spark_places', run_name='__main__')"


@dataclass(frozen=True)
class Built:
    """The rows that a session read; the file of our code, the folder and the Python of its tasks; its sizes.

    The sizes are the partitions of a shuffle, the cores, the tasks for a million events, and the events of a batch.
    """

    batch: list[list[object]]
    stream: list[list[object]]
    origins: list[list[str]]
    sizes: list[int]


def build_at(env: Mapping[str, str], dsn: str, folder: Path, configuration: Mapping[str, str], partition: int) -> Built:
    """Run this program in an environment and a folder, which then holds its output; return its results."""
    words = (PROGRAM.format(str(PROJECT)), dsn, json.dumps(dict(configuration)), partition)
    ran(sys.executable, "-c", *words, cwd=folder, env=dict(env), patiences=8)
    return Built(**json.loads((folder / "built.json").read_text()))


def main(dsn: str, configuration: str, partition: str) -> None:
    folder = Path.cwd()
    with spark_session(json.loads(configuration)) as spark:
        query = (
            stream(spark, dsn, maxOffsetsPerTrigger=250, **READER)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "events"))
        )
        assert query.awaitTermination(patience())
        with ViewDrain(dsn, Everything, lambda: spark, "test") as consumer:
            consumer.drain(budget_s=patience(), idle_s=0, batch_events=200)
            consumer.rebuild(int(partition))
        origins = spark.range(0, 100, 1, 8).mapInArrow(origin, "file string, folder string, python string")
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
        built = Built(
            batch=sorted(list(row) for row in load(spark, dsn, **READER).collect()),
            stream=sorted(list(row) for row in spark.read.parquet(str(folder / "events")).collect()),
            origins=sorted(list(row) for row in origins.distinct().collect()),
            sizes=[partitions, cores_of(spark), task_number(spark, 1_000_000), batch_size(spark)],
        )
    (folder / "built.json").write_text(json.dumps(asdict(built)))


def origin(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield, for mapInArrow, the file of a task's copy of our code, its folder and its Python."""
    import sys
    from pathlib import Path

    import millrace.spark.log_source as imported

    for _ in batches:
        pass
    found = {"file": [imported.__file__], "folder": [str(Path.cwd())], "python": [sys.executable]}
    yield pa.RecordBatch.from_pydict(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
