"""Ids of events rise, and are determined by their parts."""

import time
from uuid import UUID, uuid4, uuid5

from hypothesis import given
from hypothesis import strategies as st

from millrace import uuid7
from millrace.event_store.ids import id_of
from tests.support.sql_calls import BatchEvent


def test_a_new_id_begins_with_the_time_and_is_another_each_time() -> None:
    before = time.time_ns() // 1_000_000
    ids = [uuid7() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert {(one.version, one.variant) for one in ids} == {(7, uuid4().variant)}
    times = [one.int >> 80 for one in ids]
    assert before <= times[0] <= times[-1] <= after
    assert times == sorted(times)
    assert len({one.int & (1 << 62) - 1 for one in ids}) == 1000


def test_events_get_ids_of_their_own() -> None:
    first, second = (BatchEvent("order", "o-1", "placed", data={}) for _ in range(2))
    assert len({first.event_id, first.command_id, second.event_id, second.command_id}) == 4
    assert {first.event_id.version, first.command_id.version} == {7}


@given(st.uuids(), st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_an_id_under_a_command_rises_with_it_and_is_the_same_each_time(command: UUID, name: str, rising: bool) -> None:
    command = UUID(int=command.int, version=4)
    if rising:
        command = UUID(int=command.int & ~(0xF << 76) | 7 << 76)
    made = id_of(command, name)
    assert made == id_of(command, name)
    assert (made.version, made.variant) == (8, command.variant)
    assert made not in {id_of(command, name + "0"), id_of(uuid5(command, ""), name)}
    assert (made.int >> 80 == command.int >> 80) is rising
