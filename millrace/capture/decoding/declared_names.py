"""The name that a captured table is declared by, and when what it does under another one is its own nevertheless."""

from dataclasses import dataclass, replace

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.pgoutput import Lsn, Relation


@dataclass(frozen=True, slots=True)
class DeclaredName:
    """What is known of a table's name.

    Attributes:
        name: The declared name.
        since: What was done before, a backfill sees that has not begun.
        seen: When the source's log was there, the table had its declared name.
    """

    name: str
    since: Lsn = Lsn(0)  # noqa: RUF009 - it is a number
    seen: Lsn = Lsn(0)  # noqa: RUF009 - it is a number

    def owns(self, lsn: Lsn) -> bool:
        """Tell whether it is known that a table which had another name at `lsn` has its own again."""
        return self.since <= lsn < self.seen


def under_its_name(described: Relation, raw: bytes, table: CapturedTable) -> tuple[Relation, bytes]:
    """Return a table's description and its message with the declared name.

    The message, too: a faulty change is kept with it, and is decoded later by the name that it says.
    """
    columns = raw[5:].split(b"\0", 2)[2]
    message = raw[:5] + f"{table.schema}\0{table.table}\0".encode() + columns
    return replace(described, schema=table.schema, table=table.table), message
