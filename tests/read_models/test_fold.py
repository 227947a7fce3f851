"""Folds in Python: refused declarations, messages of failures, valid states, events read again."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, LiteralString

import pytest

from millrace import fold
from millrace.drain.commit import Work
from millrace.drain.limits import DEFAULTS
from millrace.drain.staged import StagedBuilds
from millrace.errors import InvalidReadModel
from millrace.read_models.built.fold_task import FoldTask, StreamFold, TaskQuery, Watch, stored_row
from millrace.read_models.declared.column_types import exact
from millrace.read_models.declared.fold import Fold
from millrace.read_models.stored.merge import merge_batch, next_batch
from millrace.rows import FoldEvent, State
from tests.support.building.drains import thing
from tests.support.building.lab import Lab
from tests.support.building.read_models import DECIDER
from tests.support.sql_calls import append_events


def counted(state: State | None, event: FoldEvent) -> State | None:
    """One row per thing."""
    return {"n": (state or {"n": 0})["n"] + event.data["n"]}


def undocumented(state: State | None, event: FoldEvent) -> State | None:
    return {event.event: state}


async def later(state: State | None, event: FoldEvent) -> State | None:
    """One row per thing."""
    return counted(state, event)


def states(state: State | None, event: FoldEvent) -> Iterator[State | None]:
    """One row per thing."""
    yield counted(state, event)


def declare(function: Callable[..., State | None] = counted, **options: Any) -> Fold:  # noqa: ANN401 - also what is refused
    given = {"view": "counted", "deciders": [DECIDER], "key": "thing_id", "columns": {"n": "int"}}
    return fold(**given | options)(function)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"key": "Thing"}, "read model counted: 'Thing' is no name: use a-z, 0-9, _, at most 40 characters"),
    ({"key": "partition"}, "'partition' is taken: use none of"),
    ({"key": "n"}, "'n' is a column and in the key: rename one"),
    ({"deciders": None, "columns": {"decider": "string"}}, "'decider' is a column and in the key"),
    ({"columns": {}}, "'columns' is empty: name at least one public column and its type"),
    ({"columns": {"n": "number"}}, "'n' has type 'number'; allowed: bigint, boolean, date"),
    ({"columns": {"_state": "int"}}, "'_state' is no name"),
    ({"deciders": "thing"}, "'thing' is a text: write a list"),
    ({"events": []}, "'events' is an empty list: leave it out for all"),
    ({"function": later}, "'later' is async or a generator: its code would not run"),
    ({"function": states}, "'states' is async or a generator: its code would not run"),
    ({"function": undocumented}, "read model undocumented: 'undocumented' has no docstring"),
]


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseException("of no kind")])
def test_whatever_a_fold_raises_is_the_failure_of_its_event(error: BaseException) -> None:
    def fails(*_: object) -> State | None:
        raise error

    task = FoldTask("counted", fails, {"n": "int"}, False, "", frozenset(), "", TaskQuery, 60, False)
    stream = StreamFold(task, Watch(60, for_all=False), (0, DECIDER, "t-1"), -1, None)
    stream.take((0, "seen", 1, "{}", datetime.now(UTC), 7))
    ((*_, told),) = stream.rows()
    assert f"offset 7, event 'seen': {type(error).__name__}" in json.loads(told)["error"]


def test_the_event_from_which_on_the_state_cannot_be_stored_is_named() -> None:
    # values that the events add: a text fails the int column until a number replaces it
    for added, failing in (
        ([1, "x", 2], None), ([1, "x", "y"], 1), (["x", "y"], 0), ([1, "x", 2, "y", "z"], 3), ([1, "x", "fail"], 1),
        ([1, "x", 2, "fail", 3], 3), ([1, 2], None), (["fail", 1], 0),
    ):  # fmt: skip

        def last_one(state: State | None, event: FoldEvent) -> State | None:
            kept = state or {"seen": []}
            # changes the state in place, as some folds do, before it fails
            kept["seen"].append(event.data)
            if event.data == "fail":
                raise KeyError("it")
            return kept | {"n": event.data}

        for batches in (1, 2, len(added)):
            task = FoldTask("counted", last_one, {"n": "int"}, False, "", frozenset(), "", TaskQuery, 60, False)
            stream = StreamFold(task, Watch(60, for_all=False), (0, DECIDER, "t-1"), -1, None)
            for offset, one in enumerate(added):
                stream.take((offset, "seen", 1, json.dumps(one), datetime.now(UTC), offset))
                if (offset + 1) % batches == 0:
                    stream.settle()
            found = stream.rows()
            told = [json.loads(row[-1])["offset"] for row in found if row[-1] is not None]
            assert told == ([] if failing is None else [failing]), (added, batches)
            # the state before the failing event, without any trace of that event
            before = added[:failing]
            states = [(row[2], json.loads(row[3])["seen"]) for row in found if row[-1] is None]
            assert states == ([(len(before) - 1, before)] if before else []), (added, batches)


def test_a_fold_that_cannot_work_is_refused_in_a_sentence() -> None:
    for options, sentence in REFUSED:
        with pytest.raises(InvalidReadModel) as refused:
            declare(**options)
        assert sentence in str(refused.value)


def test_a_fold_is_keyed_by_stream_and_decider_if_they_differ() -> None:
    assert declare().public_columns() == {"thing_id": "text", "n": "int"}
    assert list(declare(deciders=["a", "b"]).keys) == list(declare(deciders=None).keys) == ["decider", "thing_id"]


def test_the_fingerprint_changes_with_the_code_and_with_nothing_around_it() -> None:
    def one() -> Fold:
        def counted(state: State | None, event: FoldEvent) -> State | None:
            """Another text."""
            # another comment
            return {"n": (state or {"n": 0})["n"]
                    + event.data["n"]}  # fmt: skip

        return declare(counted)

    def other() -> Fold:
        def counted(state: State | None, event: FoldEvent) -> State | None:
            """One row per thing."""
            return {"n": (state or {"n": 0})["n"] - event.data["n"]}

        return declare(counted)

    assert one().fingerprint == declare().fingerprint
    changed = [other(), declare(version=2), declare(columns={"n": "bigint"}), declare(events=["made"])]
    assert len({model.fingerprint for model in [declare(), *changed]}) == 5


TAKEN: list[tuple[object, str, object]] = [
    (5, "int", 5), (2**63 - 1, "bigint", 2**63 - 1), (1, "double", 1.0), (0.5, "double", 0.5), (True, "boolean", True),
    ("12.5", "decimal(18,2)", Decimal("12.50")), (0.1, "decimal(18,2)", Decimal("0.10")),
    (12, "decimal(3,1)", Decimal("12.0")), ("9" * 38, "decimal(38,0)", Decimal("9" * 38)),
    ("-0." + "9" * 38, "decimal(38,38)", Decimal("-0." + "9" * 38)), ("2024-02-29", "date", date(2024, 2, 29)),
    ("2024-02-29T12:00:00+02:00", "timestamp", datetime(2024, 2, 29, 10, tzinfo=UTC)), ("ä", "string", "ä"),
]  # fmt: skip


def test_a_value_of_a_state_is_taken_as_it_is() -> None:
    found = [(given, type_, exact(given, type_)) for given, type_, _ in TAKEN]
    assert found == TAKEN


NOT_HELD: list[tuple[object, str]] = [
    (2**31, "int"), (5.0, "int"), (True, "int"), ("5", "int"), (True, "bigint"), (True, "double"), (False, "double"),
    (float("nan"), "double"), (1, "boolean"), ("12.345", "decimal(18,2)"), (100, "decimal(3,1)"),
    ("NaN", "decimal(18,2)"), ("Infinity", "decimal(18,2)"), ("1e400", "decimal(18,2)"), (True, "decimal(18,2)"),
    ("2024-02-30", "date"), ("yesterday", "timestamp"), (5, "string"), ("a\0b", "string"), ("\ud800", "string"),
    ([], "string"),
]  # fmt: skip


def test_a_value_that_its_type_does_not_hold_is_never_changed() -> None:
    for given, type_ in NOT_HELD:
        with pytest.raises(ValueError, match="is not exactly a"):
            exact(given, type_)


NO_STATES: list[tuple[Any, str]] = [
    ([1], "the state is a list; return a dict or None"),
    ({"a": (1, 2)}, "JSON would change the state: use texts as keys, and lists, not tuples"),
    ({1: 2}, "JSON would change the state"), ({"a": {1, 2}}, "set is not JSON serializable"),
    ({"a": float("nan")}, "not JSON compliant"), ({"n": "five"}, "column n: 'five' is not exactly a int"),
]  # fmt: skip


def test_a_state_that_json_does_not_hold_as_it_is_is_refused() -> None:
    for state, sentence in NO_STATES:
        with pytest.raises((TypeError, ValueError), match=sentence):
            stored_row(state, {"n": "int"})


def test_a_failure_names_its_event_and_no_event_is_folded_twice(lab: Lab) -> None:
    append_events(lab, [thing("a", n=1), thing("a", n=2), thing("b", n=1), thing("b", n=2)])
    append_events(lab, [replace(thing("a"), event="used")])
    used = lab.value("select \"offset\" from event_store.events where event = 'used'")
    model = declare()
    lab.drain(model)
    said = lab.value("select last_error from event_store.stream_locks where view = 'counted'")
    assert f"read model counted failed at thing 'a', offset {used}, event 'used': KeyError: 'n'" in said
    # the stream's earlier events are there, and so are the other streams
    assert lab.rows("select * from read_models.counted order by 1") == [("a", 3), ("b", 3)]

    stored: LiteralString = "select * from read_models.counted_state where thing_id = 'b'"
    (before,) = lab.rows(stored)
    lease = lab.claim_partition("counted", before[0], "test", 600)
    # as in a drain that begins in the middle
    again, batch = replace(lease, from_position=before[2]), next_batch(lab.connection)
    staged, _ = StagedBuilds(lab.dsn, lab.session, "test", 600, DEFAULTS).stage(Work(model, (again,)), batch)
    assert (staged, merge_batch(lab.connection, model, batch, staged)) == ([], 0)
    assert lab.rows(stored) == [before]
