"""How a read model is tested: given events, when it is built, then these rows; on a real Postgres and a real Spark.

    from millrace import count, last, read_model, stream_id, sum_
    from millrace.testing import event, given

    @read_model(view="orders", deciders=["order"], key=["order_id"])
    class Orders:
        \"\"\"One row per order: where it stands and what it is worth.\"\"\"

        order_id = stream_id()
        status = last("event")
        lines = count(events=["line_added"])
        total = sum_("data.amount", type="decimal(18,2)")

    def test_an_order_adds_up_its_lines() -> None:
        placed = given(
            event("order", "o-1", "placed"),
            event("order", "o-1", "line_added", product="whisk", amount=9.95),
            event("order", "o-2", "placed"),
        )
        placed.when(Orders).then(
            [
                {"order_id": "o-1", "status": "line_added", "lines": 1, "total": 9.95},
                {"order_id": "o-2", "status": "placed", "lines": 0, "total": 0},
            ]
        )

    def test_later_events_change_the_rows_and_a_rebuild_gives_the_same_ones() -> None:
        built = given(event("order", "o-1", "placed")).when(Orders).then([{"order_id": "o-1", "lines": 0}])
        later = built.given(event("order", "o-1", "line_added", amount=5)).when(Orders)
        later.then([{"order_id": "o-1", "lines": 1}]).rebuilt().then([{"order_id": "o-1", "lines": 1}])

`event(decider, decider_id, name, **data)` is an event to come: its data are the keywords. `given(…)` registers events
and appends them, in this order, to an event store of its own. `when(model)` consumes them, as a drain does, in batches
of a size that is drawn anew each time, and then rebuilds the model from all its events at once. Rows that differ then
depend on how events were split into batches, and the test fails: a drain's batches are as they come. `then(rows)`
compares rows in any order, by the columns that the expected rows name; `rows` gives all of them, for assertions of
another kind. Where the model cannot be built from some streams, `StreamsFailed` names each, its event and the reason.

It needs no fixture and no plugin, and works in each process of pytest-xdist. The first `given` of a process starts a
Postgres in a temporary folder. The first `when` opens a Spark session: a local one, or where `SPARK_REMOTE` or
`SPARK_MASTER` say. Both end with the process. `given` takes an event store or a session of the caller's as `dsn=`,
`spark=`.

Belongs here: what tests of read models need, for users and for us. Not here: anything that runs outside of tests.
"""

import atexit
import os
import random
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from functools import cache
from itertools import count
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore, Json, NewEvent
from millrace.resources.event_store.migrations import migrate
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.spark import spark_session
from millrace.resources.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Built", "Given", "StreamsFailed", "event", "given"]

Row = dict[str, Any]

# enough that streams lie apart; each model has a table for each
_LOG_PARTITIONS = 4
_TEMPLATE = "template_millrace"
# a Java that lives for a minute: no compiler that pays after ten, no threads that collect garbage beside few cores
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_OWNER = "a test"
_BATCHES = 3
_numbers = count()


class StreamsFailed(MillraceError):
    """The read model cannot be built from some streams; the detail names each, its event's offset and the reason."""


def event(decider: str, decider_id: str, name: str, /, **data: Json) -> NewEvent:
    """Return an event to be given: the next one of its stream, with the keywords as its data."""
    return NewEvent(decider, decider_id, name, uuid4(), data, uuid4())


def given(*events: NewEvent, dsn: str | None = None, spark: "SparkSession | None" = None) -> "Given":
    """Append events in this order to an event store of the test's own, and return what can be built from it.

    Args:
        events: Events of any streams. They are registered, too. None of them: an empty store.
        dsn: An event store of the caller's instead, with what it has already.
        spark: A session of the caller's instead of the one that all tests of this process share.
    """
    return Given(dsn, spark).given(*events)


class Given:
    """An event store and the events in it, from which read models can be built. `given` makes one.

    Attributes:
        dsn: The event store. One of the test's own goes when nothing refers to this any more.
    """

    def __init__(self, dsn: str | None, spark: "SparkSession | None") -> None:
        self._spark = spark
        if dsn is None:
            name = f"given_{next(_numbers)}"
            dsn = _new_store(name)
            weakref.finalize(self, _drop_store, name).atexit = False  # the server goes as a whole
        self.dsn = dsn

    def given(self, *events: NewEvent) -> "Given":
        """Append later events; what was built before goes on from them."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            store = EventStore(connection)
            for decider, name, version in dict.fromkeys((e.decider, e.event, e.event_version) for e in events):
                store.register_decider_event(decider, name, "given in a test", version)
            if events:
                store.append_events(events)
        return self

    def when(self, model: "ReadModel | type", *, batch_events: int | None = None) -> "Built":
        """Build a read model from all events that it has not consumed yet, as a drain does.

        Args:
            model: The read model: what `read_model`, `fold` or `recompute` declared.
            batch_events: How many events a batch may have, and nothing is built a second time, as for a model that
                also looks at the time. None: a number that is drawn, about three batches at most, and a rebuild that
                must give the same rows.

        Raises:
            AssertionError: The rows depend on how the events were split into batches.
            StreamsFailed: It cannot be built from some streams.
            PartitionsFailed: It cannot be built at all.
            JavaNotFound: There is no Java that Spark runs on.
            Unreachable: `SPARK_REMOTE` or `SPARK_MASTER` name a server that does not answer.
        """
        declared = _declared(model)
        size = batch_events or self._drawn_size()
        with self._consumer(declared) as consumer:
            commits: list[Commit] = []
            consumer.drain(budget_s=float("inf"), idle_s=0, batch_events=size, on_commit=commits.append)
        _require_no_failures(declared, commits)
        built = Built(self, declared)
        if batch_events is None and commits:
            _require_same_rows(declared, size, built.rows, built.rebuilt().rows)
        return built

    def _drawn_size(self) -> int:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            store = EventStore(connection)
            store.sequence_events()
            most = max(1, sum(info.events for info in store.partition_info()))
        return random.randint(-(-most // _BATCHES), most)  # noqa: S311  no secret

    def _consumer(self, model: ReadModel) -> Consumer:
        return Consumer.open(self.dsn, model, lambda: self._spark or _shared_spark(), _OWNER)


class Built:
    """A read model that is built from given events. `Given.when` makes one."""

    def __init__(self, origin: Given, model: ReadModel) -> None:
        self._given = origin
        self._model = model

    @property
    def rows(self) -> list[Row]:
        """The rows that people read, all columns of each, by key; texts by their bytes."""
        keys = [
            sql.SQL('{} collate "C"' if key.type == "string" else "{}").format(sql.Identifier(name))
            for name, key in self._model.keys.items()
        ]
        query = sql.SQL("select * from {} order by {}").format(
            sql.Identifier("read_models", self._model.name), sql.SQL(", ").join(keys)
        )
        with psycopg.connect(self._given.dsn, row_factory=dict_row) as connection:
            return connection.execute(query).fetchall()

    def then(self, rows: Iterable[Mapping[str, object]]) -> "Built":
        """Assert that the rows are these, in any order; only the columns are compared that they name, the same in each.

        A float is compared with a decimal as it is written: 9.95 is `Decimal("9.95")`.

        Raises:
            AssertionError: They are not; it names the rows that are missing and those that are not expected.
        """
        __tracebackhide__ = True
        expected = [dict(row) for row in rows]
        found = self.rows
        self._require_columns(expected)
        if expected:
            found = [{name: row[name] for name in expected[0]} for row in found]
        missing = []
        for row in expected:
            twin = next((n for n, other in enumerate(found) if _same(other, row)), None)
            if twin is None:
                missing.append(row)
            else:
                del found[twin]
        if missing or found:
            lines = [f"The rows of read model {self._model.name} are others."]
            lines += [f"  missing:      {row}" for row in missing]
            lines += [f"  not expected: {row}" for row in found]
            raise AssertionError("\n".join(lines))
        return self

    def given(self, *events: NewEvent) -> Given:
        """Append later events: `when` goes on from them."""
        return self._given.given(*events)

    def rebuilt(self, *partitions: int) -> "Built":
        """Build log partitions of the model anew from their first events, all of them if none is named.

        A model that looks at nothing but its events has the same rows afterwards.

        Raises:
            StreamsFailed: It cannot be built from some streams.
        """
        if not partitions:
            with psycopg.connect(self._given.dsn, autocommit=True) as connection:
                partitions = tuple(info.partition for info in EventStore(connection).partition_info())
        with self._given._consumer(self._model) as consumer:
            _require_no_failures(self._model, [consumer.rebuild(*partitions)])
        return self

    def _require_columns(self, expected: Sequence[Row]) -> None:
        known = self._model.public_columns()
        for row in expected:
            unknown = [name for name in row if name not in known]
            if unknown:
                raise ValueError(
                    f"read model {self._model.name} has no column {unknown[0]!r}; it has {', '.join(known)}"
                )
            if row.keys() != expected[0].keys():
                raise ValueError(f"name the same columns in every row: {expected[0]} and {row} do not")


def _declared(model: "ReadModel | type") -> ReadModel:
    # type checkers take a decorated class for the class that it was
    if not isinstance(model, ReadModel):
        raise TypeError(f"{model!r} is no read model: declare it with read_model, fold or recompute")
    return model


def _require_no_failures(model: ReadModel, commits: Iterable[Commit]) -> None:
    failures = [failure for commit in commits for failure in commit.failures]
    if failures:
        raise StreamsFailed(
            f"Read model {model.name} cannot be built from {len(failures)} stream(s).",
            detail="\n".join(
                f"{f.stream.decider} {f.stream.decider_id!r}, offset {f.offset}: {f.error}" for f in failures
            ),
        )


def _require_same_rows(model: ReadModel, size: int, found: Sequence[Row], rebuilt: Sequence[Row]) -> None:
    __tracebackhide__ = True
    if len(found) == len(rebuilt) and all(map(_about_same, found, rebuilt)):
        return
    raise AssertionError(
        f"The rows of read model {model.name} depend on how its events are split into batches.\n"
        f"  in batches of {size} events: {[row for row in found if row not in rebuilt]}\n"
        f"  rebuilt from all at once: {[row for row in rebuilt if row not in found]}\n"
        f"Try it again: when(…, batch_events={size}) builds the first rows, and rebuilt() after it the others."
    )


def _about_same(row: Row, other: Row) -> bool:
    # a sum of floats depends on their order
    return all(
        isclose(value, other[name]) if isinstance(value, float) and other[name] is not None else value == other[name]
        for name, value in row.items()
    )


def _same(found: Row, expected: Row) -> bool:
    return all(_same_value(found[name], value) for name, value in expected.items())


def _same_value(found: object, expected: object) -> bool:
    if isinstance(found, Decimal) and isinstance(expected, float):
        return found == Decimal(str(expected))
    return bool(found == expected)


# what ends with this process: the session last, for that takes longest, and Spark's server ends with us in any case
_POSTGRES, _SPARK = ExitStack(), ExitStack()


@atexit.register
def _end() -> None:
    _POSTGRES.close()
    _SPARK.close()


@cache
def _folder() -> Path:
    # no TemporaryDirectory: at the end of the process that would go before the server that is in it
    folder = Path(tempfile.mkdtemp(prefix="millrace-testing-"))
    _POSTGRES.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _server() -> EmbeddedPostgres:
    """Return the Postgres of this process, with a database to copy stores from."""
    server = _POSTGRES.enter_context(EmbeddedPostgres(_folder() / "postgres"))
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        # a test may lose its data with the machine; stores that come and go would wait for the disk
        admin.execute("alter system set fsync = off")
        admin.execute("select pg_reload_conf()")
    server.create_database(_TEMPLATE)
    migrate(server.dsn(_TEMPLATE), log_partitions=_LOG_PARTITIONS)
    return server


def _new_store(name: str) -> str:
    server = _server()
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(_TEMPLATE)))
    return server.dsn(name)


def _drop_store(name: str) -> None:
    with psycopg.connect(_server().dsn("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@cache
def _shared_spark() -> "SparkSession":
    """Return the session that all tests of this process share."""
    if "SPARK_REMOTE" in os.environ:
        return _SPARK.enter_context(spark_session())
    # where a Java has to be made first, it goes with this process and not into the user's folders
    os.environ["JAVA_HOME"] = str(find_java(_folder() / "java").home)
    return _SPARK.enter_context(spark_session({"spark.driver.extraJavaOptions": _JAVA_OPTIONS}))
