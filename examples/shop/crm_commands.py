"""The command `millrace simulate-crm`.

Belongs here: its options. Not here: what is simulated; that is `millrace.examples.shop.customers_simulator`.
"""

import logging
from typing import Annotated

import typer
from rich.console import Console

from millrace.examples.shop.customers import crm_dsn
from millrace.examples.shop.customers_simulator import simulate_crm
from millrace.platform_defs.cli.signals import stop_on_signals


def simulate_crm_command(
    rate: Annotated[float, typer.Option(min=0, help="Transactions per second; 0 for as fast as it goes.")] = 2.0,
    changes: Annotated[int | None, typer.Option(min=1, help="Stop after so many; by default never.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the course repeatable on an empty table.")] = None,
) -> None:
    """Change the customers of the example shop in their own database, until stopped with Ctrl-C or SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with stop_on_signals() as stop:
        done = simulate_crm(crm_dsn(), rate=rate or None, changes=changes, seed=seed, stop=stop)
    Console().print(f"Changed customers in {done:,} transactions.")
