"""The options and the run of a program that measures the event store (`append`, `consumers`)."""

import argparse
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.event_store.bench import Bench, Result, bench, show
from benchmarks.servers import add_postgres_option


def run(parser: argparse.ArgumentParser, lines: Mapping[str, Callable[[Bench], list[Result]]]) -> None:
    """Measure the requested lines and print the table."""
    parser.add_argument("--other-schema", type=Path, required=True, help="the SQL file of fstore-sql's schema")
    parser.add_argument("--only", nargs="+", choices=lines, metavar="NAME", help=f"of {', '.join(lines)}")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement (5)")
    parser.add_argument(
        "--small", action="store_true", help="small counts, to try that it runs; the ratios mean nothing"
    )
    add_postgres_option(parser)
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
        events=vars(arguments).get("events", 0),
    ) as shared:
        for name in arguments.only or lines:
            console.log(name)
            results += lines[name](shared)
    show(console, results)
