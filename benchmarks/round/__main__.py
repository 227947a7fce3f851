"""Measures the cost of many views on one machine, and prints each line beside its target.

A temporary Postgres and a Spark Connect server run as in `millrace up`. Seconds are CPU time of all processes: the
drain, Spark's server, its Python workers, Postgres. Two ways are measured in turn, on stores with the same events.

    python -m benchmarks round [--only NAME …] [--views 1 8 40] [--rounds 20] [--postgres DIR]
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.round import backlog, latency, rounds
from benchmarks.round.bench import Bench, Cpu, bench
from millrace.postgres.embedded import PROGRAMS

# targets by views: seconds of CPU for a round of 200 events; median and 99 % from append to row
ROUND_TARGETS = {1: 0.4, 8: 0.6, 40: 1.0}
LATENCY_TARGETS = {8: (0.7, 2.0), 40: (1.5, None)}
# up to this many views are also measured with a drain each; more would take minutes
MOST_OWN = 8
APPENDS = 100
# CPU of a backlog of ten views, as a multiple of the drain of one view
BACKLOG_TARGET = 3.5
BACKLOGS = 2

Lines = list[tuple[str, str, str, str]]


@dataclass(frozen=True)
class Sizes:
    """The requested measurements."""

    views: Sequence[int]
    rounds: int


def round_lines(servers: Bench, sizes: Sizes, report: Callable[[str], None]) -> Lines:
    """Measure a round of new events: rounds for all views against a drain for each."""
    lines: Lines = []
    for views in sizes.views:
        report(f"rounds of {views} views")
        costs = {
            way: rounds.middle(found)
            for way, found in rounds.of_views(servers, views, sizes.rounds, own=views <= MOST_OWN).items()
        }
        together, own = costs["together"], costs.get("own")
        target = ROUND_TARGETS.get(views)
        lines.append(
            (
                f"a round of {rounds.EVENTS} events, {views} views together",
                f"{together.all:.2f} CPU s {_parts(together)}",
                f"≤ {target}" if target else "",
                "" if own is None else f"{own.all:.2f} by a drain each: {own.all / together.all:.1f} x",
            )
        )
    return lines


def latency_lines(servers: Bench, sizes: Sizes, report: Callable[[str], None]) -> Lines:
    """Measure the latency from append to row, while all views trickle."""
    lines: Lines = []
    for views in sizes.views:
        report(f"latency of {views} views")
        found = latency.of_views(servers, views, APPENDS)
        median, most = LATENCY_TARGETS.get(views, (None, None))
        lines.append(
            (
                f"append → row, {views} views trickle",
                f"median {found.at(0.5):.2f} s, 99 % {found.at(0.99):.2f} s",
                (f"≤ {median} s" if median else "") + (f", ≤ {most} s" if most else ""),
                f"{found.cores:.2f} cores {_parts(found.cpu)}",
            )
        )
    return lines


def backlog_lines(servers: Bench, _: Sizes, report: Callable[[str], None]) -> Lines:
    """Measure a backlog of ten views, against a drain for each, and against one of these drains."""
    report(f"a backlog of {backlog.VIEWS} views")
    costs = {way: rounds.middle(found) for way, found in backlog.of_views(servers, BACKLOGS).items()}
    together, own, one = costs["together"], costs["own"], costs["one"]
    return [
        (
            f"{backlog.VIEWS} views, {backlog.EVENTS:,} events before each",
            f"{together.all:.1f} CPU s {_parts(together)}: {together.all / one.all:.1f} x a drain of one view",
            f"≤ {BACKLOG_TARGET} x",
            f"{own.all:.1f} by a drain each: {own.all / together.all:.1f} x",
        )
    ]


LINES = {
    "rounds": round_lines,
    "latency": latency_lines,
    "backlog": backlog_lines,
}


def main() -> None:
    """Measure the requested lines and print the table."""
    parser = argparse.ArgumentParser(description="What many views cost on one machine.")
    parser.add_argument("--only", nargs="+", choices=LINES, metavar="NAME", help=f"of {', '.join(LINES)}")
    parser.add_argument("--views", nargs="+", type=int, default=[1, 8, 40], help="how many views (1 8 40)")
    parser.add_argument("--rounds", type=int, default=20, help="of each measurement (20)")
    parser.add_argument("--postgres", type=Path, default=PROGRAMS, help="the folder of another server's programs")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or min(arguments.views) < 1:
        parser.error("--rounds and --views must be at least 1")
    logging.disable(logging.WARNING)
    sizes = Sizes(arguments.views, arguments.rounds)
    console = Console()
    if not console.is_terminal:
        console = Console(width=190)
    lines: Lines = []
    try:
        with bench(arguments.postgres) as servers:
            for name in arguments.only or LINES:
                lines += LINES[name](servers, sizes, console.log)
    finally:
        # also shows the lines measured before a Ctrl-C
        table = Table("line", "measured", "target", "beside", title="Many views on one machine")
        for line in lines:
            table.add_row(*line)
        console.print(table)


def _parts(cpu: Cpu) -> str:
    return f"(driver {cpu.driver:.2f}, Spark {cpu.spark:.2f}, workers {cpu.workers:.2f}, Postgres {cpu.postgres:.2f})"


if __name__ == "__main__":
    main()
