"""The types that the readers of event files share: a format, a row, an open file, the size limit of a row."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from millrace.errors import ImportRefused

Format = Literal["csv", "jsonl", "xes", "parquet"]

# No row may need more memory than this, in characters; the store's limit for data is 1 MiB by default.
ROW_LIMIT = 8 * 1024 * 1024


class Row(NamedTuple):
    """One row: its values by column, or its fault.

    A named tuple, because each row makes one: a frozen dataclass takes three times as long.

    Attributes:
        number: From 1; unreadable rows count, blank lines do not.
        line: The line of the file where it begins; for XES and Parquet its number.
        raw: Its text in the file; empty for XES and Parquet.
        size: About how many bytes it has.
        values: Its values, by column.
        fault: The reason why it is unreadable, as a clause about "it"; None for a readable row.
    """

    number: int
    line: int
    raw: str
    size: int
    values: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class EventFile:
    """An open file: its columns, its rows (once), and the progress of reading, in bytes or, for Parquet, in rows.

    A CSV file has a delimiter.
    """

    columns: tuple[str, ...]
    rows: Iterator[Row]
    position: Callable[[], int]
    total: int
    delimiter: str | None = None


def refuse_twins(path: Path, columns: list[str]) -> None:
    """Raise `ImportRefused` if two columns have the same name."""
    twins = sorted(column for column, times in Counter(columns).items() if times > 1)
    if twins:
        raise ImportRefused(
            f"{path} has columns of the same name.", detail=f"More than once: {', '.join(map(repr, twins))}."
        )
