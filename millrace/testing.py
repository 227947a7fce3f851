"""Testing read models, deciders and subscriptions: given events, when something happens, then this is the result.

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

A decider is tested the same way: given events, when a command comes, then these events follow.

    import pytest
    from millrace import Decider, Emit

    def decide(command: str, status: str) -> list[Emit]:
        if status == "paid":
            raise ValueError("paid already")
        return [Emit("paid", {"by": command})]

    PAYMENT = Decider(name="payment", initial="open", decide=decide, evolve=lambda status, event: event.event)

    def test_an_order_is_paid_once() -> None:
        paid = given(event("payment", "p-1", "asked")).when(PAYMENT, "p-1", "card").then(Emit("paid", {"by": "card"}))
        assert paid.state == "paid"
        with pytest.raises(ValueError, match="paid already"):
            given(event("payment", "p-1", "paid")).when(PAYMENT, "p-1", "card")

A subscription is called as in production: `given(…).when(send_mail)` says how many events it `handled`, and the test
checks their effect.

`event(decider, decider_id, name, **data)` is an event to append: its data are the keywords. `given(…)` registers events
and appends them, in this order, to its own event store.

`when(model)` consumes them, as a drain does, in batches of a random size, and then rebuilds the model from all its
events at once. If the rows differ, they depend on how events were split into batches, and the test fails: a drain's
batches are arbitrary. `then(rows)` compares rows in any order, by the columns that the expected rows name; `rows`
returns all rows, for other assertions. If the model cannot be built from some streams, `StreamsFailed` names each
stream, its event and the reason.

`when(decider, decider_id, command)` works like `handle`, and raises the errors of `decide`. The decision, and the state
after it, must not depend on how often or from which snapshot they are computed: else the test fails. `then(…)` compares
the events with `Emit`s, in their order; they are registered automatically.

`when(subscription)` calls its handler for each event that it wants and did not get yet, in the order of each stream, as
`millrace run handlers` does. If it raises, `StreamsFailed` names each stream, its event and the error; there is no
retry. `given_back` counts the events that the handler postponed.

It needs no fixture and no plugin, and works in each process of pytest-xdist. Stores are on a real Postgres, models are
built on a real Spark (`millrace.testing_servers`). With `dsn=` and `spark=`, `given` takes the caller's event store and
session.
"""

import random
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import count
from math import isclose
from typing import TYPE_CHECKING, Any, cast, overload

from psycopg import sql
from psycopg.rows import dict_row

from millrace.commands.decider import Command, Decider, State
from millrace.commands.trial import Handled, tried
from millrace.drain.commit import Commit
from millrace.drain.view_drain import ViewDrain
from millrace.errors import MillraceError
from millrace.event_store import EventStore, Json, NewEvent, StreamEvents, on
from millrace.event_store.platform import PlatformStore
from millrace.handlers.declaration import Subscription
from millrace.handlers.log_lines import Counters
from millrace.handlers.trial import consumed
from millrace.postgres.connecting import connect
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.rollups import Rollup
from millrace.testing_servers import drop_store, new_store, sealer, shared_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Built", "Given", "Handled", "StreamsFailed", "event", "given"]

Row = dict[str, Any]

_OWNER = "a test"
_BATCHES = 3
_numbers = count()


class StreamsFailed(MillraceError):
    """A read model cannot be built from some streams, or a handler raised; the detail has stream, event and error."""


def event(decider: str, decider_id: str, name: str, /, **data: Json) -> StreamEvents:
    """Return an event to append: the next one of its stream, with the keywords as its data."""
    return on(decider, decider_id, NewEvent(name, data))


def given(*events: StreamEvents, dsn: str | None = None, spark: "SparkSession | None" = None) -> "Given":
    """Append events in this order to the test's own event store, and return it for `when`.

    Args:
        events: Events of any streams. They are registered, too. Without events the store is empty.
        dsn: The caller's event store instead, with the events that it has already.
        spark: The caller's session instead of the one that all tests of this process share.
    """
    return Given(dsn, spark).given(*events)


class Given:
    """An event store and the events in it, from which read models can be built. `given` makes one.

    Attributes:
        dsn: The event store. The test's own store is dropped when nothing refers to this object any more.
    """

    def __init__(self, dsn: str | None, spark: "SparkSession | None") -> None:
        self._spark, self._sealer = spark, None if dsn else sealer()
        if dsn is None:
            name = f"given_{next(_numbers)}"
            dsn = new_store(name)
            weakref.finalize(self, drop_store, name).atexit = False  # then the whole server is removed
        self.dsn = dsn

    def given(self, *events: StreamEvents) -> "Given":
        """Append later events; `when` continues with them."""
        with connect(self.dsn) as connection:
            store = EventStore(connection, sealer=self._sealer)
            for decider, name, version in dict.fromkeys(
                (given.decider, e.event, e.event_version) for given in events for e in given.events
            ):
                store.register_decider_event(decider, name, "given in a test", version)
            if events:
                store.append_all(events)
        return self

    def later(self, time: timedelta) -> "Given":
        """Let a time pass for scheduled events: those that are due are appended; `when` continues with them."""
        with connect(self.dsn) as connection:
            connection.execute(
                "update event_store.scheduled_events set due_at = due_at - %(t)s, next_at = next_at - %(t)s",
                {"t": time},
            )
            store = PlatformStore(connection)
            while store.fire_scheduled_events().done:
                pass
        return self

    @overload
    def when(self, what: "ReadModel | type", *, batch_events: int | None = None) -> "Built": ...

    @overload
    def when(self, what: Subscription) -> Counters: ...

    @overload
    def when(self, what: Decider[State, Command], decider_id: str, command: Command) -> Handled[State]: ...

    def when(
        self,
        what: "ReadModel | type | Subscription | Decider[State, Command]",
        decider_id: str | None = None,
        command: Command | None = None,
        *,
        batch_events: int | None = None,
    ) -> "Built | Counters | Handled[State]":
        """Build a read model from all events that it has not had yet, as a drain does; or handle those, or a command.

        Args:
            what: A read model, declared by `read_model`, `fold`, `recompute` or `rollup`; or a subscription, or a
                decider.
            decider_id: The stream of the command.
            command: The command for the decider's `decide`.
            batch_events: The greatest number of events in a batch, without a rebuild, as for a model that also looks at
                the time. None: a random number, for about three batches at most, and a rebuild that must give the same
                rows.

        Raises:
            AssertionError: The rows depend on how the events were split into batches; or the decision depends on more
                than the command and the events.
            StreamsFailed: The model cannot be built from some streams; or a handler raised.
            PartitionsFailed: The model cannot be built at all.
            JavaNotFound: There is no Java for Spark.
            Unreachable: `SPARK_REMOTE` or `SPARK_MASTER` name a server that does not answer.
        """
        if isinstance(what, Decider):
            return self._handled(what, decider_id, command)
        if isinstance(what, Subscription):
            return self._consumed(what)
        # to type checkers a decorated class is still the class itself
        if not isinstance(what, ReadModel):
            raise TypeError(f"{what!r} is no read model: declare it with read_model, fold or recompute")
        size = batch_events or self._drawn_size()
        with self._consumer(what) as consumer:
            commits: list[Commit] = []
            consumer.drain(budget_s=float("inf"), idle_s=0, batch_events=size, on_commit=commits.append)
        _require_no_failures(what, commits)
        built = Built(self, what)
        if batch_events is None and commits:
            _require_same_rows(what, size, built.rows, built.rebuilt().rows)
        return built

    def _handled(
        self, decider: Decider[State, Command], decider_id: str | None, command: Command | None
    ) -> Handled[State]:
        __tracebackhide__ = True
        if decider_id is None:
            raise TypeError(f"name the stream and the command: when({decider.name.upper()}, decider_id, command)")
        with connect(self.dsn) as connection:
            return tried(EventStore(connection, sealer=self._sealer), decider, decider_id, cast(Command, command))

    def _consumed(self, subscription: Subscription) -> Counters:
        __tracebackhide__ = True
        counters, parked = consumed(self.dsn, subscription, self._sealer)
        if parked:
            raise StreamsFailed(
                f"The handler {subscription.name} failed at {len(parked)} stream(s).",
                detail="\n".join(f"{f.decider} {f.decider_id!r}, offset {f.offset}: {f.last_error}" for f in parked),
            )
        return counters

    def _drawn_size(self) -> int:
        with connect(self.dsn) as connection:
            store = PlatformStore(connection)
            store.sequence_events()
            most = max(1, sum(info.events for info in store.partition_info()))
        return random.randint(-(-most // _BATCHES), most)  # noqa: S311  no secret

    def _consumer(self, model: ReadModel) -> ViewDrain:
        if isinstance(model, Rollup):
            model = replace(model.of, rollups=(model,))
        return ViewDrain(self.dsn, model, lambda: self._spark or shared_spark(), _OWNER)


class Built:
    """A read model that is built from given events. `Given.when` makes one."""

    def __init__(self, origin: Given, model: ReadModel) -> None:
        self._origin = origin
        self._model = model

    @property
    def rows(self) -> list[Row]:
        """The public rows with all their columns, sorted by key, texts by their bytes."""
        keys = [
            sql.SQL('{} collate "C"' if type_ == "text" else "{}").format(sql.Identifier(name))
            for name, type_ in self._model.public_columns().items()
            if name in self._model.keys
        ]
        query = sql.SQL("select * from {} order by {}").format(
            sql.Identifier("read_models", self._model.name), sql.SQL(", ").join(keys)
        )
        with connect(self._origin.dsn) as connection, connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query).fetchall()

    def then(self, rows: Iterable[Mapping[str, object]]) -> "Built":
        """Assert that the rows are these, in any order, by the columns that they name; all must name the same columns.

        A float is compared with a decimal as it is written: 9.95 is `Decimal("9.95")`.

        Raises:
            AssertionError: The rows differ; the text has the missing and the unexpected rows.
        """
        __tracebackhide__ = True
        expected = [dict(row) for row in rows]
        found = self.rows
        columns = self._model.public_columns()
        for row in expected:
            unknown = [name for name in row if name not in columns]
            if unknown:
                raise ValueError(
                    f"read model {self._model.name} has no column {unknown[0]!r}; it has {', '.join(columns)}"
                )
            if row.keys() != expected[0].keys():
                raise ValueError(f"name the same columns in every row: {expected[0]} and {row} do not")
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

    def given(self, *events: StreamEvents) -> Given:
        """Append later events; `when` continues with them."""
        return self._origin.given(*events)

    def rebuilt(self, *partitions: int) -> "Built":
        """Rebuild log partitions of the model from their first events, all of them if none is named.

        A model that depends only on its events has the same rows afterwards.

        Raises:
            StreamsFailed: The model cannot be built from some streams.
        """
        if not partitions:
            with connect(self._origin.dsn) as connection:
                partitions = tuple(info.partition for info in EventStore(connection).partition_info())
        with self._origin._consumer(self._model) as consumer:
            _require_no_failures(self._model, [consumer.rebuild(*partitions)])
        return self


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
    # a sum of floats depends on their order
    if len(found) == len(rebuilt) and all(
        isclose(value, other[name]) if isinstance(value, float) and other[name] is not None else value == other[name]
        for row, other in zip(found, rebuilt, strict=True)
        for name, value in row.items()
    ):
        return
    raise AssertionError(
        f"The rows of read model {model.name} depend on how its events are split into batches.\n"
        f"  in batches of {size} events: {[row for row in found if row not in rebuilt]}\n"
        f"  rebuilt from all at once: {[row for row in rebuilt if row not in found]}\n"
        f"Try it again: when(…, batch_events={size}) builds the first rows, and rebuilt() after it the others."
    )


def _same(found: Row, expected: Row) -> bool:
    return all(
        found[name] == (Decimal(str(value)) if isinstance(found[name], Decimal) and isinstance(value, float) else value)
        for name, value in expected.items()
    )
