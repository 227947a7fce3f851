"""The event of a row: its id and its text, the same as from Python's own JSON and UUIDs."""

import json
from typing import Any
from uuid import uuid5

from hypothesis import given
from hypothesis import strategies as st

from millrace.importer.file_rows import Row
from millrace.importer.imported_events import NAMESPACE, Columns, Event, Mapping

COLUMNS = Columns(("case",), "activity")
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40).filter(
    str.strip
)
cells = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(names, names, names, names, st.dictionaries(st.text(), cells))
def test_its_text_is_that_of_its_values(
    source: str, decider: str, stream: str, activity: str, data: dict[str, Any]
) -> None:
    of_stream, of_event = "case" * 11, "activity" * 11
    row = Row(7, 8, "", 0, {of_stream: stream, of_event: activity, **data})
    event = Mapping(source, decider, Columns((of_stream,), of_event)).event(row)
    command = uuid5(NAMESPACE, source)
    assert isinstance(event, Event)
    assert event.event == activity
    assert json.loads(event.json_text) == {
        "decider": decider,
        "decider_id": stream,
        "event": activity,
        "event_id": f"{str(command)[:14]}8{str(command)[15:27]}000000007",
        "command_id": str(command),
        "data": data,
        "metadata": {"imported": True},
    }
    assert row.values[of_stream] == stream


def test_columns_of_metadata_are_beside_the_data() -> None:
    mapping = Mapping("s", "d", Columns(("case",), "activity", metadata=("correlation_id", "user")))
    values = {"case": "c", "activity": "a", "n": 1, "correlation_id": "r-7", "user": ""}
    event = mapping.event(Row(1, 2, "", 0, values))
    assert isinstance(event, Event)
    assert json.loads(event.json_text)["data"] == {"n": 1}
    assert json.loads(event.json_text)["metadata"] == {"imported": True, "correlation_id": "r-7"}
    without = mapping.event(Row(2, 3, "", 0, {**values, "correlation_id": None}))
    assert isinstance(without, Event)
    assert json.loads(without.json_text)["metadata"] == {"imported": True}


def test_a_row_stays_as_it_was_in_the_file_whose_time_is_within_an_object() -> None:
    row = Row(1, 2, "", 0, {"case": "c", "activity": "a", "on": {"day": "1 May 2024"}})
    event = Mapping("s", "d", Columns(("case",), "activity", ("on.day",))).event(row)
    assert isinstance(event, Event)
    assert json.loads(event.json_text)["data"] == {"on": {"day": "2024-05-01"}}
    assert row.values["on"] == {"day": "1 May 2024"}


def test_a_value_that_is_nested_too_deeply_costs_its_row_only() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    row = Row(1, 2, "", 0, {"case": "c", "activity": "a", "n": deep})
    assert Mapping("s", "d", COLUMNS).event(row) == "it is nested too deeply"
    while deep:
        deep = deep.pop()  # Python would free it by recursion
