"""The command `millrace simulate`.

Belongs here: its options, how its result and its errors look. Not here: what is simulated; that is
`millrace.examples.shop.simulator`.
"""

import logging
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from millrace.examples.shop.simulator import simulate
from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
from millrace.platform_defs.cli.signals import stop_on_signals
from millrace.resources.errors import MillraceError


def simulate_command(
    rate: Annotated[float, typer.Option(min=0, help="Events per second on average; 0 for as fast as it goes.")] = 20.0,
    events: Annotated[int | None, typer.Option(min=1, help="Stop after so many events; by default never.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same orders, under new ids.")] = None,
    dsn: DsnOption = None,
) -> None:
    """Append events of the example shop until stopped with Ctrl-C or SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    console, errors = Console(), Console(stderr=True)
    try:
        with stop_on_signals() as stop:
            report = simulate(chosen_dsn(dsn), rate=rate or None, events=events, seed=seed, stop=stop)
    except MillraceError as error:
        errors.print(Text(str(error), style="red"))
        raise typer.Exit(1) from error
    console.print(
        f"Appended {report.events:,} events of {report.orders:,} orders in {report.seconds:,.1f} s"
        f" ({report.conflicts:,} appends repeated after a conflict)."
    )
