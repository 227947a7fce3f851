"""How a command shows rows.

Belongs here: one way to print a table. Not here: what is in it; each command says that.
"""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from millrace.resources.showing import printable


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Make a table; cells are shown as they are, None as nothing."""
    shown = Table(*columns, title=Text(title))
    for row in rows:
        # replaced here, too: a column is as wide as what is shown
        shown.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    return shown
