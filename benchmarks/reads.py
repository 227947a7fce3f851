"""Measures the cost of reading a read model against a plain table with the same rows, types and primary key.

Both sides are vacuumed and analyzed, have the same indexes, and are read in turn on one connection. A ratio is the
median of the rounds' ratios of Postgres' CPU, parallel workers included; beside it are this process's CPU and time on
the clock. Rows by their keys are read at random, the same ones on both sides, planned anew (`prepare=False`) or
prepared. Beside a row with a lookup are two reads of plain tables: the row itself, and the one that it looks up.

    python -m benchmarks reads [--rows 1000000] [--reads 1000] [--rounds 9] [--postgres /usr/lib/postgresql/15/bin]
"""

import argparse
import logging
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import psycopg
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.cpu import on_cpu
from benchmarks.servers import add_postgres_option, started
from millrace import count, field, first, last, lookup, read_model, stream_id, sum_
from millrace.event_store.platform import PlatformStore
from millrace.ops import ReadModel, migrate
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.read_models.stored.merge import (
    StagedRows,
    analyze_staged,
    forget_batch,
    merge_rows,
    next_batch,
    replace_partition,
)
from millrace.read_models.stored.tables import state_schema
from millrace.read_models.stored.versions import ensure_version

Rows = dict[str, Sequence[Any]]

KEYS_PER_MERGE = 20_000
ORDERS_PER_CUSTOMER = 10
# draws of a log partition for each customer: on average five different ones of 16
DRAWS = 6
STATUSES = ("order_placed", "order_confirmed", "order_shipped", "order_cancelled")
BEGAN = datetime(2025, 1, 1, tzinfo=UTC)
# each with the most that its ratio should be, and its reads per turn
SCANS = {
    "orders: count and sum of all rows": ("select count(*), sum(total) from {}.orders", 1.2, 3),
    "totals: count and sum of all rows": ("select count(*), sum(total) from {}.totals", 1.2, 3),
    "totals: the ten largest, with a declared index": (
        "select * from {}.totals order by total desc limit 10",
        1.5,
        1000,
    ),
}
# the most that the ratios should be, and the most tables and views of a version
BY_KEY, WITH_LOOKUP, RELATIONS = 1.3, 2.0, 4
# target for a million rows in sixteen log partitions
REBUILD_S = 0.8
MARKS = {True: "[green]reached[/green]", False: "[red]missed[/red]"}
COUNT_RELATIONS = """
select count(*) filter (where relkind in ('r', 'p', 'v')), count(*) filter (where relkind in ('i', 'I'))
from pg_class
where relnamespace = 'read_models'::regnamespace
"""


def _model(name: str, meaning: str, indexes: Sequence[str] = (), **columns: object) -> ReadModel:
    """Declare a model whose key is its first column."""
    members = {"__doc__": meaning, **columns}
    declare = read_model(view=name.lower(), deciders=["order"], key=[*columns][:1], indexes=indexes)
    return declare(type(name, (), members))


TOTAL = sum_("data.amount", type="decimal(18,2)")
PLACED = first("created_at")
ORDERS = _model("Orders", "One order.", id=stream_id(), status=last("event"), total=TOTAL, placed_at=PLACED)
CUSTOMER = field("data.customer")
TOTALS = _model("Totals", "A customer's orders.", ["total"], customer=CUSTOMER, orders=count(), total=TOTAL)
LOOKUP = lookup(ORDERS, on="order_id", column="status")
SHIPMENTS = _model("Shipments", "One shipment.", id=stream_id(), order_id=last("data.order_id"), status=LOOKUP)


@dataclass(frozen=True)
class Line:
    """A read in the schema of either side: its number of reads, and the most that their ratio should be."""

    what: str
    read: Callable[[str], object]
    reads: int
    goal: float


class Filled:
    """The models and the plain tables, with the same rows in each run."""

    def __init__(self, connection: psycopg.Connection, rows: int) -> None:
        self._connection = connection
        self._dice = random.Random(1)
        self._partitions = [info.partition for info in PlatformStore(connection).partition_info()]
        self._rows = rows
        connection.execute("create schema plain")
        self.keys = {ORDERS.name: rows, TOTALS.name: max(1, rows // ORDERS_PER_CUSTOMER), SHIPMENTS.name: rows}
        # number of tables and views, and of indexes
        self.relations = {
            model.name: self._fill(model, made)
            for model, made in ((ORDERS, self._orders), (TOTALS, self._totals), (SHIPMENTS, self._shipments))
        }
        connection.execute("vacuum (analyze)")
        connection.execute("checkpoint")

    def _fill(self, model: ReadModel, made: Callable[[range], Rows]) -> tuple[int, int]:
        before, keys = self._relations(), range(self.keys[model.name])
        ensure_version(self._connection, model)
        for first_key in keys[::KEYS_PER_MERGE]:
            # merge all parts of a key at once: then neither side has replaced rows
            rows = pa.table(made(keys[first_key : first_key + KEYS_PER_MERGE]))
            with self._connection.transaction():
                merge_rows(self._connection, model, rows)
        after = self._relations()
        self._connection.execute("vacuum (analyze)")
        columns = ", ".join(name for name in model.public_columns() if name not in model.lookups)
        shown, plain = f"select {columns} from read_models.{model.name}", f"plain.{model.name}"
        self._connection.execute(f"create table {plain} as {shown} with no data".encode())
        self._connection.execute(f"alter table {plain} add primary key ({', '.join(model.keys)})".encode())
        for index in model.indexes:
            self._connection.execute(f"create index on {plain} ({', '.join(index.columns)})".encode())
        copied = self._connection.execute(f"insert into {plain} {shown}".encode()).rowcount
        if copied != len(keys):
            raise RuntimeError(f"read_models.{model.name} has {copied:,} rows instead of {len(keys):,}.")
        return after[0] - before[0], after[1] - before[1]

    def _relations(self) -> tuple[int, int]:
        ((tables, indexes),) = self._connection.execute(COUNT_RELATIONS).fetchall()
        return tables, indexes

    def _orders(self, numbers: range) -> Rows:
        return {
            **self._streams("order", numbers),
            "status": [self._dice.choice(STATUSES) for _ in numbers],
            "status_offset": numbers,
            "total": self._amounts(len(numbers)),
            "placed_at": [BEGAN + timedelta(seconds=number) for number in numbers],
            "placed_at_offset": numbers,
        }

    def _totals(self, numbers: range) -> Rows:
        drawn = [(number, {self._dice.choice(self._partitions) for _ in range(DRAWS)}) for number in numbers]
        parts = [(partition, f"customer-{number}") for number, partitions in drawn for partition in partitions]
        partitions, customers = zip(*parts, strict=True)
        orders = [self._dice.randint(1, 4) for _ in parts]
        return {"partition": partitions, "customer": customers, "orders": orders, "total": self._amounts(len(parts))}

    def _shipments(self, numbers: range) -> Rows:
        orders = [f"order-{self._dice.randrange(self._rows)}" for _ in numbers]
        return {**self._streams("shipment", numbers), "order_id": orders, "order_id_offset": numbers}

    def _streams(self, decider: str, numbers: range) -> Rows:
        ids = [f"{decider}-{number}" for number in numbers]
        return {"partition": [self._dice.choice(self._partitions) for _ in numbers], "id": ids}

    def _amounts(self, number: int) -> list[Decimal]:
        return [Decimal(self._dice.randrange(10**9)).scaleb(-2) for _ in range(number)]


def lines(connection: psycopg.Connection, keys: Mapping[str, int], reads: int) -> Iterator[Line]:
    """Yield the lines; a line by key reads `reads` rows, of the `keys` of each model."""
    dice = random.Random(2)

    def drawn(model: ReadModel, stem: str) -> list[str]:
        return [f"{stem}-{dice.randrange(keys[model.name])}" for _ in range(reads)]

    def row(relation: str, key: str, value: str, *, prepared: bool) -> tuple[Any, ...]:
        query = f"select * from {relation} where {key} = %s".encode()
        return connection.execute(query, (value,), prepare=prepared).fetchone() or ()

    def rows(schema: str, *, model: ReadModel, values: Sequence[str], prepared: bool) -> list[tuple[Any, ...]]:
        (key,) = model.keys
        served = [row(f"{schema}.{model.name}", key, value, prepared=prepared) for value in values]
        if schema == "plain" and model.lookups:
            return [(*one, row("plain.orders", "id", one[1], prepared=prepared)[1]) for one in served]
        return served

    def scans(schema: str, *, query: str, times: int) -> list[object]:
        return [connection.execute(query.format(schema).encode()).fetchall() for _ in range(times)]

    by_key = {
        "orders: a row by its key, of a stream": (ORDERS, "order", BY_KEY),
        "totals: a row by its key, of many streams": (TOTALS, "customer", BY_KEY),
        "shipments: a row with a lookup by its key": (SHIPMENTS, "shipment", WITH_LOOKUP),
    }
    for what, (model, stem, goal) in by_key.items():
        values = drawn(model, stem)
        for way, prepared in {"planned anew": False, "prepared": True}.items():
            read = partial(rows, model=model, values=values, prepared=prepared)
            yield Line(f"{what}, {way}", read, reads, goal)
    for what, (query, goal, times) in SCANS.items():
        yield Line(what, partial(scans, query=query, times=times), times, goal)


def measured(server: EmbeddedPostgres, connection: psycopg.Connection, line: Line, rounds: int) -> tuple[str, ...]:
    """Read both sides in turn, after one round that is not measured; return the line of the table.

    Raises:
        RuntimeError: The sides return different rows.
    """
    postgres, backend = psutil.Process(server.pid()), connection.info.backend_pid

    def spent() -> tuple[float, float, float]:
        # a parallel worker ends before its query
        ended = postgres.cpu_times()
        seconds = on_cpu(backend) / 1e9 + ended.children_user + ended.children_system
        return seconds, time.process_time(), time.perf_counter()

    def cost(schema: str) -> list[float]:
        before = spent()
        line.read(schema)
        return [(now - then) / line.reads * 1e6 for now, then in zip(spent(), before, strict=True)]

    if line.read("read_models") != line.read("plain"):
        raise RuntimeError(f"{line.what}: the two sides give different rows.")
    costs = [(cost("read_models"), cost("plain")) for _ in range(rounds)]
    # each: CPU of Postgres, CPU of this process, time on the clock
    model, plain = ([f"{median(one):,.1f}" for one in zip(*side, strict=True)] for side in zip(*costs, strict=True))
    ratio, _, clock = (median(ours[n] / theirs[n] for ours, theirs in costs) for n in range(3))
    beside = f"client {model[1]} and {plain[1]} us, clock {model[2]} and {plain[2]} us: {clock:.2f} x"
    ratios = f"{ratio:.2f} x", f"≤ {line.goal} x", MARKS[ratio <= line.goal]
    return line.what, f"{model[0]} us", f"{plain[0]} us", *ratios, beside


def rebuilt(connection: psycopg.Connection, rounds: int) -> tuple[str, ...]:
    """Rebuild a log partition of `orders` of which a tenth differs; return the line of the table."""
    partition, durations, written = 3, [], set()
    columns = ", ".join(state_schema(ORDERS))
    for _ in range(rounds):
        batch = next_batch(connection)
        staged = connection.execute(
            f"insert into read_models.{ORDERS.staging_table} ({columns}, batch, attempt)"
            f" select {columns}, %s, 1 from read_models.{ORDERS.state_table} where partition = %s".encode(),
            (batch, partition),
        ).rowcount
        connection.execute(
            f"update read_models.{ORDERS.staging_table} set total = total + 1 where right(id, 1) = '7'".encode()
        )
        analyze_staged(connection, ORDERS)
        began = time.perf_counter()
        with connection.transaction():
            replaced = replace_partition(connection, ORDERS, partition, batch, [StagedRows(1, staged)])
        durations.append(time.perf_counter() - began)
        written.add(replaced.written)
        forget_batch(connection, ORDERS, batch)
    seconds = median(durations)
    what = f"orders: a log partition of {staged:,} rows rebuilt, of which {max(written):,} differ"
    return (
        what,
        f"{seconds:.2f} s",
        "",
        "",
        f"≤ {REBUILD_S} s",
        MARKS[seconds <= REBUILD_S],
        "on the clock of the database",
    )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Reading a read model beside a plain table with the same rows.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a model by stream (1,000,000)")
    parser.add_argument("--reads", type=int, default=1000, help="by key, of each side and round (1000)")
    parser.add_argument("--rounds", type=int, default=9, help="of each measurement, three at least (9)")
    add_postgres_option(parser)
    arguments = parser.parse_args()
    if arguments.rounds < 3 or arguments.rows < 1 or arguments.reads < 1:
        parser.error("--rounds must be at least 3, --rows and --reads at least 1")
    logging.disable(logging.WARNING)
    console = Console()
    if not console.is_terminal:
        console = Console(width=190)
    title = f"Read models of {arguments.rows:,} rows beside plain tables"
    table = Table("line", "model", "plain table", "ratio", "goal", "", "beside", title=title)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as directory,
            started(Path(directory), arguments.postgres, console) as server,
        ):
            server.create_database("reads")
            migrate(dsn := server.dsn("reads"))
            with psycopg.connect(dsn, autocommit=True) as connection:
                console.log("filling")
                filled = Filled(connection, arguments.rows)
                for name, (tables, indexes) in filled.relations.items():
                    what, goal = f"{name}: tables and views of a version", f"≤ {RELATIONS}"
                    table.add_row(what, f"{tables}", "1", "", goal, MARKS[tables <= RELATIONS], f"indexes: {indexes}")
                for line in lines(connection, filled.keys, arguments.reads):
                    console.log(line.what)
                    table.add_row(*measured(server, connection, line, arguments.rounds))
                table.add_row(*rebuilt(connection, arguments.rounds))
    finally:
        # also shows the lines measured before a Ctrl-C
        load = f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
        table.add_row("in the end", "", "", "", "", "", load)
        console.print(table)


if __name__ == "__main__":
    main()
