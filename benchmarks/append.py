"""Measures appending to the event store, and prints each line's ratio beside its target.

Both sides run on one temporary server in turn (A B A B …); a number is the median of the rounds. The baseline is the
schema of fstore-sql: the `schema.sql` of its repository, or a text saved from its page, read from `-- ####` on.

    python -m benchmarks append --other-schema schema.sql [--only NAME …] [--rounds 5] [--small] [--postgres DIR]
        [--events 1000000]

With `--postgres /usr/lib/postgresql/15/bin` the server is Debian's, with its default settings, JIT included.
"""

import argparse
from collections.abc import Callable

from benchmarks.event_store import appends, batches, growth, many_clients, reading, scheduled, single_appends
from benchmarks.event_store.bench import Bench, Result
from benchmarks.event_store.program import run

LINES: dict[str, Callable[[Bench], list[Result]]] = {
    "single-append": appends.single,
    "gathered": appends.gathered,
    "reads": reading.reads,
    "handled": reading.handled,
    "clients-32": single_appends.clients_32,
    "views-100": single_appends.views_100,
    "many-clients": many_clients.behind_a_pool,
    "hot-stream": many_clients.on_one_stream,
    "batches": batches.against_copy,
    "growth": growth.calls,
    "scheduled": scheduled.costs,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Appending, beside fstore-sql's schema, a bare INSERT and a bare COPY."
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="of `growth` and `scheduled` (1000000)")
    run(parser, LINES)
