"""Measures rebuilding a read model, and prints each line's ratio beside its target.

Both sides run in turn (A B A B …) on one temporary server and in one local Spark session; a number is the median of the
rounds. Beside it stands the most memory that Spark's driver, its Python workers and Postgres took meanwhile.

    python -m benchmarks rebuild [--only NAME …] [--events 1000000] [--rounds 3] [--small] [--postgres DIR]
"""

import argparse
import logging
from collections.abc import Callable

from rich.console import Console

from benchmarks.rebuild import cluster, rebuilds
from benchmarks.rebuild.bench import Bench, Result, bench, show
from benchmarks.servers import add_postgres_option

LINES: dict[str, Callable[[Bench], list[Result]]] = {
    "archive-cpu": rebuilds.cpu_from_archive,
    "cluster": cluster.rebuilds,
}
FIRST_SIZE = 100_000


def main() -> None:
    """Measure the requested lines and print the table."""
    parser = argparse.ArgumentParser(
        description="Rebuilding a read model, from Postgres, from the archive, on a cluster."
    )
    parser.add_argument("--only", nargs="+", choices=LINES, metavar="NAME", help=f"of {', '.join(LINES)}")
    parser.add_argument("--events", type=int, default=1_000_000, help="of the largest log (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement (3)")
    parser.add_argument(
        "--small", action="store_true", help="small counts, to try that it runs; the ratios mean nothing"
    )
    add_postgres_option(parser)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if arguments.events < FIRST_SIZE:
        parser.error(f"--events must be at least {FIRST_SIZE}")
    logging.disable(logging.WARNING)
    console = Console()
    if not console.is_terminal:
        console = Console(width=190)
    results: list[Result] = []
    try:
        with bench(
            sizes=[500, 5000] if arguments.small else sizes(arguments.events),
            rounds=arguments.rounds,
            console=console,
            programs=arguments.postgres,
        ) as shared:
            for name in arguments.only or LINES:
                console.log(name)
                results += LINES[name](shared)
    finally:
        # also shows the lines measured before a Ctrl-C
        show(console, results)


def sizes(largest: int) -> list[int]:
    """Return the sizes of the logs to measure: each ten times the one before, up to the largest."""
    found = [FIRST_SIZE]
    while found[-1] * 10 < largest:
        found.append(found[-1] * 10)
    return [*found, largest] if found[-1] < largest else found


if __name__ == "__main__":
    main()
