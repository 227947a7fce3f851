"""Reads the rows of CSV and JSON Lines files, plain or gzipped, in constant memory.

An unreadable row comes with its fault, and the rows after it still come. A stray quote costs only its own line, if a
later quote shows that it is stray. A row above `ROW_LIMIT` is one row to its end, so nothing between its quotes becomes
a row. A row that is open at the end of the file may be half-written: nothing of it becomes a row.
"""

import csv
import gzip
import json
import math
import re
import shlex
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, cast

from millrace.errors import ImportRefused
from millrace.importer.file_rows import ROW_LIMIT, EventFile, Row, refuse_twins

# JSON Lines has no header: its columns are the keys of its first rows.
HEAD_ROWS = 100


# Between two quotes, only the characters next to them show where a cell ends.
_BETWEEN_QUOTES = re.compile(r'([^"\r\n])[^"\r\n]+([^"\r\n])')


class _Lines:
    """The lines of a text file, numbered from 1; the lines of the current row can be given back.

    A row above `ROW_LIMIT` is read to its end, but only its beginning is kept: its other lines are reduced to the parts
    that a parser needs to find that end. If even that is too much, as for a long run of quotes, reading ends.
    """

    def __init__(self, text: TextIOWrapper) -> None:
        self._text = text
        self._pushed_back: deque[str] = deque()
        self._row: list[str] = []
        self._last = ""
        self._size = 0
        self._parsed = 0
        self.line = 1
        self.count = 0
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._pushed_back.popleft() if self._pushed_back else self._text.readline(ROW_LIMIT + 1)
        if not line:
            self.ended = True
            raise StopIteration
        self.count += 1
        self._last = line
        if not self.too_long:
            self._row.append(line)
        self._size += len(line)
        if not self.too_long:
            return line
        pieces = []
        while line:
            pieces.append(_BETWEEN_QUOTES.sub(r"\1\2", line))
            self._parsed += len(pieces[-1])
            if self._parsed > 2 * ROW_LIMIT:
                raise ImportRefused(
                    f"The row that begins in line {self.line} cannot be read.",
                    detail=f"Its quotes and delimiters alone are more than {2 * ROW_LIMIT} characters.",
                    hint="Rows before it are imported. Repair the file, or say its --format or --delimiter.",
                )
            line = "" if line.endswith(("\n", "\r")) else self._text.readline(ROW_LIMIT)
        return "".join(pieces)

    @property
    def too_long(self) -> bool:
        """Whether the row passed `ROW_LIMIT`."""
        return self._size > ROW_LIMIT

    def begin_row(self) -> None:
        """Forget the row before; `line` is now the first line of the next one."""
        self.line += self.count
        self._row = []
        self.count = self._size = self._parsed = 0

    def row(self) -> str:
        """Return the row's lines as in the file; only the beginning of a row that is too long."""
        return self._row[0] if len(self._row) == 1 else "".join(self._row)

    def keep_first(self) -> str:
        """Reduce the row to its first line, give the other lines back, and return that line."""
        self._pushed_back.extendleft(reversed(self._row[1:]))
        del self._row[1:]
        self.count = 1
        return self._row[0]

    def give_last_back(self) -> None:
        """Give back the last line of a row, if it has more than one."""
        if self.count > 1 and len(self._last) <= ROW_LIMIT:
            self._pushed_back.appendleft(self._last)
            self.count -= 1


def _open_text(path: Path, stack: ExitStack, newline: str) -> tuple[BinaryIO, TextIOWrapper]:
    """Open plain or gzipped UTF-8; return the plain file, at the position of reading, and its text."""
    plain = cast(BinaryIO, stack.enter_context(path.open("rb")))
    content = plain
    if path.suffix.lower() == ".gz":
        content = cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=plain)))
    # undecodable bytes become lone surrogates: only the row that has them is bad
    text = TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline=newline)
    return plain, stack.enter_context(text)


def _text_fault(raw: str) -> str | None:
    if "\0" in raw:
        return "it contains a NUL byte"
    if not raw.isascii():
        try:
            raw.encode()
        except UnicodeEncodeError:
            return "it is not UTF-8"
    return None


def _bad_row(number: int, lines: _Lines, raw: str, fault: str) -> Row:
    if len(raw) > ROW_LIMIT:
        raw = raw[:1000]
    readable = raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return Row(number, lines.line, readable.rstrip("\r\n"), len(raw), {}, fault)


def _too_long(lines: _Lines) -> str:
    quoted_lines = f"its quotes hold lines {lines.line} to {lines.line + lines.count - 1} together, and " * (
        lines.count > 1
    )
    return f"{quoted_lines}it is longer than {ROW_LIMIT} characters (raw holds its beginning)"


_NO_END = "its line has no end, so it may be half-written: end it with a line break, and import the file again"
_NO_QUOTE = (
    "it has a quote that is not closed before the end of the file, so it may be half-written: close or remove the quote,"
    " and import the file again"
)


def open_csv(path: Path, stack: ExitStack, delimiter: str) -> EventFile:
    """Open a CSV file with a header; the stack closes it."""
    # process-wide, and only ever raised: the default limit refuses cells that the store would take
    csv.field_size_limit(max(csv.field_size_limit(), 2 * ROW_LIMIT))
    plain, text = _open_text(path, stack, newline="")
    lines = _Lines(text)
    # strict: a stray quote is an error in its place instead of swallowing the rows after it
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        columns = next(reader, [])
    except csv.Error as error:
        raise ImportRefused(f"The header of {path} is not CSV.", detail=str(error)) from error
    fault = _text_fault(lines.row()) if columns else "there is none in the first line"
    fault = _too_long(lines) if lines.too_long else fault
    if fault:
        raise ImportRefused(f"The header of {path} cannot be used: {fault}.")
    refuse_twins(path, columns)

    def rows() -> Iterator[Row]:
        width = len(columns)
        number = 0
        while True:
            lines.begin_row()
            fault = None
            cells: list[str] = []
            try:
                cells = next(reader)
                if not cells:
                    continue
                raw = lines.row()
            except StopIteration:
                return
            except csv.Error as error:
                if lines.ended:
                    # stop reading here: the file may have grown since, by the other half
                    yield _bad_row(number + 1, lines, lines.row(), _NO_QUOTE)
                    return
                if lines.too_long:
                    # the line that shows it is a row of its own; earlier lines were read as text between quotes
                    lines.give_last_back()
                    raw = lines.row()
                else:
                    raw, fault = lines.keep_first(), f"it is not CSV: {error}"
            if lines.too_long:
                fault = _too_long(lines)
            number += 1
            fault = fault or _text_fault(raw)
            if not fault and len(cells) != width:
                fault = f"it has {len(cells)} cells, the header {width}"
            if not fault and not raw.endswith(("\n", "\r")):
                fault = _NO_END
            if fault:
                yield _bad_row(number, lines, raw, fault)
            else:
                values = {column: cell or None for column, cell in zip(columns, cells, strict=True)}
                yield Row(number, lines.line, raw, len(raw), values)

    return EventFile(tuple(columns), rows(), plain.tell, path.stat().st_size, delimiter)


def exact(text: str) -> float | str:
    """Return a number, or its text if a float would round it."""
    value = float(text)
    return value if math.isfinite(value) and Decimal(text) == Decimal(repr(value)) else text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_float=exact, parse_constant=_refuse_constant)


def json_object(raw: str) -> dict[str, Any] | str:
    """Return the JSON object, or its fault."""
    try:
        value = _DECODER.decode(raw)
    except RecursionError:
        return "its JSON is nested too deeply"
    except (ValueError, ArithmeticError) as error:
        return f"it is not JSON: {error}"
    return value if isinstance(value, dict) else f"it is not a JSON object but {type(value).__name__}"


def _jsonl_rows(text: TextIOWrapper) -> Iterator[Row]:
    lines = _Lines(text)
    number = 0
    while True:
        lines.begin_row()
        try:
            raw = next(lines)
        except StopIteration:
            return
        if lines.too_long:
            number += 1
            yield _bad_row(number, lines, raw, _too_long(lines))
            continue
        if raw.isspace():
            continue
        number += 1
        values = _text_fault(raw) or json_object(raw)
        if isinstance(values, str):
            yield _bad_row(number, lines, raw, values)
        else:
            yield Row(number, lines.line, raw.rstrip("\r\n"), len(raw), values)


def open_jsonl(path: Path, stack: ExitStack) -> EventFile:
    """Open a file of one JSON object per line; its columns are the keys of its first rows. The stack closes it."""
    columns: dict[str, None] = {}
    head = 0
    with ExitStack() as peek:
        for row in _jsonl_rows(_open_text(path, peek, newline="\n")[1]):
            if not head and row.raw.lstrip().startswith("["):
                raise ImportRefused(
                    f"{path} is a JSON array; JSON Lines has an object on each line.",
                    hint=f"Make lines of it: jq -c '.[]' {shlex.quote(path.name)} > {shlex.quote(path.stem)}.jsonl",
                )
            head += 1
            columns.update(dict.fromkeys(row.values))
            if head == HEAD_ROWS:
                break
    if not head:
        raise ImportRefused(f"{path} is empty.")
    plain, text = _open_text(path, stack, newline="\n")
    return EventFile(tuple(columns), _jsonl_rows(text), plain.tell, path.stat().st_size)
