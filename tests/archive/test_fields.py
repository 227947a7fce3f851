"""Fields of `data` with their own columns: which fields are chosen, and what a file states about them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.archive import fields as of_file
from millrace.archive import files
from millrace.archive.fields import MOST_COLUMNS, MOST_FIELDS, Fields, FoundField, chosen_fields, stated_fields
from millrace.archive.files import SCHEMA, range_fields, read_range
from millrace.archive.listing import archived
from millrace.archive.writer import archive_partition
from millrace.event_store.platform import PlatformStore
from millrace.spark.log_source import LogRange
from tests.support.building.event_log_reads import append_json
from tests.support.factories import ids_of_one_partition, register_orders


def short(*names: str) -> list[FoundField]:
    return [FoundField(name, short=True) for name in names]


NAMES = [f"f{n:04}" for n in range(MOST_FIELDS)]
ODD = ["", "x" * 101, "ü" * 51, "line\nbreak", "nul\x01", "Case", "case", "STRASSE", "straße"]
# the fields found, whether there are arrays, the fields that get columns, and the others (None: unknown)
CHOSEN: tuple[tuple[list[FoundField], bool, Fields], ...] = (
    ([], False, Fields((), ())),
    ([*short("b", "a"), FoundField("nested", short=False)], False, Fields(("a", "b"), ("nested",))),
    # the most frequent ones
    (short(*reversed(NAMES)), False, Fields(tuple(NAMES[-MOST_COLUMNS:]), tuple(NAMES[:-MOST_COLUMNS]))),
    # names that a reader may confuse, or that are invalid
    (short(*ODD, "ключ", "a.b", "a b", "`"), False, Fields(tuple(sorted(["ключ", "a.b", "a b", "`"])), tuple(sorted(ODD)))),
    # a path may lead into an array, so no field is known to be absent
    (short("a"), True, Fields(("a",), None)),
)  # fmt: skip


def test_frequent_short_scalars_get_columns() -> None:
    for found, arrays, expected in CHOSEN:
        assert chosen_fields(found, arrays=arrays) == expected
    assert chosen_fields(short(*NAMES, "one too many"), arrays=False).others is None


def test_a_file_holds_the_paths_that_it_can_tell() -> None:
    fields, beside_arrays = Fields(("a",), ("nested",)), Fields(("a",), None)
    assert [path for path in (["a"], ["nowhere"]) if not fields.hold(path)] == []
    # a reader may confuse "A" with "a"
    assert [path for path in (["nested"], ["a", "b"], ["A"]) if fields.hold(path)] == []
    assert (beside_arrays.hold(["a"]), beside_arrays.hold(["1"]), Fields().hold(["a"])) == (True, False, False)


UNREADABLE = [
    b"", b"no json", b"[" * 100_000, b"[]", b'{"columns": ["a"]}', b'{"columns": "a", "others": []}', b"\xff",
    b'{"columns": [1], "others": []}', b'{"columns": ["a"], "others": {}}', b'{"columns": ["b"], "others": []}',
]  # fmt: skip


def test_of_a_file_that_says_nothing_readable_no_field_is_known() -> None:
    schema = of_file.with_columns(SCHEMA, ["a"]).with_metadata(Fields(("a",), ()).metadata)
    assert stated_fields(schema) == Fields(("a",), ())
    assert [
        said for said in UNREADABLE if stated_fields(schema.with_metadata({of_file.METADATA: said})) != Fields()
    ] == []
    assert stated_fields(SCHEMA) == Fields()


@pytest.fixture
def log(store: PlatformStore) -> PlatformStore:
    register_orders(store)
    return store


def append(store: PlatformStore, *data: str) -> None:
    (stream,) = ids_of_one_partition(store.connection, 1)
    append_json(store, "order", [(stream, "placed", each) for each in data])
    store.sequence_events()


def test_a_short_scalar_has_a_column_of_its_texts(log: PlatformStore, dsn: str, tmp_path: Path) -> None:
    append(
        log,
        '{"amount": 1.50, "text": "a\\"b\\\\ü\\n", "none": null, "truth": true, "list": [1], "long": "x"}',
        '{"amount": 1e400, "text": "", "list": 5, "long": "%s"}' % ("x" * 2000),
        '"amount"',
        "{}",
    )
    archive_partition(dsn, tmp_path, 0, tail=True)
    (file,) = archived(log.connection, 0).files
    table = pq.read_table(tmp_path / file.path)
    assert stated_fields(table.schema) == Fields(("amount", "none", "text", "truth"), ("list", "long"))
    assert table.schema.names == [*SCHEMA.names, "data:amount", "data:none", "data:text", "data:truth"]
    assert table.column("data:amount").to_pylist() == ["1.50", "1" + "0" * 400, None, None]
    assert table.column("data:none").to_pylist() == [None] * 4
    assert table.column("data:text").to_pylist() == ['a"b\\ü\n', "", None, None]
    assert table.column("data:truth").to_pylist() == ["true", None, None, None]


def test_an_event_of_very_many_fields_leaves_some_unknown(log: PlatformStore, dsn: str, tmp_path: Path) -> None:
    append(log, json.dumps({f"f{n}": n for n in range(3000)}), '{"f2999": "x", "f2998": "y"}')
    archive_partition(dsn, tmp_path, 0, tail=True)
    (file,) = archived(log.connection, 0).files
    schema = pq.read_schema(tmp_path / file.path)
    fields = stated_fields(schema)
    assert fields.others is None
    assert len(fields.columns) == MOST_COLUMNS == len(schema.names) - len(SCHEMA.names)
    assert {"f2998", "f2999"} <= {*fields.columns}
    assert all(schema.field(name).type == pa.string() for name in schema.names[len(SCHEMA.names) :])


def test_fields_are_told_whoever_looked(log: PlatformStore, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from adbc_driver_postgresql import dbapi

    monkeypatch.setattr(files, "SMALL_RANGE", 1)
    monkeypatch.setattr(files, "SAMPLE_STEP", 2)  # the first and the third event
    long = json.dumps("x" * 2000)
    told = ['{"a": 1, "n": [1]}', '{"b\\"c": null, "a": {"n": 1}, "ü": {}}', '{"a": "x"}', f'{{"a": {long}, "": 0}}']
    append(log, *told, '{"d": 1}', '["a"]', "{}", '"d"', "[]")
    with dbapi.connect(dsn) as connection, connection.cursor() as cursor:

        def read(first: int, last: int) -> tuple[Fields, list[str | None]]:
            wanted = LogRange(0, first, last)
            fields = range_fields(cursor, wanted)
            batches = list(read_range(cursor, wanted, fields))
            texts = [text for batch in batches for text in batch.column("data:a").to_pylist()]
            return fields.stated, texts

        others = ("", 'b"c', "n", "ü")
        assert read(0, 4) == (Fields(("a",), others), ["1", '{"n": 1}', "x", "x" * 2000])
        assert read(0, 5) == (Fields(("a", "d"), others), ["1", '{"n": 1}', "x", "x" * 2000, None])
        # an array in an event that the writer did not look at
        assert read(2, 7) == (Fields(("a", "d"), None), ["x", "x" * 2000, None, None, None])
        assert range_fields(cursor, LogRange(0, 5, 6)).stated == Fields((), None)
        assert range_fields(cursor, LogRange(0, 5, 6)).known_fields is None


def test_more_fields_than_a_file_names_are_unknown_whenever_they_come() -> None:
    fields = of_file.RangeFields(Fields(("a",), ("b",)))
    fields.add(pa.array([None, json.dumps([f"f{n}" for n in range(MOST_FIELDS - 2)])]))
    assert len(fields.stated.others or ()) == MOST_FIELDS - 1
    fields.add(pa.array(['["one too many"]', '["another"]']))
    assert fields.stated == Fields(("a",), None)
    fields.add(pa.array(['["c"]']))
    assert fields.stated == Fields(("a",), None)
