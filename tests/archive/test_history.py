"""Archive and tail as one DataFrame: the log, each event once, with the source's values."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from millrace.resources.archive.folder import ForeignArchive
from millrace.resources.archive.history import LogIncomplete, read_history
from millrace.resources.archive.json_fields import field
from millrace.resources.archive.store import ArchiveStore
from millrace.resources.archive.writer import archive_partition
from millrace.resources.event_log_source import COLUMNS
from millrace.resources.event_store import EventStore, NewEvent
from tests.event_log_source.test_values import KEYS, odd
from tests.support.building.event_log_reads import ALL, fill, load
from tests.support.factories import ids_of_one_partition, value

__all__ = ["odd"]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# what JSON may hold, as jsonb prints it
ODD: list[Any] = [
    {}, [], None, True, False, 0, -0.0, "", "null", "1", '{"a": 1}', " \u007f\u2028\U0001f600\b\f\n\r\t\"\\/\u0001\u001f",
    {"a": None}, {"a": {"b": None}}, {"a": {"b": [1, {"c": "d"}, None]}}, {"a": '{"b": 1}'}, {"a": [[1, 2], [3]]}, {"a": "1"},
    {"1": "key"}, {"a": {"1": "key", "-1": "k"}}, [{"a": 1}], [1, "two", [3]], {"": "empty"}, {"a": {"": {"b": ""}}},
    {"b": {"z": 1, "aa": 2, "B": [True, False, None]}}, {"a": 1e300}, {"a": 10**400},
]  # fmt: skip
NUMBERS = ["12.50", "0.1234567890123456789012345", "-0.00", "1E+5", "1e-7", "123456789012345678901234567890.10"]
PATHS = [
    ["a"], ["a", "b"], ["a", "b", "1", "c"], ["a", "b", "-1"], ["a", "b", "-2", "c"], ["a", "0"], ["a", "0", "1"], ["a", "1", "5"],
    ["1"], ["a", "1"], ["a", "-1"], ["0"], ["0", "a"], ["2", "0"], [" 1"], ["+1"], ["01"], ["1 "], ["1.0"], ["-9"], [""], ["a", "", "b"],
    ["b"], ["b", "B", "2"], ["b", "B"], ["missing", "a"],
]  # fmt: skip


def test_a_field_is_what_postgres_says_of_odd_values(store: EventStore) -> None:
    texts = [json.dumps(each) for each in ODD] + [f'{{"a": {n}, "b": [{n}]}}' for n in NUMBERS]
    for text in texts:
        stored = value(store.connection, "select %s::jsonb::text", text)
        for path in PATHS:
            expected = value(store.connection, "select %s::jsonb #>> %s::text[]", text, path)
            assert field(stored, path) == expected, (stored, path)


def archive_all(dsn: str, root: Path, *, tail: bool = True, partitions: int = 16) -> None:
    for partition in range(partitions):
        archive_partition(dsn, root, partition, max_events=2, min_events=2, tail=tail)


def collected(frame: "DataFrame") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: json.dumps(row, default=str))


@pytest.mark.parametrize("archived", ["nothing", "full files", "everything"])
def test_archive_and_tail_are_the_log_each_event_once(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession", archived: str
) -> None:
    fill(store)
    if archived != "nothing":
        archive_all(dsn, tmp_path, tail=archived == "everything")
    store.sequence_events()
    frame = read_history(spark, dsn, tmp_path)
    source = load(spark, dsn)
    assert frame.dtypes == source.dtypes == [(name, type_) for name, (type_, _) in COLUMNS.items()]
    assert collected(frame) == collected(source)
    positions = sorted((row["partition"], row["position"]) for row in collected(frame))
    assert positions == ALL


def test_what_was_purged_is_read_from_the_archive_and_the_rest_from_the_log(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    before = collected(load(spark, dsn))
    archive_all(dsn, tmp_path)
    (ours,) = ids_of_one_partition(store.connection, 1)
    store.append_events([NewEvent("order", ours, "paid", uuid4(), {"n": 9}, uuid4())])
    store.sequence_events()
    ArchiveStore(store.connection).raise_low_water_mark(0, 5)
    assert ArchiveStore(store.connection).purge_events(0) == 5
    after = collected(read_history(spark, dsn, tmp_path))
    assert len(after) == len(before) + 1
    assert [row for row in after if row in before] == before


def test_fields_filters_and_columns_are_those_of_the_source(
    odd: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    (other,) = ids_of_one_partition(odd.connection, 1)
    odd.append_events([NewEvent("invoice", other, "paid", uuid4(), each, uuid4()) for each in ODD[:-1]])
    odd.append_events([NewEvent("order", other, "shipped", uuid4(), {"a": {"b": 1}}, uuid4())])
    odd.sequence_events()
    archive_all(dsn, tmp_path, tail=False)
    extract = {f"{key} of it": [key] for key in KEYS} | {
        "deep": ["object", "inner", "list", "1", "x"],
        "a b": ["a", "b"],
    }
    options: list[dict[str, Any]] = [
        {"columns": ["offset", "event"], "extract": extract},
        {"columns": ["created_at", "data"], "deciders": ["invoice"], "extract": {"a": ["a"]}},
        {"columns": ["event_id"], "events": ["shipped", "none"]},
        {"columns": ["offset"], "partitions": [0], "deciders": []},
    ]
    for each in options:
        frame, source = read_history(spark, dsn, tmp_path, **each), load(spark, dsn, **each)
        assert frame.dtypes == source.dtypes
        assert collected(frame) == collected(source)


def test_events_that_nobody_has_are_an_error_that_names_them(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    ArchiveStore(store.connection).mark_archived(0, 3)
    ArchiveStore(store.connection).raise_low_water_mark(0, 3)
    with pytest.raises(LogIncomplete, match="log partition 0: positions 0 to 3"):
        read_history(spark, dsn, tmp_path)
    archive_partition(dsn, tmp_path, 0, tail=True)
    with pytest.raises(LogIncomplete, match="log partition 0: positions 0 to 3"):
        read_history(spark, dsn, tmp_path)
    assert read_history(spark, dsn, tmp_path, partitions=[1, 2]).count() == 4


def test_the_archive_of_another_store_is_not_read(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    archive_all(dsn, tmp_path)
    (tmp_path / "archive.json").write_text('{"archive": "another"}')
    with pytest.raises(ForeignArchive, match="another event store"):
        read_history(spark, dsn, tmp_path)
