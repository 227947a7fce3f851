"""What each kind of column costs: a model that has it beside one that has not, on one store, round by round.

Belongs here: the catalogue, a line per kind; a round of new events, a rebuild, and reading what is not stored. Not
here: what many views cost (`rounds`, `backlog`).
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import psycopg

from benchmarks.cpu import backend_us
from benchmarks.views.bench import Bench, Shop, append
from millrace import (
    bucket,
    carried,
    computed,
    count,
    field,
    latest,
    lookup,
    max_,
    read_model,
    rollup,
    row,
    sessions,
    stream_id,
    sum_,
    top,
)
from millrace.ops import ReadModel
from millrace.resources.consumption.collected import ROUND_CONFIGURATION
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.drain import Drain
from millrace.resources.event_store import EventStore
from millrace.resources.spark import spark_session

EVENTS = 1000
WARM_UP = 5


def _model(view: str, key: Mapping[str, Any], **columns: object) -> ReadModel:
    """Declare a model of orders and payments: what every side counts and adds up, and more columns."""
    same = {"lines": count(events=["order_line_added"]), "total": sum_("data.amount", type="decimal(18,2)")}
    members = {"__doc__": "One row per key.", **key, **same, **columns}
    return read_model(view=view, deciders=["order", "payment"], key=[*key])(
        type(view.title().replace("_", ""), (), members)
    )


STREAM: dict[str, Any] = {"id": stream_id()}
DAY = {"day": bucket("created_at", every="1 day", zone="Europe/Berlin")}
PLAIN = _model("plain", STREAM)
BY_CUSTOMER = _model("by_customer", {"customer_id": field("data.customer_id")})
LATEST = latest("data.product", 3)
TOP = top("data.product", 3, by="data.amount", by_type="decimal(18,2)")
SESSIONS = sessions("created_at", gap="30 min")
COMPUTED = computed("total / lines")
LOOKUP = lookup(PLAIN, on="id", column="lines")
SEEN = {"seen_at": max_("created_at")}
ROLLED_UP = _model("with_rollup", STREAM, **SEEN)
BY_HOUR = {
    "__doc__": "One row per number of lines and hour.",
    "lines": row("lines"),
    "hour": bucket("seen_at", every="1 hour"),
    "streams": count(),
    "worth": sum_("total", type="decimal(38,2)"),
}
GROUPS = rollup(of=ROLLED_UP, key=["lines", "hour"])(type("ByHour", (), BY_HOUR))
# the model with it, and the one without
KINDS: dict[str, tuple[ReadModel, ReadModel]] = {
    "bucket": (_model("with_bucket", STREAM | DAY), PLAIN),
    "field of two deciders": (
        _model("with_mapping", {"customer_id": field(dict.fromkeys(("order", "payment"), "data.customer_id"))}),
        BY_CUSTOMER,
    ),
    "carried": (_model("with_carried", {"customer_id": carried("data.customer_id")}), BY_CUSTOMER),
    "latest": (_model("with_latest", STREAM, newest=LATEST), PLAIN),
    "top": (_model("with_top", STREAM, largest=TOP), PLAIN),
    "sessions": (_model("with_sessions", STREAM, spans=SESSIONS), PLAIN),
    "computed": (_model("with_computed", STREAM, mean=COMPUTED), PLAIN),
    "lookup": (_model("with_lookup", STREAM, others=LOOKUP), PLAIN),
    "rollup": (replace(ROLLED_UP, rollups=(GROUPS,)), _model("without_rollup", STREAM, **SEEN)),
}
FIVE = _model("five", STREAM | DAY, newest=LATEST, largest=TOP, spans=SESSIONS, mean=COMPUTED)


def rounds(bench: Bench, number: int) -> dict[str, tuple[float, float, float]]:
    """Return by kind the CPU seconds of a round with it and without it, and their ratio: medians of so many rounds."""
    shop, dsn = Shop(), bench.store()
    append(dsn, shop.events(20 * EVENTS))
    # a model that others look up comes before these
    models = {model.view: model for pair in KINDS.values() for model in reversed(pair)}
    taken: list[dict[str, float]] = []
    with ExitStack() as stack:
        session = stack.enter_context(spark_session(ROUND_CONFIGURATION))
        drains = {
            view: stack.enter_context(Drain(dsn, [model], lambda: session, view)) for view, model in models.items()
        }
        for _ in range(WARM_UP + number):
            append(dsn, shop.events(EVENTS))
            taken.append({view: _cpu(bench, partial(one.run, budget_s=600, idle_s=0)) for view, one in drains.items()})
            # each is as often before the others as behind them
            drains = dict(reversed(drains.items()))
        for drain in drains.values():
            for member in drain.members:
                if member.away is not None:
                    raise RuntimeError(f"{member.declared.view}: {member.away}")
    return {kind: _beside(taken[WARM_UP:], *(model.view for model in pair)) for kind, pair in KINDS.items()}


def rebuilds(bench: Bench, events: int, number: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a rebuild with five kinds, of one that counts and adds up only, and their ratio."""
    dsn = bench.store()
    append(dsn, Shop().events(events))
    taken: list[dict[str, float]] = []
    with spark_session() as session, psycopg.connect(dsn, autocommit=True) as connection, ExitStack() as stack:
        partitions = [info.partition for info in EventStore(connection).partition_info()]
        consumers = {
            model.view: stack.enter_context(Consumer(dsn, model, lambda: session, model.view))
            for model in (PLAIN, FIVE)
        }
        # the first round is for warming up
        for _ in range(1 + number):
            taken.append({view: _cpu(bench, partial(one.rebuild, *partitions)) for view, one in consumers.items()})
    return _beside(taken[1:], FIVE.view, PLAIN.view)


def reads(bench: Bench, number: int) -> dict[str, tuple[float, float, float]]:
    """Return the microseconds on a CPU of Postgres for reading a row with a lookup, without, and their ratio."""
    dsn, (looking, plain) = bench.store(), KINDS["lookup"]
    append(dsn, Shop().events(20 * EVENTS))
    with spark_session() as session:
        for model in (plain, looking):
            with Consumer(dsn, model, lambda: session, "bench") as consumer:
                consumer.drain(budget_s=600, idle_s=0)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        keys = [key for (key,) in connection.execute("select id from read_models.plain order by random() limit 1000")]
        (rows,) = connection.execute("select count(*) from read_models.plain").fetchone() or (0,)

        def one(view: str) -> Callable[[], object]:
            query = f"select * from read_models.{view} where id = %s".encode()
            return lambda: [connection.execute(query, (key,), prepare=True).fetchone() for key in keys]

        def all_(view: str) -> Callable[[], object]:
            return lambda: connection.execute(f"select * from read_models.{view}".encode()).fetchall()

        ways = {"a row by its key": (one, len(keys)), f"one of all {rows:,} rows": (all_, rows)}
        return {
            what: _beside(
                [
                    {model.view: backend_us(connection, read(model.view), calls) for model in (plain, looking)}
                    for _ in range(number)
                ],
                looking.view,
                plain.view,
            )
            for what, (read, calls) in ways.items()
        }


def _cpu(bench: Bench, work: Callable[[], object]) -> float:
    before = bench.cpu()
    work()
    return bench.cpu().since(before).all


def _beside(taken: list[dict[str, float]], one: str, other: str) -> tuple[float, float, float]:
    return (
        median(round_[one] for round_ in taken),
        median(round_[other] for round_ in taken),
        median(round_[one] / round_[other] for round_ in taken),
    )
