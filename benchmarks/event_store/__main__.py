"""Measures the event store and prints each line's ratio beside its target.

Everything runs on one temporary server, the two sides in turn (A B A B …); a number is the median of the rounds. The
baseline is the schema of fstore-sql in a database of its own: its repository has it as `schema.sql`. A text that was
saved from its page is fine too: what comes before the first line `-- ####` is left out.

    python -m benchmarks.event_store --other-schema schema.sql [--only NAME …] [--rounds 5] [--small] [--postgres DIR]
        [--minutes 2]

With `--postgres /usr/lib/postgresql/15/bin` the server is Debian's, with the settings that it comes with, JIT included.
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.event_store import (
    backlog,
    checkpoints,
    consumption,
    many_clients,
    mixed,
    ranges,
    sequencing,
    single_appends,
    storage,
    subscription,
)
from benchmarks.event_store.bench import Bench, Result, bench, show
from benchmarks.event_store.calls import appends, batches, growth, idle, marks, readers
from benchmarks.event_store.held import load as held_load
from benchmarks.event_store.held import rounds as held
from benchmarks.event_store.services import commands, consumers, waking
from benchmarks.servers import add_postgres_option

LINES: dict[str, Callable[[Bench], list[Result]]] = {
    "clients-32": single_appends.clients_32,
    "many-clients": many_clients.behind_a_pool,
    "hot-stream": many_clients.on_one_stream,
    "views-100": single_appends.views_100,
    "isolation": single_appends.isolation,
    "single-append": appends.single,
    "long-stream": single_appends.long_stream,
    "commands": commands.with_snapshots,
    "batches": batches.against_copy,
    "batch-sizes": batches.sizes,
    "sequencing": sequencing.rate,
    "rows": consumption.row_by_row,
    "bulk": consumption.in_bulk,
    "consumers": consumers.rate,
    "pushes": consumers.pushes,
    "idle": idle.calls,
    "marks": marks.cost,
    "read-client": readers.events,
    "empty-polls": consumption.empty_polls,
    "backlog-waiting": backlog.waiting,
    "backlog-parked": backlog.parked,
    "parallel-claims": mixed.claims,
    "mixed-load": mixed.load,
    "subscribe": subscription.delays,
    "wake-ups": waking.delays,
    "idle-sequencer": waking.idling,
    "idle-consumers": waking.idle_consumers,
    "range-read": ranges.reads,
    "checkpoint-save": checkpoints.save,
    "checkpoint-load": checkpoints.load,
    "lag": checkpoints.behind,
    "held-snapshot": held.snapshot,
    "held-load": held_load.snapshot,
    "held-load-prepared": held_load.prepared,
    "held-load-open": held_load.open_transaction,
    "held-load-standby": held_load.standby,
    "storage": storage.per_event,
    "growth": growth.calls,
}


def main() -> None:
    """Measure the lines that were asked for and print the table."""
    parser = argparse.ArgumentParser(description="The event store against fstore-sql's schema and a bare COPY.")
    parser.add_argument("--other-schema", type=Path, required=True, help="the SQL file of fstore-sql's schema")
    parser.add_argument("--only", nargs="+", choices=LINES, metavar="NAME", help=f"of {', '.join(LINES)}")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement (5)")
    parser.add_argument(
        "--small", action="store_true", help="small counts, to try that it runs; the ratios mean nothing"
    )
    add_postgres_option(parser)
    parser.add_argument("--events", type=int, default=1_000_000, help="of the large store of `growth` (1000000)")
    parser.add_argument(
        "--minutes", type=float, default=2, help="of each line held-load* (2; 30 to see that nothing grows)"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    logging.disable(logging.WARNING)
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    results: list[Result] = []
    with bench(
        arguments.other_schema,
        rounds=arguments.rounds,
        small=arguments.small,
        console=console,
        programs=arguments.postgres,
        events=arguments.events,
        minutes=arguments.minutes,
    ) as shared:
        for name in arguments.only or LINES:
            console.log(name)
            results += LINES[name](shared)
    show(console, results)


if __name__ == "__main__":
    main()
