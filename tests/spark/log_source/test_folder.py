"""A user of Spark needs only the folder of the source."""

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle

from tests.support.building.event_log_reads import ALL, filed, positions
from tests.support.patience import patience
from tests.support.project import PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_module_imports_neither_dagster_nor_anything_of_ours() -> None:
    script = (
        "import sys, millrace.spark.log_source\n"
        "ours = ('millrace', 'dagster', 'psycopg', 'adbc_driver_postgresql')\n"
        "print(*sorted(m for m in sys.modules if m.partition('.')[0] in ours))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    package = "millrace.spark.log_source"
    assert [module for module in done.stdout.split() if not module.startswith(package)] == [
        "millrace", "millrace.late_imports", "millrace.spark",
    ]  # fmt: skip
    for file in (PROJECT / "millrace" / "spark" / "log_source").glob("*.py"):
        assert not re.search(r"(import|from) (millrace|dagster)", file.read_text()), file


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Copy the folder of the source alone, under a name that Spark's workers cannot import."""
    shutil.copytree(PROJECT / "millrace" / "spark" / "log_source", tmp_path / "copied_source")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("copied_source")
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    yield module
    cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    for name in [name for name in sys.modules if name.partition(".")[0] == "copied_source"]:
        del sys.modules[name]


@pytest.mark.usefixtures("log")
def test_the_folder_alone_can_be_sent(dsn: str, spark: "SparkSession", copied: ModuleType, tmp_path: Path) -> None:
    named = type("Copied", (copied.EventLogSource,), {"name": classmethod(lambda _: "copied_event_log")})
    spark.dataSource.register(named)
    found = spark.read.format("copied_event_log").option("dsn", dsn).option("minPartitions", 3).load()
    assert positions([row.asDict() for row in found.collect()]) == ALL
    stream = spark.readStream.format("copied_event_log").option("dsn", dsn).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
    assert query.awaitTermination(patience())
    assert filed(tmp_path / "rows") == ALL
