"""Files that Spark's own reader takes: the values of the source, and never a file that is not the listed one."""

import io
import json
import random
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.resources.archive import files
from millrace.resources.archive.fields import stated_fields
from millrace.resources.archive.files import file_checksum, path_of, read_file, write_file
from millrace.resources.archive.history import read_history
from millrace.resources.archive.listing import ArchivedFile, archived
from millrace.resources.archive.spark_reader import FileUnreadable
from millrace.resources.archive.store import ArchiveStore
from millrace.resources.archive.whole_files import fields_of
from millrace.resources.archive.writer import archive_partition
from millrace.resources.consumption.build_errors import Fault, build_errors, fault_of
from millrace.resources.event_log_source import COLUMNS, LogRange
from millrace.resources.event_store import EventStore
from tests.archive.test_history import collected, in_order
from tests.archive.test_json_fields import NUMBERS, ODD
from tests.long import LONG
from tests.support.building.event_log_reads import ALL, fill, read
from tests.support.factories import ids_of_one_partition, register_orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# keys of objects: as documents have them, and as those who attack do
KEYS = ["a", "b", "A", "a.b", "data", "data:a", "1", "-1", "", " ", "`", '"', "\\", "\\u0061", "ключ", "\U0001f600", "{", "null", "*"]  # fmt: skip

SCALARS = {*KEYS[::2]}


def archive_all(dsn: str, root: Path, *, partitions: int = 3, max_events: int = 1000) -> None:
    for partition in range(partitions):
        archive_partition(dsn, root, partition, max_events=max_events, min_events=1, tail=True)


def plan_of(frame: "DataFrame") -> str:
    with redirect_stdout(io.StringIO()) as said:
        frame.explain()
    return said.getvalue()


def by_spark(frame: "DataFrame") -> bool:
    return "parquet" in plan_of(frame).lower()


def by_tasks(frame: "DataFrame") -> bool:
    return "mapinarrow" in plan_of(frame).lower()


def random_text(dice: random.Random, depth: int = 0) -> str:
    """Return a document as text, with keys that may be there twice."""
    odd = [json.dumps(each) for each in ODD if depth < 9 or not isinstance(each, dict | list)]
    odd += [*NUMBERS, '"\\u0061"', "1e899", "-1e-890", "0.10", "-0", '"1e400"', "  7 "]
    if depth > 2 or dice.random() < (0.1 if depth == 0 else 0.7):
        return dice.choice(odd)
    keys = [dice.choice(KEYS) for _ in range(dice.randint(0, 8))]
    # at the top some keys have scalars alone, so that they get columns
    members = [f"{json.dumps(key)}: {random_text(dice, depth + 1 + 9 * (key in SCALARS))}" for key in keys]
    return "{" + ", ".join(members) + "}"


def append(store: EventStore, texts: Sequence[str]) -> None:
    (stream,) = ids_of_one_partition(store.connection, 1)
    for text in texts:
        store.connection.execute(
            "select event_store.append_events(jsonb_build_array(jsonb_build_object('decider', 'order', 'decider_id', %s::text,"
            " 'event', 'placed', 'event_id', gen_random_uuid(), 'command_id', gen_random_uuid(), 'data', %s::jsonb)))",
            (stream, text),
        )
    store.sequence_events()


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=LONG) for seed in (0, 1, 3))])
def test_each_field_of_hostile_documents_is_what_postgres_says(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    if seed:
        # most events are not looked at before their file is written
        monkeypatch.setattr(files, "SMALL_RANGE", 3)
        monkeypatch.setattr(files, "LOOKED_AT", 4)
    register_orders(store)
    # short and long files, with and without arrays and fields of every kind
    append(store, [random_text(dice) for _ in range((10, 60, 60, 60)[seed])])
    archive_all(dsn, tmp_path, partitions=1, max_events=(1, 10, 100, 17)[seed])
    extract = {f"field {n}": [key] for n, key in enumerate([*KEYS, "nowhere"])}
    options: dict[str, Any] = {"columns": ["position", "data", "created_at"], "extract": extract}
    log = read(dsn, **options)
    assert collected(read_history(spark, dsn, tmp_path, **options)) == in_order(log)
    # one by one: more files have columns for one field than for all
    directly = set()
    for name, path in extract.items():
        frame = read_history(spark, dsn, tmp_path, columns=["position"], extract={name: path})
        directly |= {by_spark(frame), not by_tasks(frame)}
        assert collected(frame) == in_order([{"position": row["position"], name: row[name]} for row in log]), path
    assert True in directly


def test_all_columns_with_filters_are_read_by_spark_alone_from_a_folder_of_any_name(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    root = tmp_path.joinpath("a b%20c", "[x]{y,z}*?", "back\\slash", "date=2024-01-01", "ключ", ".hidden")
    archive_all(dsn, root, max_events=2)
    options: list[dict[str, Any]] = [
        {},
        {"extract": {"n": ["n"], "nowhere": ["nowhere"]}},
        {"columns": ["event_id"], "deciders": ["invoice"]},
        {"columns": ["offset"], "deciders": ["invoice", "none"], "events": ["paid"], "extract": {"event x": ["n"]}},
        {"columns": ["offset"], "deciders": []},
        {"columns": ["created_at", "data"]},
        {"columns": ["final"]},
    ]
    for each in options:
        frame = read_history(spark, dsn, root, **each)
        # of no decider nothing is read
        assert by_spark(frame) or each.get("deciders") == []
        assert not by_tasks(frame)
        columns = [(name, COLUMNS[name][0]) for name in each.get("columns", COLUMNS)]
        assert frame.dtypes == [*columns, *((name, "string") for name in each.get("extract", {}))]
        assert collected(frame) == in_order(read(dsn, **each))
    shutil.copytree(root, tmp_path / "_x:y")
    assert read_history(spark, dsn, tmp_path / "_x:y").count() == len(ALL)


def test_files_without_columns_of_fields_are_read_as_before_beside_the_others(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    archive_all(dsn, tmp_path, max_events=2)
    # as it was written before fields had columns
    old = archived(store.connection, 0).files[0]
    rewritten = write_file(tmp_path, old.range, [*read_file(tmp_path / old.path, old.range)])
    ArchiveStore(store.connection).list_archive_file(
        0, old.range.from_position, old.range.to_position, old.path, rewritten.bytes, rewritten.checksum
    )
    options: dict[str, Any] = {"columns": ["partition", "position"], "extract": {"n": ["n"]}}
    frame = read_history(spark, dsn, tmp_path, **options)
    assert by_spark(frame)
    assert by_tasks(frame)
    assert collected(frame) == in_order(read(dsn, **options))
    # without fields Spark reads it, too
    assert not by_tasks(read_history(spark, dsn, tmp_path, columns=["offset"]))


def forged(path: Path, wanted: LogRange) -> None:
    """Replace a file by one that reads as well, with as many rows, and another text."""
    table = pq.read_table(path)
    at = table.schema.names.index("decider_id")
    pq.write_table(table.set_column(at, "decider_id", pa.array(["another"] * wanted.size)), path)


def bomb(path: Path, wanted: LogRange) -> None:
    """Replace a file by a small one whose texts decode to gigabytes."""
    table = pq.read_table(path)
    text = pa.array(["x" * 967_000] * wanted.size)
    pq.write_table(pa.concat_tables([table.set_column(8, "data", text)] * 4), path, compression="zstd")


def shortened(path: Path, wanted: LogRange) -> None:
    pq.write_table(pq.read_table(path).slice(0, wanted.size - 1), path)


def gone(path: Path, _: LogRange) -> None:
    path.unlink()


def test_a_file_that_is_not_the_listed_one_is_refused_before_spark_decodes_it(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    archive_all(dsn, tmp_path)
    (file,) = archived(store.connection, 0).files
    path = tmp_path / file.path
    content = path.read_bytes()
    assert fields_of(tmp_path, file) == stated_fields(pq.read_schema(path))
    for attack in (forged, bomb, shortened):
        attack(path, file.range)
        with pytest.raises(FileUnreadable, match=str(path)):
            fields_of(tmp_path, file)
        with pytest.raises(build_errors(), match="is not the file that was written") as failed:
            read_history(spark, dsn, tmp_path).collect()
        assert fault_of(failed.value) is Fault.SERVER
        path.write_bytes(content)
    # it is there when the read is planned; no setting of Spark makes it pass over a file that is gone
    settings = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for name in settings:
        spark.conf.set(name, "true")
    try:
        frame = read_history(spark, dsn, tmp_path)
        path.unlink()
        with pytest.raises(build_errors()) as failed:
            frame.collect()
        assert fault_of(failed.value) is Fault.SERVER
    finally:
        for name in settings:
            spark.conf.unset(name)
    with pytest.raises(FileUnreadable, match=str(path)):
        fields_of(tmp_path, file)


def test_a_listed_path_that_is_not_that_of_its_range_is_refused(tmp_path: Path) -> None:
    held = LogRange(0, 0, 5)
    (tmp_path / "secret").write_bytes(b"12345")
    for path in ("secret", str(tmp_path / "secret"), "../secret"):
        with pytest.raises(FileUnreadable, match="has not the name"):
            fields_of(tmp_path, ArchivedFile(held, path, 5, file_checksum(tmp_path / "secret")))
    assert path_of(held).startswith("p0000/")


def test_fields_whose_names_differ_in_case_are_read_where_spark_does_not_tell_them_apart(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    register_orders(store)
    append(store, [json.dumps({"a": "lower", "A": "upper", "other": str(uuid4())}), '{"a": 1}'])
    archive_all(dsn, tmp_path, partitions=1)
    spark.conf.set("spark.sql.caseSensitive", "false")
    try:
        for keys in (["a"], ["A", "other"], ["OTHER", "none", "NONE"]):
            options: dict[str, Any] = {
                "columns": ["position"],
                "extract": {f"{n}": [key] for n, key in enumerate(keys)},
            }
            assert collected(read_history(spark, dsn, tmp_path, **options)) == in_order(read(dsn, **options))
    finally:
        spark.conf.set("spark.sql.caseSensitive", "true")
