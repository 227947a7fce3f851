"""Events of one stream: the short form stores, returns and refuses the same as `append_events`."""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from millrace.errors import Conflict, DataRefused
from millrace.event_store import NO_STREAM, NewEvent
from millrace.event_store.platform import PlatformStore
from tests.support.factories import (
    Connect,
    append,
    assert_log_holds_every_event_once,
    at_once,
    purge_all,
    rows,
    start,
    wait_blocked,
)
from tests.support.patience import patience
from tests.support.views.isolation import snapshot_of

Given = Mapping[str, Any]
# odd fields; each event of a batch may get one
ODD: tuple[Mapping[str, Any], ...] = (
    {"final": True}, {"final": False}, {"event": "unknown"}, {"event_version": 2}, {"event_version": "x"}, {"data": None},
    {"event_id": "no uuid"}, {"command_id": None}, {"metadata": {"user": "ann"}}, {"metadata": None}, {"metadata": []},
    {"previous_id": str(UUID(int=7))}, {"previous_id": None}, {"previousId": None}, {"decider": "shop"},
    {"expected_version": 1}, {"data": {"$sealed": "no"}}, {"event": "priced"}, {"event": "priced", "data": {"cents": 5}},
)  # fmt: skip


class Twins:
    """Two streams with the same appends: one by `append_to_stream`, the other by `append_events`."""

    def __init__(self, store: PlatformStore, number: int, chance: Random) -> None:
        self.connection, self.chance = store.connection, chance
        self.name = f"o-{number}"
        self.sent: list[Given] = []

    def batch(self) -> tuple[list[Given], int | None]:
        """Return events, some of them sent before and some odd, and the version to state."""
        events: list[Given] = []
        for _ in range(self.chance.choice((1, 1, 2, 3, 5))):
            if self.sent and self.chance.random() < 0.15:
                events.append(self.chance.choice(self.sent))
                continue
            plain = {"event": "placed", "event_id": str(uuid4()), "command_id": str(uuid4()), "data": {"n": 1.50}}
            odd = self.chance.choice(ODD) if self.chance.random() < 0.12 else {}
            events.append({**plain, **odd})
        self.sent += events
        return events, self.chance.choice((None, None, None, 0, 1, 2, 3, 4, -1))

    def short(self, events: Sequence[Given], version: int | None) -> object:
        """Append to the first stream; return the rows, or the refusal."""
        query = "select event_id, version, appended from event_store.append_to_stream('order', %s, %s, %s)"
        return self._told(query, self.name, json.dumps(events), version)

    def general(self, events: Sequence[Given], version: int | None) -> object:
        """Append the same to the second stream, under other ids."""
        first = {} if version is None else {"expected_version": version}
        given = [
            {"decider": "invoice", "decider_id": self.name, **_twin(event), **(first if n == 0 else {})}
            for n, event in enumerate(events)
        ]
        query = "select event_id, version, appended from event_store.append_events(%s)"
        return self._told(query, json.dumps(given))

    def stored(self, decider: str) -> list[tuple[Any, ...]]:
        """Return the stored stream, with offsets counted from its first."""
        query = """
            select event, event_id, event_version, data, command_id, previous_id, final, version, metadata,
              rank() over (order by "offset") as place
            from event_store.events where decider = %s and decider_id = %s order by version
        """
        return rows(self.connection, query, decider, self.name)

    def _told(self, query: str, *arguments: object) -> object:
        try:
            return self.connection.execute(query.encode(), arguments).fetchall()
        except psycopg.Error as error:
            return error.sqlstate


def _twin(event: Given) -> Given:
    named = {name: _other(event[name]) for name in ("event_id", "previous_id") if event.get(name)}
    return {**event, **named}


def _other(text: str) -> str:
    return f"{text[:-1]}{15 - int(text[-1], 16):x}" if len(text) == 36 else text


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_it_does_what_append_events_does(orders: PlatformStore, isolation: str) -> None:
    orders.connection.execute(f"set default_transaction_isolation = '{isolation}'".encode())
    for decider in ("order", "invoice"):
        orders.register_event_schema(decider, "priced", {"type": "object", "required": ["cents"]})
    seed = Random().randrange(10_000)
    chance, told = Random(seed), set[object]()
    for number in range(25):
        twins = Twins(orders, number, chance)
        for _ in range(12):
            events, version = twins.batch()
            if any("decider" in event for event in events):
                assert twins.short(events, version) == "MR005"
                continue
            ours, theirs = twins.short(events, version), twins.general(events, version)
            if isinstance(ours, list):
                ours = [(UUID(_other(str(event_id))), *rest) for event_id, *rest in ours]
            assert ours == theirs, (seed, number, events, version)
            told.add(ours if isinstance(ours, str) else "stored")
        mine = [
            (name, UUID(_other(str(event_id))), *rest[:3], previous and UUID(_other(str(previous))), *more)
            for name, event_id, *rest, previous, final, at, metadata, place in twins.stored("order")
            for more in [(final, at, metadata, place)]
        ]
        assert mine == twins.stored("invoice"), (seed, number)
    assert {"stored", "MR001", "MR005"} <= told, seed


def test_data_that_do_not_fit_refuse_all(orders: PlatformStore) -> None:
    orders.register_event_schema("order", "priced", {"type": "object", "required": ["cents"]})
    with pytest.raises(DataRefused):
        orders.append("order", "o-1", NewEvent("priced", {"cents": 5}), NewEvent("priced"))
    assert orders.head("order", "o-1") is None


def test_what_is_no_array_of_events_is_refused(orders: PlatformStore) -> None:
    for events in ("null", "{}", "[]", "[1]", "[null]", '"text"', None):
        with pytest.raises(psycopg.DatabaseError) as refused:
            orders.connection.execute("select event_store.append_to_stream('order', 'o-1', %s)", (events,))
        assert refused.value.sqlstate == "MR005", events


def test_another_streams_event_is_named(orders: PlatformStore) -> None:
    event = {"event": "placed", "event_id": str(uuid4()), "command_id": str(uuid4()), "data": {}, "decider_id": "o-2"}
    with pytest.raises(psycopg.DatabaseError, match=r"event 1 of the batch is of stream \(order, o-2\)"):
        orders.connection.execute("select event_store.append_to_stream('order', 'o-1', %s)", (json.dumps([event]),))


def test_a_purged_stream_goes_on_at_its_version_and_stays_closed(orders: PlatformStore) -> None:
    three = [NewEvent("placed") for _ in range(3)]
    orders.append("order", "open", *three)
    orders.append("order", "closed", NewEvent("placed"), NewEvent("paid", final=True))
    purge_all(orders)
    with pytest.raises(Conflict):
        orders.append("order", "open", NewEvent("paid"), NewEvent("paid"), expected_version=NO_STREAM)
    assert orders.append("order", "open", NewEvent("paid"), NewEvent("paid"), expected_version=3).version == 5
    for version in (None, NO_STREAM, 2):
        with pytest.raises(psycopg.DatabaseError) as refused:
            orders.connection.execute(
                "select event_store.append_to_stream('order', 'closed', %s, %s)",
                (json.dumps([_event(), _event()]), version),
            )
        assert refused.value.sqlstate == "MR002"


def _event() -> Given:
    return {"event": "placed", "event_id": str(uuid4()), "command_id": str(uuid4()), "data": {}}


def test_an_append_at_once_comes_after_unless_it_states_a_version(orders: PlatformStore, connect: Connect) -> None:
    holder = PlatformStore(connect(autocommit=False))
    holder.append("order", "o-1", NewEvent("placed"), NewEvent("placed"))
    others = [PlatformStore(connect()) for _ in range(4)]
    sizes = ((None, 1), (None, 3), (NO_STREAM, 1), (NO_STREAM, 3))
    works = [
        start(
            lambda other=other, version=version, size=size: other.append(  # type: ignore[misc]
                "order", "o-1", *[NewEvent("paid") for _ in range(size)], expected_version=version
            )
        )
        for other, (version, size) in zip(others, sizes, strict=True)
    ]
    for other in others:
        wait_blocked(orders.connection, other.connection.info.backend_pid)
    holder.connection.commit()
    versions = {works[0].result(patience()).version, works[1].result(patience()).version}
    assert versions in ({3, 6}, {5, 6})
    for refused in works[2:]:
        assert isinstance(refused.exception(patience()), Conflict)
    orders.sequence_events()
    assert_log_holds_every_event_once(orders.connection)


def test_many_at_once_on_one_stream_are_all_stored(orders: PlatformStore, connect: Connect) -> None:
    stores = [PlatformStore(connect()) for _ in range(8)]

    def work(store: PlatformStore, size: int) -> None:
        for _ in range(10):
            store.append("order", "hot", *[NewEvent("placed") for _ in range(size)])

    for done in at_once([lambda store=s, size=n % 3 + 1: work(store, size) for n, s in enumerate(stores)]):  # type: ignore[misc]
        done.result()
    events = [*orders.read("order", "hot")]
    assert [event.version for event in events] == list(range(1, len(events) + 1))
    assert len(events) == 10 * sum(n % 3 + 1 for n in range(8))


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_above_read_committed_a_moved_stream_is_a_serialization_failure(
    orders: PlatformStore, connect: Connect, level: IsolationLevel
) -> None:
    append(orders)
    late = snapshot_of(connect, level)
    orders.append("order", "o-1", NewEvent("paid"))
    for events in ([NewEvent("paid")], [NewEvent("paid"), NewEvent("paid")]):
        with pytest.raises(SerializationFailure):
            late.append("order", "o-1", *events)
        late.connection.rollback()
        late.append("order", "o-1", *events)
        late.connection.commit()
        late = snapshot_of(connect, level)
        orders.append("order", "o-1", NewEvent("paid"))
