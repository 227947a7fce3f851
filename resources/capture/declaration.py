"""What a capture is: tables of a source database whose changes become events.

Belongs here: the declaration, and what is wrong with it by itself. Not here: what the source says to it
(`source.readiness`), capturing (`drain`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

ACTIONS = ("insert", "update", "delete", "truncate")
# The names of slots and publications contain it, and have 63 bytes at most.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


class InvalidCapture(ValueError):
    """A capture is declared in a way that cannot work; the text says what is allowed."""


@dataclass(frozen=True)
class CapturedTable:
    """A table of the source.

    Attributes:
        table: Its name.
        schema: Its schema.
        columns: The columns that are captured, those of its key among them; None for all, also those that are added
            later.
        where: The rows that are captured, a condition as in `create publication`; None for all. A row that begins to
            meet it is an insert, one that ceases to meet it is a delete.
        key: The columns that name a row, where the table has neither a primary key nor an index as its replica
            identity.
        decider: The decider of its events; None for `table:<schema>.<table>`.
    """

    table: str
    schema: str = "public"
    columns: tuple[str, ...] | None = None
    where: str | None = None
    key: tuple[str, ...] | None = None
    decider: str | None = None

    @property
    def name(self) -> str:
        """The table as `<schema>.<table>`."""
        return f"{self.schema}.{self.table}"

    @property
    def stream_decider(self) -> str:
        """The decider of its events."""
        return self.decider if self.decider is not None else f"table:{self.name}"


@dataclass(frozen=True)
class Capture:
    """A declared capture: one source database, one slot, one publication.

    Attributes:
        name: Its name.
        source: A function that returns the source's connection string; called when a connection is opened.
        tables: What is captured.
        actions: Which changes are captured, of all its tables.
        keep_days: How long `wal_events` keeps a change that became an event, in days.
        max_lag_s: How long a change may wait to become an event, in seconds, before an operator is told.
        max_retained_bytes: How much WAL the source may keep for the slot before an operator is told.
    """

    name: str
    source: Callable[[], str]
    tables: tuple[CapturedTable, ...]
    actions: tuple[str, ...] = ACTIONS
    keep_days: float = 7
    max_lag_s: int = 60
    max_retained_bytes: int = 1_000_000_000

    def __post_init__(self) -> None:
        """Refuse a declaration that cannot work.

        Raises:
            InvalidCapture: It is misnamed, captures nothing, or captures something twice.
        """
        if not _NAME.fullmatch(self.name):
            raise InvalidCapture(f"capture {self.name!r}: a name has 1 to 31 of a-z, 0-9 and _, a letter first")
        if not self.tables:
            raise InvalidCapture(f"capture {self.name}: it has no table")
        if unknown := [action for action in self.actions if action not in ACTIONS]:
            raise InvalidCapture(f"capture {self.name}: actions are {', '.join(ACTIONS)}; not {', '.join(unknown)}")
        if not self.actions:
            raise InvalidCapture(f"capture {self.name}: it has no action; allowed are {', '.join(ACTIONS)}")
        for what, named in (
            ("table", [table.name for table in self.tables]),
            ("decider", [table.stream_decider for table in self.tables]),
        ):
            if twice := {name for name in named if named.count(name) > 1}:
                raise InvalidCapture(f"capture {self.name}: {what} {', '.join(sorted(twice))} is declared twice")
        for table in self.tables:
            if table.columns == () or table.key == ():
                raise InvalidCapture(f"capture {self.name}: table {table.name}: columns and key are None or not empty")
