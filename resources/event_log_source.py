"""The Spark data source `event_log`: ranges of log partitions as rows, read through ADBC as Arrow, without a JAR.

Belongs here: the source and its options, usable by any Spark program: this module imports nothing of Millrace or Dagster.
Not here: who may read what; a caller that consumes exactly once states the ranges it has leased.

    spark.dataSource.register(EventLogSource)
    spark.read.format("event_log").option("dsn", "postgresql://…").load()

| option                   | default    | meaning                                                                        |
|--------------------------|------------|--------------------------------------------------------------------------------|
| `dsn`                    | required   | the event store's Postgres                                                     |
| `startingOffsets`        | `earliest` | `earliest`, or JSON `{"<log partition>": <first partition offset>, …}`         |
| `endingOffsets`          | `latest`   | `latest`, or JSON `{"<log partition>": <partition offset after the last>, …}`  |
| `partitions`             | all        | JSON list of log partitions                                                    |
| `deciders`               | all        | JSON list of deciders                                                          |
| `events`                 | all        | JSON list of events                                                            |
| `columns`                | all        | JSON list of columns, of `COLUMNS`                                             |
| `extract`                | none       | JSON `{"<new column>": ["<key>", …], …}`: fields of `data` by path, as text    |
| `maxRecordsPerPartition` | 100000     | how many log positions one Spark task reads at most                            |

Stated offsets lie within what the log holds: below its first kept event or beyond its end is an error, not fewer rows.

Fields of `data` are extracted in Postgres, which is twice as fast as parsing JSON in Spark. A missing field and a JSON null
are null; text comes unquoted; any other JSON value comes as its JSON text. Filters are options because pushing down Spark's
own filters gives wrong results in Spark 4.3.0.
"""

# Spark loads this module anew in a Python process for each plan: what only tasks need, tasks import.
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql
    from pyspark.sql.types import StructType

# column -> Spark type, SQL expression over event_log l and events e
COLUMNS: dict[str, tuple[str, str]] = {
    "partition": ("int", "l.partition"),
    "partition_offset": ("bigint", "l.partition_offset"),
    "offset": ("bigint", 'l."offset"'),
    "event": ("string", "e.event"),
    "event_id": ("string", "e.event_id::text"),
    "event_version": ("bigint", "e.event_version"),
    "decider": ("string", "e.decider"),
    "decider_id": ("string", "e.decider_id"),
    "data": ("string", "e.data::text"),
    "command_id": ("string", "e.command_id::text"),
    "previous_id": ("string", "e.previous_id::text"),
    "final": ("boolean", "e.final"),
    "created_at": ("timestamp", "e.created_at"),
}


OPTIONS = (
    "dsn",
    "startingOffsets",
    "endingOffsets",
    "partitions",
    "deciders",
    "events",
    "columns",
    "extract",
    "maxRecordsPerPartition",
)


MARKS = "select partition, earliest_offset, high_water_mark from event_store.partitions"


class InvalidOption(ValueError):
    """An option of the source is missing or unreadable; the text names it and what is allowed."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(f"event_log: option {option!r} is {value!r}; allowed: {allowed}")


@dataclass(frozen=True)
class OffsetRange:
    """The positions [from_offset, to_offset) of one log partition."""

    partition: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True)
class EventLogOptions:
    """The source's options, read and checked."""

    dsn: str
    starting: Mapping[int, int] | None
    ending: Mapping[int, int] | None
    partitions: tuple[int, ...] | None
    deciders: tuple[str, ...] | None
    events: tuple[str, ...] | None
    columns: tuple[str, ...]
    extract: Mapping[str, tuple[str, ...]]
    max_records: int

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "EventLogOptions":
        """Read the options as Spark passes them: names in any case, values as text.

        Raises:
            InvalidOption: One is missing, unknown or unreadable.
        """
        given = {name.lower(): value for name, value in options.items()}
        unknown = set(given) - {name.lower() for name in OPTIONS} - {"path"}
        if unknown:
            raise InvalidOption(min(unknown), given[min(unknown)], ", ".join(OPTIONS))
        if not given.get("dsn"):
            raise InvalidOption("dsn", given.get("dsn"), "a Postgres connection string")
        extract = _json(given, "extract", "JSON {column: [key, …]}", _is_paths) or {}
        columns = tuple(_json(given, "columns", f"JSON list of {', '.join(COLUMNS)}", _is_columns) or COLUMNS)
        clash = set(extract) & set(columns)
        if clash:
            raise InvalidOption("extract", min(clash), "names that are not columns already")
        records = given.get("maxrecordsperpartition", "100000")
        if not _is_digits(records) or int(records) == 0:
            raise InvalidOption("maxRecordsPerPartition", records, "a whole number from 1")
        return cls(
            dsn=given["dsn"],
            starting=_offsets(given, "startingOffsets", "earliest"),
            ending=_offsets(given, "endingOffsets", "latest"),
            partitions=_tuple(_json(given, "partitions", "JSON list of log partitions, from 0", _is_partitions)),
            deciders=_tuple(_json(given, "deciders", "JSON list of deciders", _is_texts)),
            events=_tuple(_json(given, "events", "JSON list of events", _is_texts)),
            columns=columns,
            extract={column: tuple(path) for column, path in extract.items()},
            max_records=int(records),
        )

    def schema(self) -> str:
        """The rows' schema as DDL: the chosen columns, then the extracted fields as text."""
        types = {column: COLUMNS[column][0] for column in self.columns} | dict.fromkeys(self.extract, "string")
        return ", ".join(f"`{column.replace('`', '``')}` {type_}" for column, type_ in types.items())

    def query(self, ranges: tuple[OffsetRange, ...]) -> "sql.Composed":
        """The SELECT that reads ranges; without bind parameters, because ADBC reads by COPY only then."""
        from psycopg import sql

        columns = [sql.SQL("{} as {}").format(sql.SQL(COLUMNS[c][1]), sql.Identifier(c)) for c in self.columns]
        columns += [
            sql.SQL("e.data #>> {}::text[] as {}").format(sql.Literal(list(path)), sql.Identifier(column))
            for column, path in self.extract.items()
        ]
        conditions: list[sql.Composable] = [sql.SQL("true")]
        for column, wanted in (("decider", self.deciders), ("event", self.events)):
            if wanted is not None:
                condition = sql.SQL("e.{} = any ({}::text[])")
                conditions.append(condition.format(sql.Identifier(column), sql.Literal(list(wanted))))
        values = sql.SQL(", ").join(
            sql.SQL("({}, {}, {})").format(r.partition, r.from_offset, r.to_offset) for r in ranges
        )
        return sql.SQL(
            "select {columns} from (values {values}) r(partition, from_offset, to_offset)"
            " join event_store.event_log l on l.partition = r.partition"
            " and l.partition_offset >= r.from_offset and l.partition_offset < r.to_offset"
            ' join event_store.events e using ("offset") where {conditions}'
        ).format(columns=sql.SQL(", ").join(columns), values=values, conditions=sql.SQL(" and ").join(conditions))


@dataclass(frozen=True)
class EventLogInput(InputPartition):
    """What one Spark task reads."""

    ranges: tuple[OffsetRange, ...]


class EventLogSource(DataSource):
    """The data source; see the module's text for its options."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "event_log"

    def schema(self) -> str:
        """The rows' schema, by the options `columns` and `extract`."""
        return EventLogOptions.read(self.options).schema()

    def reader(self, schema: "StructType") -> "EventLogReader":
        """The batch reader."""
        return EventLogReader(EventLogOptions.read(self.options), schema)


class EventLogReader(DataSourceReader):
    """Splits the wanted ranges over tasks and reads them."""

    def __init__(self, options: EventLogOptions, schema: "StructType") -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Pack the ranges into tasks: small ones together, large ones split, each up to `maxRecordsPerPartition`."""
        tasks: list[InputPartition] = []
        packed: list[OffsetRange] = []
        room = self._options.max_records
        for wanted in wanted_ranges(self._options):
            start = wanted.from_offset
            while start < wanted.to_offset:
                end = min(wanted.to_offset, start + room)
                packed.append(OffsetRange(wanted.partition, start, end))
                room -= end - start
                start = end
                if room == 0:
                    tasks.append(EventLogInput(tuple(packed)))
                    packed, room = [], self._options.max_records
        if packed:
            tasks.append(EventLogInput(tuple(packed)))
        return tasks

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read one task's ranges as Arrow batches."""
        from adbc_driver_postgresql import dbapi
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(partition, EventLogInput):
            return  # Spark asks for one partition without an input where there are none
        target = to_arrow_schema(self._schema, timezone="UTC")
        with dbapi.connect(self._options.dsn) as connection, connection.cursor() as cursor:
            cursor.execute(MARKS)
            require_kept(partition.ranges, {p: (first, mark) for p, first, mark in cursor.fetchall()})
            cursor.execute(self._options.query(partition.ranges).as_string())
            for batch in cursor.fetch_record_batch():
                yield batch.cast(target)


def wanted_ranges(options: EventLogOptions) -> list[OffsetRange]:
    """The ranges that the options name; Postgres is asked only for ends that they leave open, the rest the tasks check.

    Raises:
        InvalidOption: A log partition does not exist.
    """
    if options.starting is not None and options.ending is not None:
        marks = {p: (options.starting.get(p, end), end) for p, end in options.ending.items()}
        starting, ending = options.starting, options.ending
    else:
        marks = _marks(options.dsn)
        starting = {p: first for p, (first, _) in marks.items()} | dict(options.starting or {})
        ending = {p: mark for p, (_, mark) in marks.items()} | dict(options.ending or {})
    chosen = options.partitions if options.partitions is not None else tuple(sorted(marks))
    for option, partitions in (
        ("partitions", chosen),
        ("startingOffsets", options.starting or ()),
        ("endingOffsets", options.ending or ()),
    ):
        unknown = set(partitions) - set(marks)
        if unknown:
            raise InvalidOption(option, min(unknown), f"log partitions {', '.join(map(str, sorted(marks))) or 'none'}")
    return [OffsetRange(p, starting[p], ending[p]) for p in chosen if starting.get(p, ending[p]) < ending[p]]


def require_kept(ranges: tuple[OffsetRange, ...], marks: Mapping[int, tuple[int, int]]) -> None:
    """Refuse ranges of which the log holds only a part: a typing error, removed history, or a replica that lags behind.

    Raises:
        InvalidOption: A log partition does not exist, or a range lies outside its first and last kept offsets.
    """
    for wanted in ranges:
        if wanted.partition not in marks:
            raise InvalidOption("endingOffsets", wanted.partition, f"log partitions {min(marks)} to {max(marks)}")
        first, mark = marks[wanted.partition]
        allowed = f"offsets {first} to {mark} of log partition {wanted.partition}"
        if wanted.from_offset < first:
            raise InvalidOption("startingOffsets", wanted.from_offset, allowed)
        if wanted.to_offset > mark:
            raise InvalidOption("endingOffsets", wanted.to_offset, allowed)


def _marks(dsn: str) -> dict[int, tuple[int, int]]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        rows = connection.execute(MARKS).fetchall()
    return {partition: (first, mark) for partition, first, mark in rows}


def _json(given: Mapping[str, str], option: str, allowed: str, fits: Any) -> Any:  # noqa: ANN401 - JSON has any shape
    text = given.get(option.lower())
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidOption(option, text, allowed) from error
    if not fits(value):
        raise InvalidOption(option, text, allowed)
    return value


def _offsets(given: Mapping[str, str], option: str, default: str) -> dict[int, int] | None:
    if given.get(option.lower(), default) == default:
        return None
    allowed = f'{default}, or JSON {{"<log partition>": <partition offset>, …}}'
    offsets = _json(given, option, allowed, _is_offsets)
    return {int(partition): offset for partition, offset in offsets.items()}


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_offsets(value: object) -> bool:
    return isinstance(value, dict) and all(_is_digits(k) and _is_whole(v) for k, v in value.items())


def _is_partitions(value: object) -> bool:
    # one that is named twice would be read twice
    return isinstance(value, list) and all(_is_whole(v) for v in value) and len(set(value)) == len(value)


def _is_texts(value: Any) -> bool:  # noqa: ANN401 - JSON has any shape
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _is_columns(value: Any) -> bool:  # noqa: ANN401 - JSON has any shape
    return _is_texts(value) and value != [] and set(value) <= set(COLUMNS) and len(set(value)) == len(value)


def _is_paths(value: object) -> bool:
    return isinstance(value, dict) and all(_is_texts(path) and path for path in value.values())
