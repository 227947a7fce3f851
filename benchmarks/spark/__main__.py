"""Measures Spark on the event store and prints each line's ratio beside its target.

Everything runs on one temporary server and in one local Spark session, the two sides in turn (A B A B …); a number is
the median of the rounds. The sides are Spark's JDBC source, with Debian's driver (`apt-get install
libpostgresql-jdbc-java`) or another one, and the per-event loop of fstore-sql's schema, whose repository has it as
`schema.sql`. Beside each number stands the most memory that Spark's driver, its Python workers and Postgres took
meanwhile.

    python -m benchmarks.spark --other-schema schema.sql [--only NAME …] [--events 1000000] [--rounds 3] [--small]
        [--postgres DIR]
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.servers import add_postgres_option
from benchmarks.spark import cluster, drains, failing, past, reads, rebuilds
from benchmarks.spark.bench import Bench, Result, bench, show

LINES: dict[str, Callable[[Bench], list[Result]]] = {
    "read": reads.whole_log,
    "extract": reads.two_fields,
    "small-batch": drains.small_batch,
    "drain": drains.backlog,
    "ten-views": drains.ten_views,
    "failing-streams": failing.failing_streams,
    "rebuild": rebuilds.from_postgres,
    "archive-rebuild": rebuilds.from_archive,
    "archive-cpu": rebuilds.cpu_from_archive,
    "past": past.of_a_model,
    "cluster": cluster.rebuilds,
}
JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
FIRST_SIZE = 100_000


def main() -> None:
    """Measure the lines that were asked for and print the table."""
    parser = argparse.ArgumentParser(description="Spark on the event store, beside JDBC and fstore-sql's schema.")
    parser.add_argument("--other-schema", type=Path, required=True, help="the SQL file of fstore-sql's schema")
    parser.add_argument("--jdbc-driver", type=Path, default=JDBC_DRIVER, help=f"Postgres' JAR ({JDBC_DRIVER})")
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
    if not arguments.jdbc_driver.exists():
        parser.error(f"{arguments.jdbc_driver} is not there: apt-get install libpostgresql-jdbc-java, or --jdbc-driver")
    logging.disable(logging.WARNING)
    console = Console()
    if not console.is_terminal:
        console = Console(width=190)
    results: list[Result] = []
    try:
        with bench(
            arguments.other_schema,
            arguments.jdbc_driver,
            sizes=[500, 5000] if arguments.small else sizes(arguments.events),
            rounds=arguments.rounds,
            console=console,
            programs=arguments.postgres,
        ) as shared:
            for name in arguments.only or LINES:
                console.log(name)
                results += LINES[name](shared)
    finally:
        # also what was measured before a Ctrl-C
        show(console, results)


def sizes(largest: int) -> list[int]:
    """Return the sizes of the logs to measure: each ten times the one before, up to the largest."""
    found = [FIRST_SIZE]
    while found[-1] * 10 < largest:
        found.append(found[-1] * 10)
    return [*found, largest] if found[-1] < largest else found


if __name__ == "__main__":
    main()
