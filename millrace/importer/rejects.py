"""The rejects file of an import: one JSON object per row that could not become an event, with `line`, `reason`, `raw`.

Rows keep their order; the same import writes the same file again.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Self

from millrace.errors import ImportRefused
from millrace.importer.file_rows import Row


class Rejects:
    """The rejects file. The first rejected row creates it; the file of an earlier run is removed at once.

    Args:
        path: The file.
        text: Writes a row as it may be shown.
    """

    def __init__(self, path: Path, text: Callable[[Row], str]) -> None:
        self.path = path
        self._text = text
        self.written = 0
        self._file: TextIOWrapper | None = None

    def __enter__(self) -> Self:
        with self._refused():
            self.path.unlink(missing_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            with self._refused():
                self._file.close()

    def write(self, row: Row, reason: str) -> None:
        """Add a row."""
        with self._refused():
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8")
            self._file.write(json.dumps({"line": row.line, "reason": reason, "raw": self._text(row)}) + "\n")
        self.written += 1

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ImportRefused(
                f"Rejected rows cannot be written to {self.path}.",
                detail=error.strerror,
                hint="Say where to with --rejects PATH.",
            ) from error
