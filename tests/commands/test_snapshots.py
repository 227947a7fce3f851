"""A fold's states as snapshots: only later events are read, and a snapshot that lacks an event is not used."""

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from millrace import testing
from millrace.commands.decider import Decider, Emit
from millrace.commands.handle import handle
from millrace.errors import HistoryPurged
from millrace.event_schemas import drop, scale
from millrace.event_store import Event, StreamState
from millrace.event_store.client import STREAM_PAGE
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.fold import Fold, fold
from millrace.read_models.declared.fold_event import FoldEvent, State
from tests.support.factories import Connect, purge, value
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@fold(view="jars", deciders=["jar"], events=["put", "emptied"], key="jar_id", columns={"sweets": "int"})
def jars(state: State | None, event: FoldEvent) -> State | None:
    """One row per jar that has sweets."""
    if event.event == "emptied":
        return None
    if event.data["n"] < 0:
        raise ValueError("no such sweets")
    return {"sweets": (state or {"sweets": 0})["sweets"] + event.data["n"]}


@fold(view="jars", deciders=["jar"], key="jar_id", columns={"sweets": "int"})
def changed(state: State | None, event: FoldEvent) -> State | None:
    """Be another declaration."""
    return state if event else None


def decide(command: int, state: State | None) -> list[Emit]:
    """Put `command` sweets into a jar, up to ten."""
    free = 10 - (state or {"sweets": 0})["sweets"]
    return [Emit("put", {"n": min(command, free)})] if free else []


JAR: Decider[State | None, int] = Decider(name="jar", initial=None, decide=decide, evolve=jars)


@pytest.fixture
def built(store: PlatformStore, dsn: str, spark: "SparkSession") -> PlatformStore:
    """Return a store with jars of which Spark folded all but the last event of `behind`."""
    for event in ("put", "emptied", "seen"):
        store.register_decider_event("jar", event, event)
    put(store, "behind", 1, 2)
    put(store, "full", 10)
    put(store, "unread", 1, event="seen")
    put(store, "emptied", 3)
    append_events(store, [BatchEvent("jar", "emptied", "emptied", uuid4(), {}, uuid4())])
    testing.given(dsn=dsn, spark=spark).when(jars)
    put(store, "behind", 4)
    return store


def put(store: PlatformStore, jar: str, *numbers: int, event: str = "put") -> None:
    append_events(store, [BatchEvent("jar", jar, event, uuid4(), {"n": number}, uuid4()) for number in numbers])


def state_of(store: PlatformStore, jar: str, of: Fold = jars) -> StreamState | None:
    return store.stream_state("jars", of.fingerprint.partition("+")[0], "jar", jar)


def test_only_what_is_behind_is_read(built: PlatformStore, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int | None, ...]] = []
    load = PlatformStore.stream_behind_state

    def loading(self: PlatformStore, *arguments: Any, **named: Any) -> tuple[StreamState | None, list[Event], bool]:  # noqa: ANN401 - passed on
        state, events, is_stored = load(self, *arguments, **named)
        read.append(tuple(event.version for event in events))
        return state, events, is_stored

    with monkeypatch.context() as patched:
        patched.setattr(PlatformStore, "stream_behind_state", loading)
        patched.setattr(PlatformStore, "read", None)  # one question is enough
        patched.setattr(PlatformStore, "log_position", None)
        command_id = uuid4()
        behind = handle(built, JAR, "behind", 9, command_id=command_id)
        assert (behind.state, behind.version, behind.events[0].data) == ({"sweets": 10}, 4, {"n": 3})
        full = handle(built, JAR, "full", 1)
        assert (full.state, full.version, full.events) == ({"sweets": 10}, 1, ())
        last = "select max(\"offset\") from event_store.events where decider_id = 'full'"
        assert full.offset == value(built.connection, last)
        assert handle(built, JAR, "new", 1).state == {"sweets": 1}
        # an event that the model does not take leaves its state unchanged
        assert handle(built, JAR, "unread", 1).version == 2
        assert handle(built, JAR, "emptied", 2).state == {"sweets": 2}  # no row is a state, too
    assert read == [(3,), (), (), (1,), ()]

    (again,) = handle(built, JAR, "behind", 9, command_id=command_id).events
    assert again.event_id == behind.events[0].event_id

    # not used: the snapshot of a declaration that has changed
    assert state_of(built, "full") is not None
    assert state_of(built, "full", changed) is None
    # not used either: the snapshot of an older shape of the events
    built.register_event_upcast("jar", "seen", 2, [drop("n")])
    assert state_of(built, "full") is not None
    with built.connection.transaction(force_rollback=True):
        built.register_event_upcast("jar", "put", 2, [scale("n", 2)])
        assert state_of(built, "full") is None
        # so all events count in the new unit, even those before the snapshot
        looks: Decider[State | None, int] = Decider(name="jar", initial=None, decide=lambda *_: [], evolve=jars)
        assert handle(built, looks, "behind", 0).state == {"sweets": 1000}

    # far behind: `behind` has a snapshot at its version 2 of 4
    for number, more in enumerate((STREAM_PAGE - 2, STREAM_PAGE - 1, STREAM_PAGE)):
        put(built, f"far-{number}", *[0] * (more + 1))  # without a snapshot
        assert handle(built, JAR, f"far-{number}", 1).version == more + 2
        more_of_it = more - 1 if number == 0 else 1
        put(built, "behind", *[0] * more_of_it)
        assert handle(built, JAR, "behind", 9).version == more + 3
    state, events, _ = built.stream_behind_state("jars", jars.fingerprint.partition("+")[0], "jar", "behind", 2)
    assert state is not None
    assert (state.state, state.version, [event.version for event in events]) == ({"sweets": 3}, 2, [3, 4])

    # a login needs the right to read
    connection = connect()
    connection.execute("set role event_store_writer")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        handle(PlatformStore(connection), JAR, "full", 1)
    connection.execute("reset role")
    connection.execute("drop role if exists service")
    connection.execute("create role service in role event_store_writer, event_store_reader")
    connection.execute("set role service")
    assert handle(PlatformStore(connection), JAR, "full", 9).version == 1
    connection.execute("reset role")
    connection.execute("drop role service")


def test_a_snapshot_outlives_purges_but_lacks_no_event(built: PlatformStore, dsn: str, spark: "SparkSession") -> None:
    put(built, "emptied", -1)
    put(built, "unread", 1)
    with pytest.raises(testing.StreamsFailed):
        testing.given(dsn=dsn, spark=spark).when(jars)
    assert state_of(built, "emptied") is None  # the drain still owes the stream an event
    unread = state_of(built, "unread")
    assert unread is not None
    assert unread.version == 2
    # the event is discarded, and the stream's lock is gone
    built.connection.execute("update event_store.stream_locks set parked_at = now()")
    built.discard_dead_letter("jars", "jar", "emptied", "a test")
    built.connection.execute("delete from event_store.stream_locks")
    assert state_of(built, "emptied") is None

    one = [Emit("put", {"n": 1})]
    plain: Decider[None, int] = Decider(name="jar", initial=None, decide=lambda *_: one, evolve=lambda *_: None)
    put(built, "behind", 0)  # behind its snapshot, and not purged
    for purged, version in (("full", 1), ("behind", 5)):
        at = value(built.connection, "select event_store.stream_partition(%s, 16)", purged)
        mark = value(built.connection, "select high_water_mark from event_store.partitions where partition = %s", at)
        purge(built, at, mark)
        assert handle(built, JAR, purged, 1).version == version
        with pytest.raises(HistoryPurged):
            handle(built, plain, purged, 1)

    built.connection.execute("update read_models.declarations set unbuilt = array(select generate_series(0, 15))")
    assert state_of(built, "behind") is None  # to be rebuilt from the archive


def test_a_fold_of_other_streams_too_is_refused() -> None:
    with pytest.raises(ValueError, match="takes events of"):
        Decider(name="order", initial=None, decide=decide, evolve=jars)
    shared = fold(view="both", deciders=["jar", "order"], key="id", columns={"sweets": "int"})(jars.function)
    with pytest.raises(ValueError, match="takes events of"):
        Decider(name="jar", initial=None, decide=decide, evolve=shared)


def test_events_that_the_fold_does_not_take_change_no_state(store: PlatformStore) -> None:
    for event in ("put", "seen"):
        store.register_decider_event("jar", event, event)
    put(store, "jar-1", 3)
    put(store, "jar-1", 5, event="seen")
    assert handle(store, JAR, "jar-1", 1).state == {"sweets": 4}
