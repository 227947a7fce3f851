"""The commands that only look: `millrace show …`, a file each.

Belongs here: how they come together. Not here: `millrace status`, and what captures lack (`capture`).
"""

import typer

from millrace.platform_defs.cli.show import audit, events, history, incidents, lineage, partitions

app = typer.Typer(no_args_is_help=True)
for command in (events, history, lineage, partitions, audit, incidents):
    app.add_typer(command.app)
