"""The declared name of a captured table, and when changes under another name still belong to it."""

from dataclasses import dataclass, replace

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.pgoutput import Lsn, Relation


@dataclass(frozen=True, slots=True)
class DeclaredName:
    """The name of a table, and when it was found.

    Attributes:
        name: The declared name.
        since: A backfill that has not begun sees every change before this position.
        found_at: At this position of the source's log, the table had its declared name.
    """

    name: str
    since: Lsn = Lsn(0)  # noqa: RUF009 - it is a number
    found_at: Lsn = Lsn(0)  # noqa: RUF009 - it is a number

    def owns(self, lsn: Lsn) -> bool:
        """Return whether a table with another name at `lsn` is known to have its own name again."""
        return self.since <= lsn < self.found_at


def under_its_name(described: Relation, raw: bytes, table: CapturedTable) -> tuple[Relation, bytes]:
    """Return a table's description and its message with the declared name.

    The message, too: a faulty change is stored with it, and is decoded later by the name in it.
    """
    columns = raw[5:].split(b"\0", 2)[2]
    message = raw[:5] + f"{table.schema}\0{table.table}\0".encode() + columns
    return replace(described, schema=table.schema, table=table.table), message
