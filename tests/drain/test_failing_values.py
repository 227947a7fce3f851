"""Any JSON value read as any type: the model takes it, or its stream fails alone, in the same batch."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count as numbers
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace import all_, avg, count, field, first, fold, last, max_, min_, read_model, set_union, stream_id, sum_
from millrace.drain import parts as parting
from millrace.drain import round as one_round
from millrace.drain import staged as staged_builds
from millrace.drain import staging
from millrace.drain.build_errors import in_one_line
from millrace.drain.failing_streams import PartFails
from millrace.drain.misread import MisreadEvent
from millrace.read_models import recompute
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.versions import ensure_version, reset_model
from millrace.rows import FoldEvent, State
from tests.support.building.drains import close, thing
from tests.support.building.lab import Lab
from tests.support.building.poison import locks
from tests.support.building.read_models import DECIDER
from tests.support.hostile_json import NUMBERS, UNREADABLE, WORDS, append_text
from tests.support.sql_calls import BatchEvent, append_events, get_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# by type: values that the type holds exactly
GOOD: dict[str, tuple[object, ...]] = {
    "bigint": (1, -(2**40), "12", " 7 "), "int": (1, "0", -5), "double": (1.5, "2e3", 7), "boolean": (True, "no", "T"),
    "date": ("2024-02-29", " 2024-1-5 "), "timestamp": ("2024-02-29", "2024-02-29 10:00:00.5", "2024-02-29T10:00:00Z"),
    "decimal(5,2)": (1.5, "100.250", 7), "decimal(38,0)": (10**30, 5),
}  # fmt: skip
# by type: values that it does not hold exactly; some look like errors of a lost server
BAD: dict[str, tuple[object, ...]] = {
    "bigint": (
        "a lot", 2**63, 1.5, "", "it's \\ so", "x" * 3000, "a\nb",
        "event_log: No space left on device, psycopg.OperationalError, ExecutorLostFailure, HistoryShortened",
        "a\nTraceback (most recent call last):\n  File x\nmillrace.spark.log_source.log.Unreadable: event_log: b",
    ),
    "int": (2**31, "5.0", "ü💥"),
    "double": ("NaN", "1e400", "a lot"),
    "boolean": ("maybe", 2, ""),
    "date": ("2024", "2024-02-30", "2024-02-29 10:00"),
    "timestamp": (
        "10:00", "2024-02-30", "2024-02-29 25:00", "event_log: No space left on device", "294276-12-31T23:59:59Z",
        "-infinity",
    ),
    "decimal(5,2)": (
        1.234, "a lot", 12345678, "+000123456.70", "", ".", "9" * 45, 1e300, "1e5000", "1e-16000", "Infinity",
    ),
    "decimal(38,0)": ("9" * 39, 0.5, "NaN"),
}  # fmt: skip


@read_model(view="typed", deciders=[DECIDER], key=["owner", "born"])
class Typed:
    """One row per owner and day: each type as the type of some column."""

    owner = field("data.owner", type="int")
    born = field("data.born", type="date")
    events = count()
    c_bigint = sum_("data.bigint")
    c_int = first("data.int", type="int")
    c_double = max_("data.double", type="double")
    c_boolean = all_("data.boolean")
    c_date = last("data.date", type="date")
    c_timestamp = set_union("data.timestamp", type="timestamp")
    c_decimal_5_2 = avg("data.decimal(5,2)", type="decimal(5,2)")
    c_decimal_38_0 = min_("data.decimal(38,0)", type="decimal(38,0)")
    # these columns read no field of a made event
    counted = count("data.any")
    of_used = last("data.used", type="bigint", events=["used"])


def typed_events() -> tuple[list[BatchEvent], dict[str, str]]:
    """Make streams of three events, each with its own row; return the events, and the failing type by stream."""
    owners = numbers()
    events: list[BatchEvent] = []
    fails: dict[str, str] = {}

    def good(place: int) -> dict[str, object]:
        return {type_: values[place % len(values)] for type_, values in GOOD.items()}

    def stream(name: str, in_the_middle: dict[str, object]) -> None:
        key = {"owner": next(owners), "born": "2024-02-29"}
        middle = good(1) | key | in_the_middle
        events.extend(thing(name, **data) for data in (good(0) | key, middle, good(2) | key))

    for type_, values in BAD.items():
        for n, bad in enumerate(values):
            stream(f"{type_} {n}", {type_: bad})
            fails[f"{type_} {n}"] = type_
    stream("no key", {"owner": "a lot"})
    stream("no keys", {"owner": "a lot", "born": "a lot"})
    fails |= {"no key": "int", "no keys": "int"}
    # an event without a key fails at no field, not even at its other key
    stream("no owner", {"owner": None, "born": "a lot", "bigint": "a lot"})
    stream("no day", {"born": None, "owner": "a lot"})
    stream("counted", {"any": "a lot"})
    stream("of another event", {"used": "a lot"})
    stream("nothing", dict.fromkeys(GOOD))
    return events, fails


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect an entry each time a part of a batch is staged."""
    times: list[int] = []
    stage = staging.stage_events

    def counted(*arguments: Any) -> object:  # noqa: ANN401 - passed on
        times.append(1)
        return stage(*arguments)

    for module in (parting, staged_builds):
        monkeypatch.setattr(module, "stage_events", counted)
    return times


def test_a_value_that_does_not_fit_fails_its_stream_alone(lab: Lab, staged: list[int]) -> None:
    model = cast("ReadModel", Typed)
    events, fails = typed_events()
    append_events(lab, events)
    report = lab.at(0).drain(model)
    assert (report.batches, report.failed_streams, report.failed) == (1, len(fails), {})
    # built by a round
    assert len(staged) == 0
    assert {*locks(lab)} == {(name, 1) for name in fails}
    told = lab.rows("select decider_id, last_error from event_store.stream_locks")
    wrong = [(name, error) for name, error in told if fails[name] not in error or "\n" in error or len(error) > 2000]
    assert wrong == []
    # a failing stream's first event is taken, later ones are not; of other streams the events with a key
    taken = lab.rows("select events, count(*) from read_models.typed group by 1 order by 1")
    assert taken == [(1, len(fails)), (2, 2), (3, 3)]

    lab.execute("delete from read_models.typed_state")
    lab.execute("delete from read_models.typed_state_parts")
    commit = lab.at(1).rebuild(model)
    assert {failure.stream.decider_id for failure in commit.failures} == fails.keys()
    # staged with all streams, then without the failing ones
    assert len(staged) == 2
    assert lab.rows("select events, count(*) from read_models.typed group by 1 order by 1") == taken


def test_misread_events_at_the_end_take_one_pass(lab: Lab, staged: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(cast("ReadModel", Typed), events=("made",))
    key = {"owner": 1, "born": "2024-02-29"}
    bad = {f"bad {n}": value for n, value in enumerate(BAD["bigint"])}
    append_events(lab, [thing(name, **key, bigint=1) for name in ("good", *bad)])
    append_events(lab, [thing(name, **key, bigint=value) for name, value in bad.items()])
    # events that the model does not take do not count
    append_events(lab, [replace(thing(name, bigint=1), event="used") for name in bad])
    report = lab.at(0).drain(model)
    assert (report.batches, report.failed_streams, report.failed) == (1, len(bad), {})
    # built by a round
    assert len(staged) == 0
    assert {*locks(lab)} == {(name, 1) for name in bad}

    # a full list may omit further failing streams
    monkeypatch.setattr(staging, "MOST_MISREAD", 2)
    commit = lab.at(1).rebuild(model)
    assert {failure.stream.decider_id for failure in commit.failures} == bad.keys()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
def test_every_way_to_look_finds_the_same_failing_streams(lab: Lab, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    model, random = cast("ReadModel", Typed), Random(seed)
    bad = [(type_, value) for type_, values in BAD.items() for value in values]
    names = [f"thing {n}" for n in range(9)]
    failing = random.sample(names, 3)
    for _ in range(3):
        for name in random.sample(names, 7):
            # a row has events of several streams
            data: dict[str, object] = {"owner": random.choice((1, 2, 3, None)), "born": "2024-02-29"}
            data |= {type_: random.choice(values) for type_, values in GOOD.items() if random.random() < 0.5}
            if name in failing and random.random() < 0.6:
                data |= dict([random.choice([random.choice(bad), ("owner", "a lot"), ("born", "soon")])])
            append_events(lab, [thing(name, **data)])

    def found() -> list[object]:
        reset_model(lab.connection, model)
        lab.execute("delete from event_store.stream_locks")
        report = lab.at(0).drain(model)
        assert report.failed == {}
        waiting = "select decider_id, last_offset, attempts, last_error from event_store.stream_locks order by 1"
        return [lab.rows(waiting), close(lab.rows("select * from read_models.typed"))]

    ensure_version(lab.connection, model)
    told = found()
    assert told[0]

    monkeypatch.setattr(one_round.Rounds, "_collected", lambda *_: False)
    assert found() == told  # of a batch
    # if a task names few failing streams
    monkeypatch.setattr(staging, "MOST_MISREAD", 1)
    assert found() == told

    def halved(build: Callable[[tuple[()]], tuple[object, list[MisreadEvent]]], _: object) -> tuple[object, tuple[()]]:
        built, misread = build(())
        if misread:
            raise PartFails(in_one_line(min(misread, key=lambda one: one.offset).error))
        return built, ()

    for module in (staged_builds, parting):
        monkeypatch.setattr(module, "without_misread", halved)
    monkeypatch.setattr(staging, "MOST_MISREAD", 1000)
    assert found() == told


LONG = "k" * 64


@read_model(view="texts", deciders=[DECIDER], key=["thing_id"])
class Texts:
    """One row per thing: texts take every value."""

    thing_id = stream_id()
    events = count()
    value = last("data.v")
    long = last(f"data.{LONG}")
    deep = last("data.v.v.v")
    smallest = min_("data.v", type="string")
    largest = max_("data.v", type="string")
    all = set_union("data.v")


@fold(view="kept", deciders=[DECIDER], key="thing_id", columns={"n": "int"})
def kept(state: State | None, event: FoldEvent) -> State | None:
    """One row per thing: the whole of its data."""
    return {"n": (state or {"n": 0})["n"] + 1, "data": event.data}


@recompute(view="lengths", deciders=[DECIDER], key=["thing_id"], columns={"length": "int"})
def lengths(events: "DataFrame") -> "DataFrame":
    """One row per thing: how long its data are."""
    from pyspark.sql import functions as f

    return events.groupBy("decider_id").agg(f.sum(f.length("data")).cast("int").alias("length"))


def test_every_json_is_taken_but_by_folds_what_python_cannot_read(lab: Lab) -> None:
    words = [json.dumps(word) for word in WORDS]
    values = [*words, *NUMBERS, "{}", "[]", "[null]", *UNREADABLE.values()]
    documents = [*values, *(f'{{"v": {value}, "{LONG}": {value}}}' for value in values)]
    append_events(lab, [thing(f"good-{n}", v="1") for n in range(len(documents))])
    for n, document in enumerate(documents):
        append_text(lab, f"evil-{n}", document, event="made", decider=DECIDER)

    texts = cast("ReadModel", Texts)
    by_itself = replace(texts, name="texts_by_itself", view="texts_by_itself")
    away = lab.share([texts, kept])
    assert away == {"texts": None, "kept": None}
    for model in (by_itself, lengths):
        report = lab.drain(model)
        assert (report.failed, report.failed_streams) == ({}, 0)
    wanted = lab.rows(
        "select decider_id, data #>> '{v}', data #>> array[%s], data #>> '{v,v,v}', length(data::text)"
        " from event_store.events order by 1",
        LONG,
    )
    for name in ("texts", "texts_by_itself"):
        found = lab.execute(
            f"select thing_id, value, long, deep, length from read_models.{name} join read_models.lengths"
            " using (thing_id) where (smallest, largest) is not distinct from (value, value)"
            " and all_ = array_remove(array[value], null) order by 1".replace("all_", '"all"')
        ).fetchall()
        assert found == wanted

    report = lab.drain(kept)
    assert report.failed == {}
    failed = {name for name, _ in locks(lab)}
    evil = {document: f"evil-{n}" for n, document in enumerate(documents)}
    assert {evil[document] for document in UNREADABLE.values()} <= failed
    assert failed.isdisjoint(evil[word] for word in words)
    assert all(name.startswith("evil-") for name in failed)
    errors = lab.rows("select last_error from event_store.stream_locks")
    assert [error for (error,) in errors if "read model kept failed at thing 'evil-" not in error] == []
    assert lab.value("select count(*) from read_models.kept") == 2 * len(documents) - len(failed)


def test_events_of_any_size_pass_a_fold_and_columns(lab: Lab) -> None:
    largest = "x" * (2**20 - 20)
    append_events(lab, [thing(f"large-{n}", v=largest) for n in range(20)])
    for model in (cast("ReadModel", Texts), kept):
        report = lab.drain(model)
        assert (report.failed, report.failed_streams, report.events) == ({}, 0, 20)
    assert lab.rows(
        "select (select min(length(value)) from read_models.texts), (select count(*) from read_models.kept)"
    ) == [(len(largest), 20)]
    assert [len(event.data["v"]) for event in get_events(lab, "large-7", DECIDER)] == [len(largest)]
