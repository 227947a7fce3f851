"""The options of the source: every wrong one is refused by its name; the documented tables are right."""

import re

import pytest

from millrace.spark import log_source as event_log_source
from millrace.spark.log_source import COLUMNS, OPTIONS, EventLogOptions, InvalidOption
from millrace.spark.log_source.options import BOTH, Mode
from tests.support.building.event_log_reads import options_of
from tests.support.project import PROJECT

TIME = "milliseconds since 1970, or a time with its zone such as 2030-01-31T12:00:00Z"
NO_TIMES = ("", "yesterday", "2030-01-31", "2030-01-31T12:00:00", "-1", "1.5", "true", "9" * 30, "2030-02-30T00:00:00Z")
COUNTS = ("maxRecordsPerPartition", "minPartitions", "maxOffsetsPerTrigger")
WHOLE = "a whole number from 1 to 9223372036854775807"
NO_COUNTS = ("0", "-1", "1.5", "many", "true", "", "²", "9223372036854775808", "1" * 5000)


# an option, a wrong value, and the allowed values
WRONG = [
    ("dsn", "", "a Postgres connection string"),
    ("startingOffsets", "first", 'earliest, latest, or JSON {"<log partition>": <position>, …}'),
    ("startingOffsets", "[1]", "earliest, latest, or JSON"),
    ("startingOffsets", '{"0": -1}', "earliest, latest, or JSON"),
    ("startingOffsets", '{"0": 1.5}', "earliest, latest, or JSON"),
    ("startingOffsets", '{"0": true}', "earliest, latest, or JSON"),
    ("startingOffsets", '{"p0": 1}', "earliest, latest, or JSON"),
    ("startingOffsets", '{"²": 1}', "earliest, latest, or JSON"),
    ("startingOffsets", "null", "earliest, latest, or JSON"),
    ("endingOffsets", "earliest", "latest, or JSON"),
    ("startingOffsets", '{"0": 1e3}', "earliest, latest, or JSON"),
    ("startingOffsets", '{"0": 1, "0": 2}', "earliest, latest, or JSON"),
    ("startingOffsets", '{"0": 1, "00": 2}', "earliest, latest, or JSON"),
    ("startingOffsets", '{"0": 9223372036854775808}', "earliest, latest, or JSON"),
    ("startingOffsets", "[" * 100_000, "earliest, latest, or JSON"),
    ("endingOffsets", '{"0": ', "latest, or JSON"),
    *((name, wrong, TIME) for name in ("startingTimestamp", "endingTimestamp") for wrong in NO_TIMES),
    ("failOnDataLoss", "no", "true, false"),
    ("partitions", "0", "JSON list of log partitions, from 0"),
    ("partitions", "[-1]", "JSON list of log partitions, from 0"),
    ("partitions", '["0"]', "JSON list of log partitions, from 0"),
    ("partitions", "[0, 0]", "JSON list of log partitions, from 0"),
    ("deciders", "order", "JSON list of deciders"),
    ("partitions", "[true]", "JSON list of log partitions, from 0"),
    ("partitions", "[1.0]", "JSON list of log partitions, from 0"),
    ("deciders", "[1]", "JSON list of deciders"),
    ("deciders", r'["a\u0000b"]', "JSON list of deciders"),
    ("events", '{"placed": 1}', "JSON list of events"),
    ("columns", "[]", "JSON list of partition, position, offset, event,"),
    ("columns", '["amount"]', "JSON list of partition,"),
    ("columns", '["event", "event"]', "JSON list of partition,"),
    ("columns", "[[1]]", "JSON list of partition,"),
    *(
        ("upcasts", text, 'JSON [{"decider": …, "event": …, "to_version": …, "moves": [{…}, …]}, …]')
        for text in (
            "{}",
            "[1]",
            '[{"decider": "a", "event": "b", "to_version": 2}]',
            '[{"decider": "a", "event": 1, "to_version": 2, "moves": []}]',
            '[{"decider": "a", "event": "b", "to_version": "2", "moves": []}]',
            '[{"decider": "a", "event": "b", "to_version": 2, "moves": {}}]',
        )
    ),
    ("extract", "[]", "JSON {column: [key, …]}"),
    ("extract", '{"a": []}', "JSON {column: [key, …]}"),
    ("extract", '{"a": "b"}', "JSON {column: [key, …]}"),
    ("extract", '{"a": [1]}', "JSON {column: [key, …]}"),
    *((name, wrong, WHOLE) for name in COUNTS for wrong in NO_COUNTS),
]
# an option where it does not apply, and the error
ELSEWHERE: list[tuple[Mode, str, str, str]] = [
    ("stream", "endingOffsets", "latest", "only with spark.read, not with spark.readStream"),
    ("stream", "endingTimestamp", "0", "only with spark.read, not with spark.readStream"),
    ("batch", "maxOffsetsPerTrigger", "1", "only with spark.readStream, not with spark.read"),
    ("batch", "startingOffsets", "latest", 'earliest, or JSON {"<log partition>": <position>, …}'),
    ("batch", "endingOffset", "{}", "dsn, startingOffsets, startingTimestamp, endingOffsets, endingTimestamp, failOn"),
    ("stream", "path", "x", "dsn, startingOffsets, startingTimestamp, maxOffsetsPerTrigger, failOnDataLoss, minPa"),
]


def test_a_wrong_option_is_refused_by_its_name_with_what_is_allowed() -> None:
    unsaid = []
    for name, wrong, allowed in WRONG:
        with pytest.raises(InvalidOption) as refused:
            EventLogOptions.read({"dsn": "postgresql://", name: wrong})
        if f"option {name!r} is {wrong!r}; allowed: {allowed}" not in str(refused.value):
            unsaid.append((name, wrong))
    for mode, name, wrong, allowed in ELSEWHERE:
        with pytest.raises(InvalidOption) as refused:
            EventLogOptions.read({"dsn": "postgresql://", name: wrong}, mode)
        shown = name if name in OPTIONS else name.lower()
        if f"option {shown!r} is {wrong!r}; allowed: {allowed}" not in str(refused.value):
            unsaid.append((mode, name))
    assert unsaid == []


def test_a_beginning_or_an_end_is_named_once_and_in_order() -> None:
    for which in ("starting", "ending"):
        both = {f"{which}Offsets": {}, f"{which}Timestamp": "0"}
        with pytest.raises(
            InvalidOption,
            match=f"'{which}Timestamp' is '0'; allowed: one of {which}Timestamp and {which}Offsets, not both",
        ):
            options_of(dsn="postgresql://", **both)
    with pytest.raises(InvalidOption, match="'startingTimestamp' is '2'; allowed: times up to endingTimestamp"):
        options_of(dsn="postgresql://", startingTimestamp="2", endingTimestamp="1")


def test_a_missing_dsn_and_a_taken_name_are_refused() -> None:
    with pytest.raises(InvalidOption, match="option 'dsn' is None; allowed: a Postgres connection string"):
        EventLogOptions.read({})
    with pytest.raises(InvalidOption, match="option 'extract' is 'event'; allowed: names that are not columns already"):
        options_of(dsn="postgresql://", extract={"event": ["a"]})


def test_the_table_in_the_documentation_says_the_same() -> None:
    text = (PROJECT / "docs" / "event_log_source.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| (both|batch|stream) \| (.*?) \|", text, re.MULTILINE)
    modes = {name: sorted(BOTH) if where == "both" else [where] for name, where, _ in told}
    assert modes == {name: sorted(modes) for name, modes in OPTIONS.items()}
    assert [name for name, _, _ in told] == list(OPTIONS)
    own = re.findall(r"^\| `(\w+)` +\| (.*?) +\|", event_log_source.__doc__ or "", re.MULTILINE)
    assert [(name, default) for name, _, default in told] == own
    (columns,) = re.findall(r"## Columns\n\n(.*?)\n\n", text, re.DOTALL)
    assert re.findall(r"`(\w+)`", columns) == list(COLUMNS)


def test_the_table_in_the_text_has_every_option_with_its_default() -> None:
    told = re.findall(r"^\| `(\w+)` +\| (.*?) +\| (.*?) +\|$", event_log_source.__doc__ or "", re.MULTILINE)
    assert [name for name, _, _ in told] == list(OPTIONS)
    for name, _, meaning in told:
        modes = {mode for mode in ("batch", "stream") if meaning.startswith(mode)} or {"batch", "stream"}
        assert modes == OPTIONS[name], name
    defaults = {name: default.strip("`") for name, default, _ in told}
    assert defaults.pop("dsn") == "required"
    spelled = {name: default for name, default in defaults.items() if default not in {"none", "all", "no limit"}}
    assert EventLogOptions.read({"dsn": "x"} | spelled) == EventLogOptions.read({"dsn": "x"})
