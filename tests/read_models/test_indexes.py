"""Given declared indexes, when they change, cannot be created or are in the way, then rows are still written."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

import psycopg
import pytest
from psycopg import Connection

from millrace import computed, count, field, fold, index, last, lookup, max_, read_model, sessions, set_union, stream_id
from millrace.drain.indexing import Indexing
from millrace.drain.member import Member
from millrace.errors import InvalidReadModel
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel, with_indexes
from millrace.read_models.declared.indexes import Declared
from millrace.read_models.stored.indexes import IndexFailed, are_due, given_up, only_one, stored_indexes, update_indexes
from millrace.read_models.stored.past import renamed
from millrace.read_models.stored.versions import built_and_next, current_version, ensure_version, versions
from millrace.rows import FoldEvent, State
from tests.support.building import read_models as models
from tests.support.building.drains import Counted, Crossing, Everything, drain, thing
from tests.support.building.lab import Lab
from tests.support.factories import Connect, rows, start
from tests.support.logins import logins
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events


@read_model(view="tagged", deciders=["thing"], key=["thing_id"])
class Tagged:
    """One row per thing."""

    thing_id = stream_id()
    events = count()
    text = last("data.text")
    other = last("data.other")
    tags = set_union("data.text")
    seen = sessions("created_at", gap="1 minute")
    at = max_("created_at")
    per_event = computed("1 / events")
    same = computed("text")
    is_seen_too = computed("is_seen and True")
    is_seen = computed("seen == seen")
    pair = lookup(models.Counted, on="thing_id", column="events")


TAGGED = cast("ReadModel", Tagged)


@read_model(view="owners", deciders=["thing"], key=["owner"], indexes=["text"])
class Owners:
    """One row per owner, over all things."""

    owner = field("data.owner")
    text = last("data.text")


OWNERS = cast("ReadModel", Owners)
# texts that Postgres does not compress: too long for an index, and too long for any page of one
HEX = "".join(sha256(str(n).encode()).hexdigest() for n in range(400))
LONG, ENDLESS = HEX[:6_000], HEX


def indexed(model: ReadModel, *indexes: Declared) -> ReadModel:
    return with_indexes(model, indexes)


def names(connection: Connection, model: ReadModel) -> list[tuple[str, bool]]:
    """Return the indexes of a declaration's version: the definition of each, and whether it is valid."""
    built = current_version(connection, model)
    assert built is not None
    return [(one.definition, one.valid) for one in stored_indexes(connection, built)]


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """Hold a snapshot, as a long report does: creating an index concurrently waits for its end."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select from event_store.events limit 1")
        yield


def maker(connection: Connection) -> list[int]:
    """Return the sessions that create an index and wait."""
    found = rows(
        connection,
        "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        " and query like 'create index concurrently%%'",
    )
    return [pid for (pid,) in found]


def test_a_read_takes_the_index_of_each_column_that_declares_one(things: PlatformStore) -> None:
    types = Everything.public_columns()
    columns = [name for name in types if name != "thing_id"]
    of = [index(name, using="gin") if types[name].endswith("[]") else name for name in columns]
    everything = replace(Everything, computed={"ratio": computed("units / used")})
    declared = indexed(everything, *of, "ratio", ("thing_id", "used"))
    built = ensure_version(things.connection, declared)
    stored = stored_indexes(things.connection, built)
    assert len(stored) == len(columns) + 2
    assert all(one.valid and one.is_declared for one in stored)
    things.connection.execute("set enable_seqscan = off")
    for name in [*columns, "ratio"]:
        operator = "@>" if types.get(name, "").endswith("[]") else "="
        some = f"select {name} from read_models.everything limit 1"
        query = f"explain select from read_models.everything where {name} {operator} ({some})"
        digits = next(one.digits for one in built.indexes if one.columns == (name,))
        assert f"everything_state_{digits}" in str(rows(things.connection, query)), name


def test_other_indexes_leave_the_version_and_what_people_made(lab: Lab) -> None:
    lab.fill(30).drain(indexed(Counted, "events", ("thing_id", "events")))
    lab.execute("create index by_hand on read_models.counted_state (events) where events > 3")
    other = indexed(Counted, "events", ("events", "thing_id"))
    assert other.fingerprint == Counted.fingerprint
    assert built_and_next(lab.connection, other)[1]
    lab.drain(other)
    assert sorted(names(lab.connection, other)) == [
        ("btree (events)", True), ("btree (events) WHERE (events > 3)", True), ("btree (events, thing_id)", True),
    ]  # fmt: skip
    assert len(versions(lab.connection, "counted")) == 1
    assert not built_and_next(lab.connection, other)[1]
    lab.drain(Counted)
    assert names(lab.connection, Counted) == [("btree (events) WHERE (events > 3)", True)]
    lab.is_clean(Counted)


def test_a_switch_names_what_people_made(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.fill(30).drain(indexed(Counted, "events"))
    lab.execute("create index by_hand on read_models.counted_state (events) where events > 3")
    changed = replace(Counted, columns=Counted.columns | {"at": max_("created_at")})
    with caplog.at_level(logging.WARNING):
        lab.drain(changed)
    assert [v.version for v in versions(lab.connection, "counted") if v.serves] == [2]
    (said,) = [record.getMessage() for record in caplog.records if "by_hand" in record.getMessage()]
    assert "by_hand (btree (events) WHERE (events > 3))" in said
    assert "read_models.counted_state_v2" in said


def test_a_drain_goes_on_while_an_index_is_made(lab: Lab, connect: Connect) -> None:
    lab.fill(30).drain(Counted)
    reader, other = connect(), indexed(Counted, "events")

    def drain_within_its_budget() -> None:
        with lab.consumer(other) as consumer:
            consumer.drain(budget_s=0, idle_s=0)

    with snapshot(reader):
        append_events(lab, [thing("late")])
        draining = start(drain_within_its_budget)
        wait_until(lambda: maker(lab.connection), "the index waits for the reader")
        late = "select from read_models.counted where thing_id = 'late'"
        wait_until(lambda: lab.rows(late), "it is consumed")
        append_events(lab, [thing("later")])
        later = "select from read_models.counted where thing_id = 'later'"
        wait_until(lambda: lab.rows(later), "it is consumed, too")
        assert not draining.done()
        assert not are_due(lab.connection, other)
    draining.result(patience())
    assert names(lab.connection, other) == [("btree (events)", True)]


def test_one_process_makes_indexes_and_nobody_waits_for_it(lab: Lab, connect: Connect) -> None:
    lab.fill(30).drain(Counted)
    other = indexed(Counted, "events")
    with only_one(connect()):
        with pytest.raises(psycopg.errors.LockNotAvailable), only_one(connect()):
            pass
        assert not built_and_next(lab.connection, other)[1]
        indexing = Indexing(lab.dsn)
        indexing._models.put(other)
        indexing._thread = threading.Thread(target=indexing._make_all)
        indexing._thread.start()
        assert indexing.end() == {}
        assert names(lab.connection, other) == []
    lab.drain(other)
    assert names(lab.connection, other) == [("btree (events)", True)]


def test_what_a_dead_maker_left_is_made_anew_once_it_has_ended(lab: Lab, connect: Connect) -> None:
    lab.fill(30).drain(Counted)
    other, reader, died = indexed(Counted, "events"), connect(), connect()
    built = current_version(lab.connection, other)
    assert built is not None
    with snapshot(reader):
        # the maker's own process is gone: only its session's lock still shows the attempt
        making = start(lambda: update_indexes(died, built))
        wait_until(lambda: maker(lab.connection), "the index waits for the reader")
        assert names(lab.connection, other) == [("btree (events)", False)]
        with pytest.raises(psycopg.errors.LockNotAvailable):
            update_indexes(lab.connection, built)
        died.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            making.result(patience())
    assert names(lab.connection, other) == [("btree (events)", False)]
    assert built_and_next(lab.connection, other)[1]
    lab.drain(other)
    assert names(lab.connection, other) == [("btree (events)", True)]


def test_a_drain_that_is_to_stop_leaves_indexes_to_the_next_one(lab: Lab, connect: Connect) -> None:
    lab.fill(30).drain(Counted)
    reader, other, stop = connect(), indexed(Counted, "events"), threading.Event()

    def drain_until_stopped() -> None:
        with lab.consumer(other, "stopped") as consumer:
            consumer.drain(budget_s=patience(), idle_s=0, stop=stop)

    with snapshot(reader):
        draining = start(drain_until_stopped)
        wait_until(lambda: maker(lab.connection), "the index waits for the reader")
        stop.set()
        draining.result(patience())
        assert not maker(lab.connection)
    lab.drain(other)
    assert names(lab.connection, other) == [("btree (events)", True)]


def test_an_index_that_postgres_refuses_is_said_after_the_drain(lab: Lab) -> None:
    lab.fill(30).drain(Counted)
    other = indexed(Counted, "events")
    lab.execute(f"create table read_models.counted_state_{other.indexes[0].digits} ()")
    lab.fill(30, seed=2)
    with pytest.raises(IndexFailed, match="The indexes of read model counted cannot be made: events"):
        lab.drain(other)
    lab.is_clean(Counted)


@pytest.mark.parametrize("text", [LONG, ENDLESS], ids=["a third of a page", "a page"])
@pytest.mark.parametrize(
    "model", [indexed(TAGGED, "events", "text", "same", ("other", "at")), OWNERS], ids=["stream", "crossing"]
)
def test_a_value_too_long_for_an_index_takes_it_away_and_fails_nobody(lab: Lab, model: ReadModel, text: str) -> None:
    lab.drain()
    append_events(lab, [thing("a", text="short", owner="ann")])
    lab.drain(Counted)
    lab.drain(model)
    append_events(lab, [thing("b", text=text, owner="bob"), thing("a", text="later", owner="ann")])
    report = lab.drain(model)
    assert report.failed_streams == 0
    assert lab.rows(f"select text from read_models.{model.name} order by 1 desc") == [("later",), (text,)]
    left = [("btree (events)", True), ("btree (other, at)", True)] if model.name == "tagged" else []
    assert sorted(names(lab.connection, model)) == left
    assert not built_and_next(lab.connection, model)[1]
    # a rebuild writes the rows without the index
    assert lab.rebuild(model).failures == ()
    # after the declaration changed and changed back, the index is tried again
    lab.drain(replace(model, indexes=()))
    built = current_version(lab.connection, model)
    assert built is not None
    assert given_up(lab.connection, built) == set()
    assert names(lab.connection, model) == []
    assert built_and_next(lab.connection, model)[1]
    lab.drain(model)
    assert sorted(names(lab.connection, model)) == left
    assert "read the view instead. A value is too long for: " in lab.value(
        f"select obj_description('read_models.{model.state_table}'::regclass)"
    )


def test_such_a_value_waits_for_no_index_that_is_being_made(lab: Lab, connect: Connect) -> None:
    lab.drain(OWNERS)
    reader, more, stop = connect(), indexed(OWNERS, "text", ("owner", "text")), threading.Event()

    def drain_on() -> None:
        with lab.consumer(more) as consumer:
            consumer.drain(budget_s=patience(), idle_s=patience(), stop=stop)

    with snapshot(reader):
        draining = start(drain_on)
        wait_until(lambda: maker(lab.connection), "the index waits for the reader")
        append_events(lab, [thing("a", text=LONG, owner="ann")])
        wait_until(lambda: lab.rows("select from read_models.owners"), "it is consumed")
        stop.set()
        draining.result(patience())
    lab.drain(more)
    assert names(lab.connection, more) == []
    assert not built_and_next(lab.connection, more)[1]


def test_where_only_others_may_drop_an_index_a_stream_fails(lab: Lab, connect: Connect) -> None:
    with logins(connect()) as login:
        own = login("event_store_owner").info.dsn
        drain(own, lab.spark, OWNERS)
        drain(own, lab.spark, indexed(OWNERS, ("text", "owner")))
        assert names(lab.connection, OWNERS) == [("btree (text, owner)", True)]
        append_events(lab, [thing("a", text=LONG, owner="ann")])
        assert drain(own, lab.spark, indexed(OWNERS, ("text", "owner"))).failed_streams == 0
        assert names(lab.connection, OWNERS) == []
        lab.drain(indexed(Counted, "events"))
        drain(own, lab.spark, indexed(TAGGED, "other"))
        lab.execute("alter table read_models.tagged_state owner to current_user")
        lab.execute("grant all on read_models.tagged_state to event_store_owner")
        append_events(lab, [thing("b", other=LONG), thing("c", other="x")])
        assert drain(own, lab.spark, indexed(TAGGED, "other")).failed_streams == 1
        assert lab.rows("select other from read_models.tagged where thing_id > 'a'") == [("x",)]


def test_a_drain_makes_those_of_a_view_that_joins(lab: Lab, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fill(30).share([Crossing, Counted])
    both, join, joined = [indexed(Crossing, "events"), indexed(Counted, "events")], Member.join, [0]

    def join_later(member: Member, *of: Any) -> None:  # noqa: ANN401 - as it is given
        if joined[0]:
            wait_until(lambda: maker(lab.connection), "the first one is being made")
        join(member, *of)
        joined[0] += 1

    monkeypatch.setattr(Member, "join", join_later)
    with snapshot(connect()):
        sharing = start(lambda: lab.share(both))
        wait_until(lambda: joined == [2], "both joined")
    sharing.result(patience())
    assert [names(lab.connection, model) for model in both] == [[("btree (events)", True)]] * 2


@pytest.mark.parametrize("text", [LONG, ENDLESS], ids=["a third of a page", "a page"])
def test_a_rebuild_and_a_search_go_on_without_the_index(lab: Lab, text: str) -> None:
    lab.drain(OWNERS)
    # a key that is too long for its index fails its stream, as before
    append_events(lab, [thing("a", text=text, owner="ann"), thing("b", owner=LONG), thing("c", text="x", owner="bob")])
    commit = lab.rebuild(OWNERS)
    assert [failure.stream.decider_id for failure in commit.failures] == ["b"]
    assert names(lab.connection, OWNERS) == []
    assert lab.rows("select owner, text from read_models.owners order by 1") == [("ann", text), ("bob", "x")]


@pytest.mark.parametrize("text", [LONG, ENDLESS], ids=["a third of a page", "a page"])
def test_a_key_that_is_too_long_takes_no_index_away(lab: Lab, text: str) -> None:
    lab.drain(OWNERS)
    # a compressible text fits
    append_events(lab, [thing("a", owner=text, text="x" * 3_000), thing("b", owner="bob", text="y")])
    assert lab.drain(OWNERS).failed_streams == 1
    assert names(lab.connection, OWNERS) == [("btree (text)", True)]


@pytest.mark.parametrize(
    ("indexes", "said"),
    [
        ("text", "indexes='text' is no list of columns, tuples of columns and index(…)"),
        (["texts"], "'texts' is in indexes= but is no column; there are thing_id, events, text,"),
        ([()], "indexes=[()] is no column, no tuple of columns and no index(…)"),
        (["pair"], "'pair' can have no index: it is a column of another read model's row"),
        (["seen"], "'seen' can have no index: its spans are put together at each read"),
        ([("at", "is_seen_too")], "'is_seen_too' can have no index: it is computed from is_seen, which can have none"),
        ([index("text", using="brin")], "'brin' is no using= of an index: use btree or gin"),
        (["tags"], "'tags' is in an index of whole values: use index(…, using=\"gin\")"),
        ([index("tags", "at", using="gin")], "'at' has no elements"),
        ([("text",) * 33], "'text' is one column too many"),
        (["text", ("text",)], "'text' is declared twice in indexes="),
        *((bad, "no list of columns, tuples of columns and index(…)") for bad in (None, {"text": "gin"}, index("text"), b"text")),
        *(([bad], "no column, no tuple of columns and no index(…)") for bad in (None, 5, {"text"}, ["text", ["at"]], count())),
    ],
)  # fmt: skip
def test_an_index_that_cannot_be_is_refused_with_the_reason(indexes: Any, said: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidReadModel, match="read model tagged: ") as refused:
        with_indexes(TAGGED, indexes)
    assert said in str(refused.value)


def test_a_model_as_of_a_moment_has_none() -> None:
    assert renamed(indexed(Counted, "events"), "counted_at_7").indexes == ()


def test_a_fold_has_indexes_of_its_columns(things: PlatformStore) -> None:
    @fold(view="seen", deciders=["thing"], key="thing_id", columns={"n": "bigint"}, indexes=[("n", "thing_id")])
    def seen(state: State | None, event: FoldEvent) -> State | None:  # noqa: ARG001
        """One row per thing."""
        return state

    built = ensure_version(things.connection, seen)
    assert [one.definition for one in stored_indexes(things.connection, built)] == ["btree (n, thing_id)"]
