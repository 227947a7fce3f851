"""Archive and tail as one DataFrame: each event of the log once, as in Postgres, from the listed files alone.

Spark's own reader reads files that have columns for all wanted fields; our tasks read the others.
"""

import io
import json
import random
import shutil
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.archive import files
from millrace.archive.fields import stated_fields
from millrace.archive.files import file_checksum, path_of, read_file, write_file
from millrace.archive.history import history_frame, log_history, read_history
from millrace.archive.listing import ArchivedFile, archived
from millrace.archive.spark_reader import FileUnreadable
from millrace.archive.store import ArchiveStore
from millrace.archive.whole_files import fields_of
from millrace.archive.writer import archive_partition
from millrace.drain.build_errors import Blame, blame_of, build_errors
from millrace.errors import ForeignArchive, LogIncomplete
from millrace.event_store.platform import PlatformStore
from millrace.spark.log_source import COLUMNS, LogRange
from tests.archive.test_fields import append
from tests.archive.test_json_fields import NUMBERS, ODD
from tests.long import LONG
from tests.support.building.event_log_reads import ALL, KEYS, append_odd, fill, positions, read
from tests.support.factories import ids_of_one_partition, register_orders
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# keys of objects: usual ones and hostile ones
HOSTILE = ["a", "b", "A", "a.b", "data", "data:a", "1", "-1", "", " ", "`", '"', "\\", "\\u0061", "ключ", "\U0001f600", "{", "null", "*"]  # fmt: skip

EVER = (datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
BEFORE = (datetime.min.replace(tzinfo=UTC), EVER[0])
SCALARS = {*HOSTILE[::2]}


def archive(dsn: str, root: Path, *, max_events: int = 1000, tail: bool = True, partitions: int = 3) -> None:
    for partition in range(partitions):
        archive_partition(dsn, root, partition, max_events=max_events, min_events=max_events, tail=tail)


def collected(frame: "DataFrame") -> list[dict[str, Any]]:
    return in_order(frame.toArrow().to_pylist())


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: json.dumps(row, default=str))


def test_archive_and_tail_are_the_log_once(
    store: PlatformStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    log = in_order(read(dsn))
    assert positions(log) == ALL
    # archived so far: nothing, full files, everything
    for tail in (None, False, True):
        if tail is not None:
            archive(dsn, tmp_path, max_events=2, tail=tail)
        frame = read_history(spark, dsn, tmp_path)
        assert frame.dtypes == [(name, type_) for name, (type_, _) in COLUMNS.items()]
        assert collected(frame) == log
    (ours,) = ids_of_one_partition(store.connection, 1)
    append_events(store, [BatchEvent("order", ours, "paid", uuid4(), {"n": 9}, uuid4())])
    store.sequence_events()
    ArchiveStore(store.connection).raise_low_water_mark(0, 5)
    assert ArchiveStore(store.connection).purge_events(0) == 5
    after = collected(read_history(spark, dsn, tmp_path))
    assert len(after) == len(log) + 1
    assert [row for row in after if row in log] == log


def test_fields_and_filters_are_as_told(store: PlatformStore, dsn: str, tmp_path: Path, spark: "SparkSession") -> None:
    register_orders(store)
    append_odd(store)
    (other,) = ids_of_one_partition(store.connection, 1)
    append_events(store, [BatchEvent("invoice", other, "paid", uuid4(), each, uuid4()) for each in ODD[:-1]])
    append_events(store, [BatchEvent("order", other, "shipped", uuid4(), {"a": {"b": 1}}, uuid4())])
    store.sequence_events()
    archive(dsn, tmp_path, max_events=2, tail=False, partitions=16)
    deep = ["object", "inner", "list", "1", "x"]
    extract = {f"{key} of it": [key] for key in KEYS} | {"deep": deep, "a b": ["a", "b"]}
    options: list[dict[str, Any]] = [
        {"columns": ["offset", "event"], "extract": extract},
        {"columns": ["created_at", "data"], "deciders": ["invoice"], "extract": {"a": ["a"]}},
        {"columns": ["event_id"], "events": ["shipped", "none"]},
        {"columns": ["offset"], "partitions": [0], "deciders": []},
    ]
    for each in options:
        frame = read_history(spark, dsn, tmp_path, **each)
        assert frame.columns == [*each["columns"], *each.get("extract", {})]
        assert collected(frame) == in_order(read(dsn, **each))


def test_what_nobody_has_is_an_error(store: PlatformStore, dsn: str, tmp_path: Path, spark: "SparkSession") -> None:
    fill(store)
    ArchiveStore(store.connection).mark_archived(0, 3)
    ArchiveStore(store.connection).raise_low_water_mark(0, 3)
    for _ in range(2):
        with pytest.raises(LogIncomplete, match="log partition 0: positions 0 to 3"):
            read_history(spark, dsn, tmp_path)
        archive(dsn, tmp_path, max_events=2)
    assert read_history(spark, dsn, tmp_path, partitions=[1, 2]).count() == 4
    (tmp_path / "archive.json").write_text('{"archive": "another"}')
    with pytest.raises(ForeignArchive, match="another event store"):
        read_history(spark, dsn, tmp_path, partitions=[1, 2])


def readers(frame: "DataFrame") -> tuple[bool, bool]:
    """Return whether Spark's own reader reads some files, and whether our tasks do."""
    with redirect_stdout(io.StringIO()) as said:
        frame.explain()
    plan = said.getvalue().lower()
    return "parquet" in plan, "mapinarrow" in plan


def random_text(dice: random.Random, depth: int = 0) -> str:
    """Return a document as text; a key may occur twice."""
    odd = [json.dumps(each) for each in ODD if depth < 9 or not isinstance(each, dict | list)]
    odd += [*NUMBERS, '"\\u0061"', "1e899", "-1e-890", "0.10", "-0", '"1e400"', "  7 "]
    if depth > 2 or dice.random() < (0.1 if depth == 0 else 0.7):
        return dice.choice(odd)
    keys = [dice.choice(HOSTILE) for _ in range(dice.randint(0, 8))]
    # at the top level some keys have only scalars, so they get columns
    members = [f"{json.dumps(key)}: {random_text(dice, depth + 1 + 9 * (key in SCALARS))}" for key in keys]
    return "{" + ", ".join(members) + "}"


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=LONG) for seed in (0, 1, 3))])
def test_each_field_of_hostile_documents_is_what_postgres_says(
    store: PlatformStore, dsn: str, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    if seed:
        # the writer looks at only a part of the events before it writes their file
        monkeypatch.setattr(files, "SMALL_RANGE", 3)
        monkeypatch.setattr(files, "SAMPLE_STEP", 4)
    register_orders(store)
    # short and long files, with and without arrays and fields of every kind
    append(store, *(random_text(dice) for _ in range((10, 60, 60, 60)[seed])))
    archive(dsn, tmp_path, partitions=1, max_events=(1, 10, 100, 17)[seed])
    extract = {f"field {n}": [key] for n, key in enumerate([*HOSTILE, "nowhere"])}
    options: dict[str, Any] = {"columns": ["position", "data", "created_at"], "extract": extract}
    log = read(dsn, **options)
    assert collected(read_history(spark, dsn, tmp_path, **options)) == in_order(log)
    # one by one: more files have columns for one field than for all
    directly = set()
    for name, path in [*extract.items()][::3]:
        frame = read_history(spark, dsn, tmp_path, columns=["position"], extract={name: path})
        by_spark, by_tasks = readers(frame)
        directly |= {by_spark, not by_tasks}
        assert collected(frame) == in_order([{"position": row["position"], name: row[name]} for row in log]), path
    assert True in directly


def test_spark_reads_all_columns_alone(store: PlatformStore, dsn: str, tmp_path: Path, spark: "SparkSession") -> None:
    fill(store)
    root = tmp_path.joinpath("a b%20c", "[x]{y,z}*?", "back\\slash", "date=2024-01-01", "ключ", ".hidden")
    archive(dsn, root, max_events=2)
    options: list[dict[str, Any]] = [
        {},
        {"extract": {"n": ["n"], "nowhere": ["nowhere"]}},
        {"columns": ["event_id"], "deciders": ["invoice"]},
        {"columns": ["offset"], "deciders": ["invoice", "none"], "events": ["paid"], "extract": {"event x": ["n"]}},
        {"columns": ["offset"], "deciders": []},
        {"columns": ["created_at", "data", "final"]},
    ]
    for each in options:
        frame = read_history(spark, dsn, root, **each)
        # with an empty list of deciders no file is read
        assert readers(frame) == (each.get("deciders") != [], False)
        columns = [(name, COLUMNS[name][0]) for name in each.get("columns", COLUMNS)]
        assert frame.dtypes == [*columns, *((name, "string") for name in each.get("extract", {}))]
        assert collected(frame) == in_order(read(dsn, **each))
    # Spark cannot match a path with both a pattern and a colon: our tasks read the file
    for other, spark_reads in (("_x:y", True), ("[x]/x:y", False)):
        shutil.copytree(root, tmp_path / other)
        frame = read_history(spark, dsn, tmp_path / other)
        assert readers(frame)[0] == spark_reads
        assert frame.count() == len(ALL)


def test_files_without_columns_are_read(store: PlatformStore, dsn: str, tmp_path: Path, spark: "SparkSession") -> None:
    fill(store)
    archive(dsn, tmp_path, max_events=2)
    # a file as written before fields had columns
    old = archived(store.connection, 0).files[0]
    rewritten = write_file(tmp_path, old.range, [*read_file(tmp_path / old.path, old.range)])
    ArchiveStore(store.connection).list_archive_file(
        0, old.range.from_position, old.range.to_position, old.path, rewritten.bytes, rewritten.checksum
    )
    options: dict[str, Any] = {"columns": ["partition", "position"], "extract": {"n": ["n"]}}
    frame = read_history(spark, dsn, tmp_path, **options)
    assert readers(frame) == (True, True)
    assert collected(frame) == in_order(read(dsn, **options))
    # Spark reads the old file too if no fields are wanted
    assert not readers(read_history(spark, dsn, tmp_path, columns=["offset"]))[1]


def forged(path: Path, wanted: LogRange) -> None:
    """Replace a file by a readable one with as many rows and another text."""
    table = pq.read_table(path)
    at = table.schema.names.index("decider_id")
    pq.write_table(table.set_column(at, "decider_id", pa.array(["another"] * wanted.size)), path)


def bomb(path: Path, wanted: LogRange) -> None:
    """Replace a file by a small one with texts that decode to gigabytes."""
    table = pq.read_table(path)
    text = pa.array(["x" * 967_000] * wanted.size)
    pq.write_table(pa.concat_tables([table.set_column(8, "data", text)] * 4), path, compression="zstd")


def shortened(path: Path, wanted: LogRange) -> None:
    pq.write_table(pq.read_table(path).slice(0, wanted.size - 1), path)


def test_only_the_listed_file_is_read(store: PlatformStore, dsn: str, tmp_path: Path, spark: "SparkSession") -> None:
    fill(store)
    archive(dsn, tmp_path)
    (file,) = archived(store.connection, 0).files
    path = tmp_path / file.path
    content = path.read_bytes()
    assert fields_of(tmp_path, file) == stated_fields(pq.read_schema(path))
    for attack in (forged, bomb, shortened):
        attack(path, file.range)
        with pytest.raises(FileUnreadable, match=str(path)):
            fields_of(tmp_path, file)
        # read by Spark, by our tasks, and with a time range
        ways: list[dict[str, Any]] = [{}, {"extract": {"deep": ["n", "m"]}}, {"between": EVER}]
        for options in ways if attack is forged else ways[:1]:
            with pytest.raises(build_errors(), match="is not the file that was written") as failed:
                history_frame(spark, dsn, log_history(store.connection, tmp_path), **options)
            assert blame_of(failed.value) is Blame.SERVER
        path.write_bytes(content)
    # a forged file of the same size: even its claim to have no event of a day is not believed
    path.write_bytes(content.replace(b"placed", b"plaxed"))
    assert path.read_bytes() != content
    with pytest.raises(build_errors(), match="another checksum"):
        history_frame(spark, dsn, log_history(store.connection, tmp_path), between=BEFORE)
    path.write_bytes(content)
    # the file exists when the read is planned; no setting of Spark makes the read skip a missing file
    settings = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for name in settings:
        spark.conf.set(name, "true")
    try:
        frame = read_history(spark, dsn, tmp_path)
        path.unlink()
        with pytest.raises(build_errors()) as failed:
            frame.collect()
        assert blame_of(failed.value) is Blame.SERVER
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


def test_names_may_differ_in_case(store: PlatformStore, dsn: str, tmp_path: Path, spark: "SparkSession") -> None:
    register_orders(store)
    append(store, json.dumps({"a": "lower", "A": "upper", "other": str(uuid4())}), '{"a": 1}')
    archive(dsn, tmp_path, partitions=1)
    spark.conf.set("spark.sql.caseSensitive", "false")
    try:
        for keys in (["a"], ["A", "other"], ["OTHER", "none", "NONE"]):
            extract = {f"{n}": [key] for n, key in enumerate(keys)}
            options: dict[str, Any] = {"columns": ["position"], "extract": extract}
            assert collected(read_history(spark, dsn, tmp_path, **options)) == in_order(read(dsn, **options))
    finally:
        spark.conf.set("spark.sql.caseSensitive", "true")
