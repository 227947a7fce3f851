"""Keys that an event takes over from its stream, for any split into batches and any part of the log read."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import carried, count, read_model
from millrace.archive.purge import purge_before
from millrace.archive.writer import archive_partition
from millrace.drain.report import PartitionsFailed
from millrace.event_schemas import rename
from millrace.event_store.platform import PlatformStore
from millrace.ops import ReadModel
from millrace.read_models.declared.carried import Carried
from tests.support.building.drains import staged
from tests.support.building.lab import Lab
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Event = tuple[str, str | None]


@read_model(view="patients", deciders=["visit"], key=["patient"], events=["seen", "gone"])
class Patients:
    """One row per patient."""

    patient = carried("data.patient.id")
    seen = count()
    named = count("data.patient.id")


PATIENTS = cast("ReadModel", Patients)
# an event not taken, none before it, an older shape, a null key, another key from then on
EVENTS = [
    BatchEvent("visit", "v-1", "said", data={"patient": {"id": "bob"}}), BatchEvent("visit", "v-1", "seen"),
    BatchEvent("visit", "v-1", "seen", data={"who": {"id": "ann"}}),
    BatchEvent("visit", "v-2", "seen", data={"who": {"id": "eve%"}}),
    BatchEvent("visit", "v-1", "said", data={"patient": {"id": "bob"}}),
    BatchEvent("visit", "v-1", "gone", data={"patient": None}),
    BatchEvent("visit", "v-2", "gone", data={"patient": {"id": "ann"}}),
    BatchEvent("visit", "v-1", "gone", data={"patient": {"id": "eve%"}}),
    BatchEvent("visit", "v-2", "gone", data={"patient": {"id": None}}), BatchEvent("visit", "v-1", "gone"),
]  # fmt: skip
WANTED = [("ann", 4, 2), ("eve%", 3, 2)]


@pytest.fixture
def lab(store: PlatformStore, dsn: str, spark: "SparkSession") -> Lab:
    for event, version in (("said", 1), ("seen", 1), ("seen", 2), ("gone", 1)):
        store.register_decider_event("visit", event, "", version)
    store.register_event_upcast("visit", "seen", 2, [rename("who", "patient")])
    return Lab(store.connection, dsn, spark)


def in_rounds(lab: Lab, append: Callable[[], bool]) -> None:
    with lab.together([PATIENTS]) as shared:
        while append():
            shared.run(budget_s=patience(), idle_s=0)


def alone(lab: Lab, append: Callable[[], bool]) -> None:
    with lab.consumer(PATIENTS, "alone") as consumer:
        while append():
            staged(consumer).drain(budget_s=patience(), idle_s=0)


@pytest.mark.parametrize("door", [in_rounds, alone])
def test_each_event_has_its_stream_s_key_however_it_is_read(
    lab: Lab, door: Callable[..., None], tmp_path: Path
) -> None:
    left = [*EVENTS]

    def append() -> bool:
        return bool(left and append_events(lab, [left.pop(0)]))

    door(lab, append)
    assert lab.rows_of(PATIENTS) == WANTED
    for partition in range(16):
        archive_partition(lab.dsn, tmp_path, partition, max_events=3, min_events=1, tail=True)
    for archive in (None, tmp_path):
        lab.rebuild(PATIENTS, archive=archive)
        assert lab.rows_of(PATIENTS) == WANTED


def test_of_a_stream_whose_key_was_purged_nothing_is_guessed(lab: Lab, tmp_path: Path) -> None:
    append_events(lab, EVENTS)
    lab.drain(PATIENTS)
    for partition in range(16):
        archive_partition(lab.dsn, tmp_path, partition, max_events=100, min_events=1, tail=True)
    purge_before(lab.connection, tmp_path, datetime.now(UTC) + timedelta(days=1))
    # a new stream, and a stream that changes its key, continue
    named = BatchEvent("visit", "v-1", "gone", data={"patient": {"id": "ann"}})
    append_events(lab, [BatchEvent("visit", "v-3", "seen"), named])
    lab.drain(PATIENTS)
    wanted = [("ann", 5, 3), ("eve%", 3, 2)]
    assert lab.rows_of(PATIENTS) == wanted
    append_events(lab, [BatchEvent("visit", "v-2", "gone")])
    with pytest.raises(PartitionsFailed, match=r"visit 'v-2' lost its first events to a purge, and no later one has"):
        lab.drain(PATIENTS)
    assert lab.rows_of(PATIENTS) == wanted
    # the archive has the earlier events
    lab.rebuild(PATIENTS, archive=tmp_path)
    lab.drain(PATIENTS)
    assert lab.rows_of(PATIENTS) == [("ann", 6, 3), ("eve%", 3, 2)]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.none() | st.sampled_from(["x", "", "%"])), max_size=12),
    st.randoms(),
)
def test_events_are_filled_alike_however_they_are_split(events: list[Event], dice: Any) -> None:  # noqa: ANN401
    log = [(decider_id, offset, text) for offset, (decider_id, text) in enumerate(events)]

    def last(decider_id: str, end: int) -> str | None:
        own = [text for other, offset, text in log if other == decider_id and offset < end and text is not None]
        return own[-1] if own else None

    def ask(given: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [(end, last(one, end), False) for one, end in zip(given["ids"], given["offsets"], strict=True)]

    key = Carried({"carried data.k": "data.k"}, None, "[]")
    first = dice.randrange(len(log) + 1)
    read = sorted(log[first:])
    cuts = sorted(dice.randrange(len(read) + 1) for _ in range(3))
    batches = [
        pa.table(
            {
                "decider": pa.array(["d"] * len(part), pa.string()),
                "decider_id": pa.array([one[0] for one in part], pa.string()),
                "offset": pa.array([one[1] for one in part], pa.int64()),
                "data.k": pa.array([one[2] for one in part], pa.string()),
            }
        )
        for begin, end in zip([0, *cuts], [*cuts, len(read)], strict=True)
        for part in [read[begin:end]]
    ]
    found = [value for table in key.filled(batches, ask) for value in table.column("carried data.k").to_pylist()]
    assert found == [last(decider_id, offset + 1) for decider_id, offset, _ in read]
