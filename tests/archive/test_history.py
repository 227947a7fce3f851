"""Archive and tail as one DataFrame: the log, each event once, with the source's values."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from millrace.resources.archive.folder import ForeignArchive
from millrace.resources.archive.history import LogIncomplete, read_history
from millrace.resources.archive.store import ArchiveStore
from millrace.resources.archive.writer import archive_partition
from millrace.resources.event_log_source import COLUMNS
from millrace.resources.event_store import EventStore, NewEvent
from tests.archive.test_json_fields import ODD
from tests.support.building.event_log_reads import ALL, KEYS, append_odd, fill, positions, read
from tests.support.factories import ids_of_one_partition, register_orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def archive_all(dsn: str, root: Path, *, tail: bool = True, partitions: int = 3) -> None:
    for partition in range(partitions):
        archive_partition(dsn, root, partition, max_events=2, min_events=2, tail=tail)


def collected(frame: "DataFrame") -> list[dict[str, Any]]:
    return in_order(frame.toArrow().to_pylist())


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: json.dumps(row, default=str))


def test_archive_and_tail_are_the_log_each_event_once_also_where_it_is_purged(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    log = in_order(read(dsn))
    assert positions(log) == ALL
    # nothing, full files, everything
    for tail in (None, False, True):
        if tail is not None:
            archive_all(dsn, tmp_path, tail=tail)
        frame = read_history(spark, dsn, tmp_path)
        assert frame.dtypes == [(name, type_) for name, (type_, _) in COLUMNS.items()]
        assert collected(frame) == log
    (ours,) = ids_of_one_partition(store.connection, 1)
    store.append_events([NewEvent("order", ours, "paid", uuid4(), {"n": 9}, uuid4())])
    store.sequence_events()
    ArchiveStore(store.connection).raise_low_water_mark(0, 5)
    assert ArchiveStore(store.connection).purge_events(0) == 5
    after = collected(read_history(spark, dsn, tmp_path))
    assert len(after) == len(log) + 1
    assert [row for row in after if row in log] == log


def test_fields_filters_and_columns_are_those_of_the_source(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    register_orders(store)
    append_odd(store)
    (other,) = ids_of_one_partition(store.connection, 1)
    store.append_events([NewEvent("invoice", other, "paid", uuid4(), each, uuid4()) for each in ODD[:-1]])
    store.append_events([NewEvent("order", other, "shipped", uuid4(), {"a": {"b": 1}}, uuid4())])
    store.sequence_events()
    archive_all(dsn, tmp_path, tail=False, partitions=16)
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
        frame = read_history(spark, dsn, tmp_path, **each)
        assert frame.columns == [*each["columns"], *each.get("extract", {})]
        assert collected(frame) == in_order(read(dsn, **each))


def test_events_that_nobody_has_and_the_archive_of_another_store_are_errors(
    store: EventStore, dsn: str, tmp_path: Path, spark: "SparkSession"
) -> None:
    fill(store)
    ArchiveStore(store.connection).mark_archived(0, 3)
    ArchiveStore(store.connection).raise_low_water_mark(0, 3)
    with pytest.raises(LogIncomplete, match="log partition 0: positions 0 to 3"):
        read_history(spark, dsn, tmp_path)
    archive_all(dsn, tmp_path)
    with pytest.raises(LogIncomplete, match="log partition 0: positions 0 to 3"):
        read_history(spark, dsn, tmp_path)
    assert read_history(spark, dsn, tmp_path, partitions=[1, 2]).count() == 4
    (tmp_path / "archive.json").write_text('{"archive": "another"}')
    with pytest.raises(ForeignArchive, match="another event store"):
        read_history(spark, dsn, tmp_path, partitions=[1, 2])
