"""Given rollups of read models, when rows, declarations and versions change, then groups are those of the rows."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, LiteralString, cast
from zoneinfo import ZoneInfo

import psycopg
import pyarrow as pa
import pytest
from psycopg import Connection, sql

from millrace import avg, bucket, computed, count, last, lookup, max_, min_, read_model, rollup, row, stream_id, sum_
from millrace.drain.report import DrainReport
from millrace.drain.serving import Serving
from millrace.errors import InvalidReadModel
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.buckets import _zones, beginning, beginning_in_sql
from millrace.read_models.declared.column_types import InvalidColumn
from millrace.read_models.declared.columns import KeyColumn
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.rollups import Rollup
from millrace.read_models.shown.zones import zones_apart, zones_of_rollups
from millrace.read_models.stored import rollup_tables
from millrace.read_models.stored.merge import merge_rows
from millrace.read_models.stored.rollup_tables import RollupFailed, drop_rollups, update_rollups
from millrace.read_models.stored.tables import DependentObjects
from millrace.read_models.stored.versions import (
    built_and_next,
    ensure_version,
    reset_model,
    serve_if_caught_up,
    versions,
    with_upcasts,
)
from tests.long import LONG
from tests.support.building import read_models as models
from tests.support.building.drains import close, thing
from tests.support.building.lab import Lab
from tests.support.factories import Connect, rows, start, value, wait_blocked
from tests.support.patience import patience
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MONEY = "decimal(18,2)"


@read_model(view="orders", deciders=["order"], key=["order_id"])
class Orders:
    """One row per order."""

    order_id = stream_id()
    status = last("data.status")
    lines = count(events=["line added"])
    total = sum_("data.total", type=MONEY)


# a text that Postgres does not compress below the limit of a key
DIGITS = "".join(sha256(str(number).encode()).hexdigest() for number in range(100))


@read_model(view="seen", deciders=["order"], key=["order_id"])
class Seen:
    """One row per order, of types that no group takes."""

    order_id = stream_id()
    status = last("data.status")
    weight = last("data.weight", type="double")
    created_at = min_("created_at")
    took = computed("created_at - created_at")


@read_model(view="looking", deciders=["order"], key=["order_id"])
class Looking:
    """One row per order, with what another model has."""

    order_id = stream_id()
    n = count()
    name = lookup(Seen, on="order_id", column="status")


def by_status(**columns: object) -> Rollup:
    members: dict[str, Any] = {
        "status": row("status"), "orders": count(), "with_status": count("status"), "lines": sum_("lines"),
        "worth": sum_("total", type=MONEY), "mean": avg("total"),
    }  # fmt: skip
    declared = type("ByStatus", (), {"__doc__": "Orders by status.", **members, **columns})
    return rollup(of=Orders, key=["status"])(declared)


def orders(*rollups: Rollup) -> ReadModel:
    return replace(cast("ReadModel", Orders), rollups=rollups, all_rollups=True)


def merge(connection: Connection, model: ReadModel | type, *found: tuple[int, str, str | None, int, str]) -> None:
    """Merge rows: log partition, order, its status from now on, and the lines and worth to add."""
    (offset,) = rows(connection, "select nextval('read_models.batch_seq')")[0]
    partitions, ids, statuses, lines, totals = zip(*found, strict=True)
    fresh = {
        "partition": partitions, "order_id": ids, "status": statuses, "status_offset": [offset] * len(found),
        "lines": lines, "total": [pa.scalar(total).cast(pa.decimal128(38, 2)) for total in totals],
    }  # fmt: skip
    merge_rows(connection, cast("ReadModel", model), pa.table(fresh))


def tables(connection: Connection) -> list[str]:
    """Return the tables of rollups, each of which has a function and three triggers."""
    query = """
        select p.proname
        from pg_proc p
        left join pg_trigger t on t.tgfoid = p.oid
        where p.pronamespace = 'read_models'::regnamespace
        group by p.oid, p.proname
        having count(t) = 3 and to_regclass('read_models.' || p.proname) is not null
    """
    return [name for (name,) in rows(connection, query)]


def left(connection: Connection, name: str) -> list[tuple[Any, ...]]:
    """Return the tables, views and functions of read models with this name."""
    return rows(
        connection,
        "select relname::text from pg_class where relnamespace = 'read_models'::regnamespace and relname ~ %s"
        " union all"
        " select proname::text from pg_proc where pronamespace = 'read_models'::regnamespace and proname ~ %s",
        name,
        name,
    )


def state_of(model: ReadModel) -> str:
    (one,) = model.rollups
    return replace(one, of=model).state_table


@pytest.fixture
def built(store: PlatformStore) -> Connection:
    model = ensure_version(store.connection, orders(by_status()))
    assert serve_if_caught_up(store.connection, model)
    found = (1, "o-1", "new", 2, "10.50"), (1, "o-2", "new", 1, "2.00"), (2, "o-3", None, 0, "0")
    merge(store.connection, model, *found)
    return store.connection


def shown(connection: Connection) -> list[tuple[Any, ...]]:
    columns = "status, orders, with_status, lines, worth::text, mean::float"
    return rows(connection, f"select {columns} from read_models.by_status order by 1")


def test_a_row_that_changes_its_group_leaves_one_and_joins_another(built: Connection) -> None:
    assert shown(built) == [("new", 2, 2, 3, "12.50", 6.25), (None, 1, 0, 0, "0.00", 0.0)]
    merge(built, Orders, (1, "o-1", "paid", 0, "-0.25"), (2, "o-3", "new", 5, "1.00"))
    assert shown(built) == [("new", 2, 2, 6, "3.00", 1.5), ("paid", 1, 1, 2, "10.25", 10.25)]


def test_who_compares_groups_with_rows_waits_for_one_who_drops_them(built: Connection, connect: Connect) -> None:
    dropping, comparing = connect(), connect()
    (pid,) = rows(comparing, "select pg_backend_pid()")[0]
    model = orders(by_status())
    with dropping.transaction():
        dropping.execute("lock table read_models.orders_state")  # as the first of its triggers goes
        compared = start(lambda: rollup_tables.differing_rollups(comparing, model))
        wait_blocked(built, pid)
        drop_rollups(dropping, model, with_views=True)
    with pytest.raises(psycopg.errors.UndefinedTable):
        compared.result(patience())


def test_a_changed_rollup_takes_the_present_rows_beside_a_commit(built: Connection, connect: Connect) -> None:
    """The commit comes from a process with the previous declaration, and no event is read."""
    built.execute("grant select on read_models.by_status to event_store_writer")
    # with any default isolation, the rows are those after the wait
    built.execute("set default_transaction_isolation = 'repeatable read'")
    changed = orders(by_status(least=count("lines")))
    committer, observer = connect(), connect()
    with committer.transaction():
        merge(committer, Orders, (2, "o-3", "new", 1, "1.00"))
        (pid,) = rows(built, "select pg_backend_pid()")[0]
        change = start(lambda: serve_if_caught_up(built, ensure_version(built, changed)))
        wait_blocked(observer, pid)
        # the commit is not refused, and does not wait
        merge(committer, Orders, (2, "o-4", "paid", 1, "7.00"))
    assert change.result(patience())
    found = rows(built, "select status, orders, worth::text, least from read_models.by_status order by 1")
    assert found == [("new", 3, "13.50", 3), ("paid", 1, "7.00", 1)]
    merge(committer, Orders, (2, "o-4", "new", 0, "0"))
    found = rows(built, "select status, orders, worth::text, least from read_models.by_status")
    assert found == [("new", 4, "20.50", 4)]
    assert tables(built) == [state_of(changed)]
    assert value(built, "select has_table_privilege('event_store_writer', 'read_models.by_status', 'select')")


def test_a_change_that_comes_while_the_rollup_is_made_is_in_it(built: Connection, connect: Connect) -> None:
    changed = with_upcasts(built, orders(by_status(least=count("lines"))))
    committer, observer = connect(), connect()
    with built.transaction():
        update_rollups(built, changed, shown=True)
        (pid,) = rows(committer, "select pg_backend_pid()")[0]
        late = start(lambda: merge(committer, Orders, (2, "o-3", "new", 1, "1.00")))
        wait_blocked(observer, pid)
    late.result(patience())
    assert rows(built, "select status, orders, least from read_models.by_status") == [("new", 3, 3)]


def test_commits_of_two_log_partitions_do_not_wait_for_each_other(built: Connection, connect: Connect) -> None:
    other = connect()
    with built.transaction():
        merge(built, Orders, (1, "o-1", "paid", 0, "0"))
        with other.transaction():
            other.execute("set local lock_timeout = '1ms'")
            merge(other, Orders, (2, "o-3", "paid", 1, "1.00"))
    assert [row[:2] for row in shown(built)] == [("new", 1), ("paid", 2)]


def test_a_new_version_of_the_read_model_comes_with_its_rollup(built: Connection) -> None:
    wider = replace(orders(), events=("placed",))
    changed = replace(wider, rollups=(replace(by_status(), of=wider),))
    new, before = ensure_version(built, changed), shown(built)
    with built.transaction():
        update_rollups(built, new, shown=False)
    merge(built, new, (1, "o-9", "paid", 1, "1.00"))
    assert shown(built) == before
    merge(built, Orders, (1, "o-2", "paid", 0, "0"))
    assert [row[:2] for row in shown(built)] == [("new", 1), ("paid", 1), (None, 1)]
    assert serve_if_caught_up(built, new)
    assert shown(built) == [("paid", 1, 1, 1, "1.00", 1.0)]
    assert tables(built) == [replace(by_status(), of=new).state_table]


def test_a_rollup_that_is_declared_no_more_goes_if_all_are_known(built: Connection) -> None:
    assert serve_if_caught_up(built, ensure_version(built, cast("ReadModel", Orders)))
    assert len(tables(built)) == 1
    assert serve_if_caught_up(built, ensure_version(built, orders()))
    assert left(built, "by_status") == []


@pytest.mark.parametrize("all_rollups", [True, False])
def test_a_rollup_not_of_the_new_version_goes_or_holds_the_old_one(built: Connection, *, all_rollups: bool) -> None:
    new = ensure_version(built, replace(orders(), events=("placed",), all_rollups=all_rollups))
    assert serve_if_caught_up(built, new)
    assert len(versions(built, "orders")) == (1 if all_rollups else 2)
    assert (value(built, "select to_regclass('read_models.by_status')") is None) == all_rollups


def test_what_depends_on_columns_that_go_keeps_the_rollup_and_is_told(built: Connection) -> None:
    built.execute("create view mine as select worth from read_models.by_status")
    before, report = shown(built), DrainReport()
    members = {"__doc__": "Orders by status.", "status": row("status"), "orders": count()}
    fewer = rollup(of=Orders, key=["status"])(type("ByStatus", (), members))
    less = ensure_version(built, orders(fewer))
    Serving(less).begin(PlatformStore(built), report)
    assert isinstance(report.in_the_way, DependentObjects)
    merge(built, Orders, (1, "o-1", "new", 0, "0"))
    assert shown(built) == before
    built.execute("drop view mine")
    assert serve_if_caught_up(built, less)
    assert rows(built, "select * from read_models.by_status order by 1") == [("new", 2), (None, 1)]


def test_a_key_that_is_too_long_is_refused_by_the_rollup(built: Connection) -> None:
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="by_status_state_"):
        merge(built, Orders, (1, "o-1", DIGITS, 0, "0"))
    assert [row[:2] for row in shown(built)] == [("new", 2), (None, 1)]
    # without the rollup the row is accepted
    serve_if_caught_up(built, ensure_version(built, orders()))
    merge(built, Orders, (1, "o-1", DIGITS, 0, "0"))
    report, again = DrainReport(), DrainReport()
    serving = Serving(ensure_version(built, orders(by_status())))
    serving.begin(PlatformStore(built), report)
    assert isinstance(report.in_the_way, RollupFailed)
    assert "by_status_state_" in str(report.in_the_way.detail)
    # it does not retry after each commit, which would wait
    serving.begin(PlatformStore(built), again)
    assert again.in_the_way is None


def test_a_drain_is_due_for_a_rollup_that_is_new_or_changed(built: Connection) -> None:
    changed = by_status(least=count("lines"))
    new = groups_of(cast("ReadModel", Orders), lines=row("lines"), n=count())
    for rollups, is_due in (([by_status()], False), ([changed], True), ([changed, new], True)):
        model = orders(*rollups)
        assert built_and_next(built, model)[1] == is_due
        serve_if_caught_up(built, ensure_version(built, model))
        assert not built_and_next(built, model)[1]


def test_a_rollup_does_not_take_the_view_of_a_read_model(store: PlatformStore) -> None:
    named = replace(cast("ReadModel", Seen), name="by_status")
    ensure_version(store.connection, named)
    model = ensure_version(store.connection, orders(by_status()))
    with pytest.raises(DependentObjects, match="Rollup by_status of read model orders has the name of another"):
        serve_if_caught_up(store.connection, model)
    reset_model(store.connection, named)
    assert serve_if_caught_up(store.connection, model)


def test_a_reset_of_the_read_model_removes_its_rollups(built: Connection) -> None:
    reset_model(built, orders())
    assert left(built, "by_status|orders") == []


def groups_of(model: ReadModel, **members: Any) -> Rollup:  # noqa: ANN401 - columns of any kind
    name = f"Of{model.name.title().replace('_', '')}"
    key = [name for name, one in members.items() if isinstance(one, KeyColumn)]
    return rollup(of=model, key=key)(type(name, (), {"__doc__": "Groups.", **members}))


# rollups of each kind of read model, each with the same groups as SQL over its rows
OF_KINDS = [
    (
        groups_of(
            cast("ReadModel", models.Everything),
            event=row("last_event"), good=row("ever_good"), n=count(), texts=count("richest_text"), worth=sum_("worth", type=MONEY),
            mean=avg("units"),
        ),
        "select last_event, ever_good, count(*), count(richest_text), sum(worth), avg(units) from read_models.everything group by 1, 2",
    ),
    (
        groups_of(cast("ReadModel", models.Going), text=row("last_text"), n=count(), events=sum_("events")),
        "select last_text, count(*), sum(events) from read_models.going group by 1",
    ),
    (
        groups_of(cast("ReadModel", models.GoingAcross), owner=row("owner"), n=count(), events=sum_("events")),
        "select owner, count(*), sum(events) from read_models.going_across group by 1",
    ),
    (
        groups_of(
            cast("ReadModel", models.machines),
            good=row("good"), day=bucket("at", every="1 day", zone="Asia/Tokyo"), n=count(), seen=sum_("seen"), worth=avg("worth"),
        ),
        "select good, date_trunc('day', at, 'Asia/Tokyo'), count(*), sum(seen), avg(worth) from read_models.machines group by 1, 2",
    ),
    (
        groups_of(cast("ReadModel", models.uses), text=row("text"), n=count(), units=sum_("units")),
        "select text, count(*), coalesce(sum(units), 0) from read_models.uses group by 1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "same"), OF_KINDS, ids=lambda one: getattr(one, "name", ""))
def test_after_drains_and_rebuilds_groups_are_of_the_rows(lab: Lab, declared: Rollup, same: LiteralString) -> None:
    model = replace(declared.of, rollups=(declared,))
    for seed in (1, 2):
        lab.fill(60, seed).drain(model)
        assert grouped(lab.connection, declared) == close(lab.rows(same))
    # damaged rollups are repaired by a rebuild, whether or not its declaration has the rollup
    lab.execute(f"delete from read_models.{tables(lab.connection)[0]}")
    for rebuilds, partitions in ((model, range(8)), (declared.of, range(8, 16))):
        lab.rebuild(rebuilds, *partitions)
    assert grouped(lab.connection, declared) == close(lab.rows(same))
    assert len(grouped(lab.connection, declared)) > 1


def test_a_rebuild_finds_the_stream_with_too_long_a_key_as_drains_do(lab: Lab) -> None:
    declared = groups_of(cast("ReadModel", models.Going), text=row("last_text"), n=count())
    model = replace(declared.of, rollups=(declared,))
    append_events(lab, [thing("good", text="short")])
    lab.drain(model)
    append_events(lab, [thing("bad", text=DIGITS)])
    lab.drain(model)
    locks: LiteralString = "select decider_id from event_store.stream_locks"
    assert lab.rows(locks) == [("bad",)]
    lab.rebuild(model)
    assert lab.rows(locks) == [("bad",)]
    assert grouped(lab.connection, declared) == [("short", 1)]


def grouped(connection: Connection, declared: Rollup) -> list[tuple[Any, ...]]:
    return close(connection.execute(f"select * from read_models.{declared.name}".encode()).fetchall())


ROW: dict[str, Any] = {"status": row("status"), "n": count()}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"of": "orders"}, ROW, "of is 'orders'; name a read model, imported from its file"),
    ({"of": by_status()}, ROW, "'by_status' is a rollup: name the read model that it is of"),
    ({"key": "status"}, ROW, "'key' is a text: write a list"),
    ({"key": []}, {"n": count()}, "'groups' has no key"),
    ({"key": ["day"]}, ROW, "'day' is named in key= but is no row(…) or bucket(…)"),
    ({}, ROW | {"lines": row("lines")}, "'lines' is a key column that key= does not name"),
    ({}, {"status": row("status")}, "'groups' has no columns beside its key"),
    ({}, ROW | {"c": computed("n + 1")}, "'c' is no column of a rollup: use row, bucket, count"),
    ({}, ROW | {"__doc__": ""}, "'groups' has no docstring"),
    ({}, ROW | {"partition": count()}, "'partition' is taken"),
    ({}, {"status": row("state"), "n": count()}, "'status' is over 'state', which is no column of orders; there are order_id, "),
    ({"of": Looking}, {"status": row("name"), "n": count()}, "'status' is over 'name', which looking looks up: it changes"),
    ({"of": Seen}, {"status": row("status"), "m": max_("created_at")}, "'m' is max of rows, from which no row can be taken"),
    ({}, ROW | {"m": count(where={"event": "placed"})}, "'m' has where=, which is of events: leave it out, or make the"),
    ({}, ROW | {"m": count(events=["placed"])}, "'m' has events=, which rows have not: leave it out"),
    ({"of": Seen}, {"status": row("weight"), "n": count()}, "'status' is over 'weight', double precision; a key is text, "),
    ({"of": Seen}, {"status": row("took"), "n": count()}, "'status' is over 'took', interval; a key is text, bigint"),
    ({}, {"status": bucket("lines", every="1 day"), "n": count()}, "'status' is over 'lines', bigint; a bucket is of a time"),
    ({"of": Seen}, {"status": row("status"), "w": sum_("weight")}, "sums are of bigint, int or decimal(p,s), which add up"),
    ({}, ROW | {"a": avg("lines"), "a_sum": sum_("lines")}, "'a_sum' is stored twice; rename one of the columns"),
]  # fmt: skip


def test_a_rollup_that_cannot_work_is_refused_in_a_sentence() -> None:
    unsaid = []
    for options, members, sentence in REFUSED:
        declared = type("Groups", (), {"__doc__": "Groups."} | members)
        with pytest.raises(InvalidReadModel, match=r"^read model groups: ") as refused:
            rollup(**{"of": cast("Any", Orders), "key": ["status"]} | options)(declared)
        if sentence not in str(refused.value):
            unsaid.append((sentence, str(refused.value)))
    assert unsaid == []


def test_a_rollup_is_not_looked_up() -> None:
    with pytest.raises(InvalidColumn, match="it is a rollup; look up a read model, or join the rollup"):
        lookup(by_status(), on="status", column="orders")


def test_only_a_rollup_has_columns_over_rows() -> None:
    wrong: list[dict[str, Any]] = [{"n": count("lines")}, {"n": sum_("lines")}, {"n": avg("lines")}, ROW]
    for columns in wrong:
        declared = type("Groups", (), {"__doc__": "Groups.", "order_id": stream_id(), **columns})
        key = [name for name in ("order_id", *columns) if isinstance(getattr(declared, name), KeyColumn)]
        with pytest.raises(InvalidReadModel, match=r"read model groups: '\w+' is neither a column of the event"):
            read_model(view="groups", key=key)(declared)


# distances from a change of clocks: the day before, right before, at it, and in the buckets after it
AROUND = [timedelta(seconds=s) for s in (-90_000, -1, 0, 1_800, 5_400, 40_000)]
EVERY = ["15 min", "1 hour", "2 hour", "3 hour", "8 hour", "1 day", "1 week", "1 month", "1 year"]
# Spark's Java and Postgres may differ in the newest rules, and before 1970 in zones that were merged
OTHER_RULES = {1905: 100, 2012: 10}


def changes_of_clocks(zone: str, since: int) -> Iterator[datetime]:
    """Yield the moments since a year at which a zone's clocks change."""
    clocks, step, before = ZoneInfo(zone), timedelta(days=10), datetime(since, 1, 1, tzinfo=UTC)
    while before.year < 2037:
        after = before + step
        low, high = before, after
        while (
            low.astimezone(clocks).utcoffset() != after.astimezone(clocks).utcoffset() and high - low > step / 864_000
        ):
            middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
            same = middle.astimezone(clocks).utcoffset() == low.astimezone(clocks).utcoffset()
            low, high = (middle, high) if same else (low, middle)
        if high != after:
            yield high
        before = after


@pytest.mark.parametrize("since", [2012, pytest.param(1905, marks=LONG)])
def test_buckets_of_rows_begin_as_those_of_events_do(store: PlatformStore, spark: "SparkSession", since: int) -> None:
    from pyspark.sql import functions as f

    # also the first and the last possible days
    ends = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 1, tzinfo=UTC)]
    moments = [(zone, end) for zone in _zones() for end in ends]
    moments += [(zone, at + by) for zone in sorted(_zones()) for at in changes_of_clocks(zone, since) for by in AROUND]
    at, zone = f.col("at"), cast("str", f.col("zone"))
    times = pa.array((at for _, at in moments), pa.timestamp("us", "UTC"))
    table = pa.table({"zone": [zone for zone, _ in moments], "at": times})
    in_spark = spark.createDataFrame(table).select(
        f.unix_micros(f.from_utc_timestamp(at, zone)).alias("local"),
        *(f.unix_micros(beginning(at, one, zone)).alias(one) for one in EVERY),
    )
    store.connection.execute("create temp table moments (n serial, zone text, at timestamptz)")
    with store.connection.cursor().copy("copy moments (zone, at) from stdin") as copy:
        for row in moments:
            copy.write_row(row)
    of_zone = [beginning_in_sql(sql.SQL("at"), one, "its zone").as_string() for one in EVERY]
    begins = [text.replace("'its zone'", "zone") for text in of_zone]
    said = [f"(extract(epoch from {moment}) * 1000000)::bigint" for moment in ("at at time zone zone", *begins)]
    in_postgres = store.connection.execute(f"select {', '.join(said)} from moments order by n".encode()).fetchall()
    other_rules, wrong = set(), []
    for (name, moment), ours, theirs in zip(moments, in_spark.toArrow().to_pylist(), in_postgres, strict=True):
        if ours["local"] != theirs[0]:
            other_rules.add(name)
        wrong += [(name, moment, one) for one, begin in zip(EVERY, theirs[1:], strict=True) if begin != ours[one]]
    assert [found for found in wrong if found[0] not in other_rules] == []
    assert len(other_rules) <= OTHER_RULES[since]
    assert len(moments) > 20_000
    if since > 1970:
        # exactly these zones are named to a model that rolls up by their clocks
        assert {*zones_apart(store.connection, spark, {*other_rules, "Europe/Berlin"})} == other_rules


def test_zones_of_rollups_are_compared_but_for_utc(store: PlatformStore, spark: "SparkSession") -> None:
    rolled_up = cast("ReadModel", models.machines)
    berlin = groups_of(rolled_up, day=bucket("at", every="1 day", zone="Europe/Berlin"), n=count())
    utc = groups_of(rolled_up, hour=bucket("at", every="1 hour"), n=count())
    assert zones_of_rollups([replace(rolled_up, rollups=(berlin, utc)), cast("ReadModel", Orders)]) == ["Europe/Berlin"]
    assert zones_apart(store.connection, spark, ["Nowhere/City"]) == {"Nowhere/City": None}
