"""What sealing costs: captured rows with two personal columns, of known and of new people, beside plain ones."""

import os
import tempfile
from dataclasses import replace
from functools import partial

import psycopg

from benchmarks.event_store.bench import Result
from benchmarks.ingest.bench import Costs, IngestBench
from benchmarks.ingest.sources import TABLE, Pipeline, new_source
from millrace.event_store.key_rotation import KeyStore
from millrace.personal.folder import KeyFolder, begun_folder

TRANSACTION = 100
INSERT = (
    "insert into items select n, 'customer-' || n %% 1000, n / 100.0, false, 'made by ''sealed''', clock_timestamp()"
    " from generate_series(%s::bigint, %s) n"
)
# the column of the person of both personal columns, and how many times slower than a plain one a row may be
SIDES = {"known people": ("customer_id", 1.3), "a new person a row": ("id", 2)}


def rate(bench: IngestBench) -> list[Result]:
    """Measure the same inserted rows, captured plain and sealed."""
    number = bench.size(20_000, 1000)
    with tempfile.TemporaryDirectory(prefix="bench-keys-") as folder:
        os.environ["MILLRACE_KEYS"] = folder
        keys, source = begun_folder(folder), new_source(bench)
        pipelines = [pipeline(bench, source, keys, of) for of in (None, *(of for of, _ in SIDES.values()))]
        costs = [Costs(bench, number) for _ in pipelines]
        rows = 0

        def drained(side: int) -> float:
            nonlocal rows
            if side == 0:
                insert(source, rows, number)
                rows += number
            return number / pipelines[side].drain(number, costs[side].of)

        base, *rates = bench.in_turn(*(partial(drained, side) for side in range(len(pipelines))))
    return [
        *(
            Result(f"captured rows, {what}, against plain", found, base, "rows/s", found / base, 1 / times)
            for (what, (_, times)), found in zip(SIDES.items(), rates, strict=True)
        ),
        *(
            line
            for what, cost in zip(("plain", *SIDES), costs, strict=True)
            for line in cost.results(f"captured rows, {what}", "us/row")
        ),
    ]


def pipeline(bench: IngestBench, source: str, keys: KeyFolder, of: str | None) -> Pipeline:
    """Make a store that captures the source, with two columns sealed for the person that a column names."""
    store = bench.ours()
    with store.connect() as connection:
        KeyStore(connection).begin_key_epoch(keys.epoch, keys.fingerprint)
    made = Pipeline(source, store, replace(TABLE, personal={} if of is None else {"note": of, "total": of}))
    made.set_up()
    return made


def insert(source: str, after: int, number: int) -> None:
    """Insert rows in small transactions; then the log is on disk."""
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        for first in range(after + 1, after + number, TRANSACTION):
            connection.execute(INSERT, (first, first + TRANSACTION - 1))
        connection.execute("checkpoint")
