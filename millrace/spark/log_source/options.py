"""The options of the source: their names, and reading the texts that Spark passes into checked values.

Not here: whether the log holds the requested positions (`ranges`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

Mode = Literal["batch", "stream"]
# where a read begins or ends: an end of the log, a position for each log partition, or a time
Bound = Literal["earliest", "latest"] | Mapping[int, int] | datetime

# column -> (Spark type, SQL expression over event_log l and events e)
COLUMNS: dict[str, tuple[str, str]] = {
    "partition": ("int", "l.partition"),
    "position": ("bigint", "l.position"),
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
    "version": ("bigint", "e.version"),
    "metadata": ("string", "e.metadata::text"),
}

BOTH: frozenset[Mode] = frozenset({"batch", "stream"})
# option -> where it applies
OPTIONS: dict[str, frozenset[Mode]] = {
    "dsn": BOTH,
    "startingOffsets": BOTH,
    "startingTimestamp": BOTH,
    "endingOffsets": frozenset({"batch"}),
    "endingTimestamp": frozenset({"batch"}),
    "maxOffsetsPerTrigger": frozenset({"stream"}),
    "failOnDataLoss": BOTH,
    "minPartitions": BOTH,
    "maxRecordsPerPartition": BOTH,
    "partitions": BOTH,
    "deciders": BOTH,
    "events": BOTH,
    "columns": BOTH,
    "extract": BOTH,
    "upcasts": BOTH,
}

_POSITIONS = 'JSON {"<log partition>": <position>, …}'
_TIME = "milliseconds since 1970, or a time with its zone such as 2030-01-31T12:00:00Z"
_READ_BY: dict[Mode, str] = {"batch": "spark.read", "stream": "spark.readStream"}
_UPCASTS = 'JSON [{"decider": …, "event": …, "to_version": …, "moves": [{…}, …]}, …]'
_LARGEST = 2**63 - 1


def by_event(upcasts: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return upcasts by decider and event, in the order of versions; numbers in them keep their digits."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in sorted(json.loads(upcasts, parse_float=Decimal), key=lambda one: int(one["to_version"])):
        found.setdefault((one["decider"], one["event"]), []).append(one)
    return found


class InvalidOption(ValueError):
    """An option is missing, unreadable or asks for missing positions; the text names it and what is allowed."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(f"event_log: option {option!r} is {value!r}; allowed: {allowed}")


@dataclass(frozen=True)
class EventLogOptions:
    """The source's options, read and checked.

    Attributes:
        dsn: The event store's Postgres; it may hold a password.
        start: Where to begin.
        end: Where to end; for a batch only.
        max_positions: The greatest number of positions in a batch of a stream; None for no limit.
        fail_on_data_loss: Whether to fail if the log does not hold all positions to read.
        min_partitions: The least number of Spark tasks.
        max_records: The greatest number of positions in a Spark task.
        partitions: The log partitions; None for all.
        deciders: The deciders; None for all.
        events: The events; None for all.
        columns: The columns, in their order.
        extract: New columns, each with the path of its field of `data`.
        upcasts: JSON that says how to read `data` of older versions in the newest shape; `[]` reads them as stored.
            A text, so that a number in it keeps its digits.
    """

    dsn: str = field(repr=False)
    start: Bound
    end: Bound
    max_positions: int | None
    fail_on_data_loss: bool
    min_partitions: int
    max_records: int
    partitions: tuple[int, ...] | None
    deciders: tuple[str, ...] | None
    events: tuple[str, ...] | None
    columns: tuple[str, ...]
    extract: Mapping[str, tuple[str, ...]]
    upcasts: str

    @classmethod
    def read(cls, options: Mapping[str, str], mode: Mode | None = None) -> "EventLogOptions":
        """Read the options as Spark passes them: names in any case, values as text.

        `mode` is None until Spark says whether it will read a batch or a stream.

        Raises:
            InvalidOption: An option is missing, unknown, unreadable, or does not apply to the mode.
        """
        lowered = {name.lower(): value for name, value in options.items()}
        _require_known(lowered, mode)
        if not lowered.get("dsn"):
            raise InvalidOption("dsn", lowered.get("dsn"), "a Postgres connection string")
        columns = tuple(_json(lowered, "columns", f"JSON list of {', '.join(COLUMNS)}", _is_columns) or COLUMNS)
        extract = _json(lowered, "extract", "JSON {column: [key, …]}", _is_paths) or {}
        clash = set(extract) & set(columns)
        if clash:
            raise InvalidOption("extract", min(clash), "names that are not columns already")
        start = _bound(lowered, "starting", "earliest", {"earliest"} if mode == "batch" else {"earliest", "latest"})
        end = _bound(lowered, "ending", "latest", {"latest"})
        if isinstance(start, datetime) and isinstance(end, datetime) and start > end:
            raise InvalidOption("startingTimestamp", lowered["startingtimestamp"], "times up to endingTimestamp")
        return cls(
            dsn=lowered["dsn"],
            start=start,
            end=end,
            max_positions=_whole(lowered, "maxOffsetsPerTrigger"),
            fail_on_data_loss=_flag(lowered, "failOnDataLoss", default=True),
            min_partitions=_whole(lowered, "minPartitions") or 1,
            max_records=_whole(lowered, "maxRecordsPerPartition") or 500_000,
            partitions=_tuple(_json(lowered, "partitions", "JSON list of log partitions, from 0", _is_partitions)),
            deciders=_tuple(_json(lowered, "deciders", "JSON list of deciders", _is_texts)),
            events=_tuple(_json(lowered, "events", "JSON list of events", _is_texts)),
            columns=columns,
            extract={column: tuple(path) for column, path in extract.items()},
            upcasts=lowered.get("upcasts", "[]") if _json(lowered, "upcasts", _UPCASTS, _is_upcasts) else "[]",
        )

    def schema(self) -> str:
        """Return the rows' schema as DDL: the chosen columns, then the extracted fields as text."""
        types = {column: COLUMNS[column][0] for column in self.columns} | dict.fromkeys(self.extract, "string")
        return ", ".join(f"`{column.replace('`', '``')}` {type_}" for column, type_ in types.items())


def _require_known(options: Mapping[str, str], mode: Mode | None) -> None:
    names = {name.lower(): name for name in OPTIONS}
    unknown = set(options) - set(names)
    if unknown:
        allowed = [name for name, modes in OPTIONS.items() if mode is None or mode in modes]
        raise InvalidOption(min(unknown), options[min(unknown)], ", ".join(allowed))
    for name in sorted(options):
        modes = OPTIONS[names[name]]
        if mode is not None and mode not in modes:
            (other,) = modes
            raise InvalidOption(names[name], options[name], f"only with {_READ_BY[other]}, not with {_READ_BY[mode]}")


def _bound(options: Mapping[str, str], which: str, default: Literal["earliest", "latest"], ends: set[str]) -> Bound:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    text = options.get(timestamp.lower())
    if text is not None:
        if offsets.lower() in options:
            raise InvalidOption(timestamp, text, f"one of {timestamp} and {offsets}, not both")
        try:
            if _is_digits(text):
                return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text))
            time = datetime.fromisoformat(text)
        except (ValueError, OverflowError) as error:
            raise InvalidOption(timestamp, text, _TIME) from error
        if time.tzinfo is None:
            raise InvalidOption(timestamp, text, _TIME)
        return time
    text = options.get(offsets.lower(), default)
    if text in ends:
        return "earliest" if text == "earliest" else "latest"
    stated = _json(options, offsets, f"{', '.join(sorted(ends))}, or {_POSITIONS}", _is_by_partition)
    return {int(partition): position for partition, position in stated.items()}


def _whole(options: Mapping[str, str], option: str) -> int | None:
    text = options.get(option.lower())
    if text is not None and not (_is_digits(text) and 0 < int(text) <= _LARGEST):
        raise InvalidOption(option, text, f"a whole number from 1 to {_LARGEST}")
    return None if text is None else int(text)


def _flag(options: Mapping[str, str], option: str, *, default: bool) -> bool:
    text = options.get(option.lower(), str(default))
    if text.lower() not in {"true", "false"}:
        raise InvalidOption(option, text, "true, false")
    return text.lower() == "true"


def _json(options: Mapping[str, str], option: str, allowed: str, fits: Callable[[Any], bool]) -> Any:  # noqa: ANN401 - JSON has any shape
    text = options.get(option.lower())
    if text is None:
        return None
    try:
        value = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(option, text, allowed) from error
    if not fits(value):
        raise InvalidOption(option, text, allowed)
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _is_digits(text: str) -> bool:
    # Python parses numbers of at most 4300 digits
    return text.isascii() and text.isdigit() and len(text) <= len(str(_LARGEST))


def _is_by_partition(value: object) -> bool:
    if not isinstance(value, dict) or not all(_is_digits(k) and _is_whole(v) for k, v in value.items()):
        return False
    return len({int(k) for k in value}) == len(value)


def _is_partitions(value: object) -> bool:
    # a log partition that is named twice would be read twice
    return isinstance(value, list) and all(_is_whole(v) for v in value) and len(set(value)) == len(value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and "\0" not in v for v in value)


def _is_columns(value: Any) -> bool:  # noqa: ANN401 - JSON has any shape
    return _is_texts(value) and value != [] and set(value) <= set(COLUMNS) and len(set(value)) == len(value)


def _is_paths(value: object) -> bool:
    return isinstance(value, dict) and all(_is_texts(path) and path for path in value.values())


def _is_upcasts(value: object) -> bool:
    names = {"decider", "event", "to_version", "moves"}
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and set(each) == names
        and _is_texts([each["decider"], each["event"]])
        and _is_whole(each["to_version"])
        and isinstance(each["moves"], list)
        for each in value
    )
