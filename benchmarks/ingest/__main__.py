"""Measures the ingestion of events, and prints each line's ratio beside its target.

Two temporary servers run, one with the stores and one with the sources of change capture. The sides are measured in
turn (A B A B …), and a number is the median of the rounds.

    python -m benchmarks ingest [--only NAME …] [--rounds 3] [--small] [--postgres DIR]
"""

import argparse
import logging
from collections.abc import Callable

from rich.console import Console

from benchmarks.event_store.bench import Result, show
from benchmarks.ingest import captures, delays, imports, messages, sealed
from benchmarks.ingest.bench import IngestBench, ingest_bench
from benchmarks.servers import add_postgres_option

LINES: dict[str, Callable[[IngestBench], list[Result]]] = {
    "exactly-once": messages.exactly_once,
    "duplicates": messages.duplicates,
    "import": imports.rate,
    "capture": captures.rate,
    "backfill": captures.backfill,
    "sealed": sealed.rate,
    "transaction-size": captures.transaction_sizes,
    "delay": delays.delays,
}


def main() -> None:
    """Measure the requested lines and print the table."""
    parser = argparse.ArgumentParser(
        description="Exactly-once messages beside plain appends, a file's import, change capture beside pg_recvlogical.",
        epilog="All lines take about 10 minutes with 3 rounds, with --small less than one.",
    )
    parser.add_argument("--only", nargs="+", choices=LINES, metavar="NAME", help=f"of {', '.join(LINES)}")
    parser.add_argument("--rounds", type=int, help="of each measurement (3; with --small 1)")
    parser.add_argument(
        "--small", action="store_true", help="small counts, to try that it runs; the ratios mean nothing"
    )
    add_postgres_option(parser)
    arguments = parser.parse_args()
    rounds = arguments.rounds if arguments.rounds is not None else 1 if arguments.small else 3
    if rounds < 1:
        parser.error("--rounds must be at least 1")
    logging.disable(logging.WARNING)
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    results: list[Result] = []
    try:
        with ingest_bench(rounds=rounds, small=arguments.small, console=console, programs=arguments.postgres) as shared:
            for name in arguments.only or LINES:
                console.log(name)
                results += LINES[name](shared)
    finally:
        # also shows the lines measured before a Ctrl-C
        show(console, results, "Ingestion")


if __name__ == "__main__":
    main()
