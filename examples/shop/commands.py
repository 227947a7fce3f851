"""The shop's own commands: `millrace dev simulate` and `millrace dev simulate-crm`.

The command line finds `app` here because the shop is the package of declarations. `millrace --help` also runs the
imports at the top, so the commands import the modules that do the work.
"""

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from millrace.ops import DsnOption, chosen_dsn, stop_on_signals

app = typer.Typer()


@app.command("simulate")
def simulate_command(
    rate: Annotated[float, typer.Option(min=0, help="Events per second on average; 0 for as fast as it goes.")] = 20.0,
    events: Annotated[int | None, typer.Option(min=1, help="Stop after this many events; by default never.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same orders, under new ids.")] = None,
    dsn: DsnOption = None,
) -> None:
    """Append events of the example shop until stopped with Ctrl-C or SIGTERM."""
    from millrace.examples.shop.simulator import simulate

    _log()
    # a store may have no keys yet
    keys = Path(os.environ.get("MILLRACE_KEYS") or "no folder")
    with stop_on_signals() as stop:
        report = simulate(
            chosen_dsn(dsn),
            rate=rate or None,
            events=events,
            seed=seed,
            keys=keys if keys.is_dir() else None,
            stop=stop,
        )
    typer.echo(
        f"Appended {report.events:,} events of {report.orders:,} orders in {report.seconds:,.1f} s"
        f" ({report.conflicts:,} appends repeated after a conflict)."
    )


@app.command("simulate-crm")
def simulate_crm_command(
    rate: Annotated[float, typer.Option(min=0, help="Transactions per second; 0 for as fast as it goes.")] = 2.0,
    changes: Annotated[int | None, typer.Option(min=1, help="Stop after this many; by default never.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the course repeatable on an empty table.")] = None,
) -> None:
    """Change the customers of the example shop in their own database, until stopped with Ctrl-C or SIGTERM."""
    from millrace.examples.shop.customers import crm_dsn
    from millrace.examples.shop.customers_simulator import simulate_crm

    _log()
    with stop_on_signals() as stop:
        transactions = simulate_crm(crm_dsn(), rate=rate or None, changes=changes, seed=seed, stop=stop)
    typer.echo(f"Changed customers in {transactions:,} transactions.")


def _log() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
