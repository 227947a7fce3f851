"""Reads the events of an XES log (IEEE 1849), plain or gzipped, in constant memory.

A row's columns are the event's attributes, and those of its trace with the prefix `case:`, the names that process
mining tools use: `case:concept:name`, `concept:name`, `time:timestamp`.
"""

import gzip
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from millrace.errors import ImportRefused
from millrace.importer.file_rows import ROW_LIMIT, EventFile, Row
from millrace.importer.text import HEAD_ROWS, exact

CHUNK_BYTES = 2**16
# memory of an element, even an empty one
ELEMENT_BYTES = 256
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# Python would also accept 1_000 and the digits of other scripts
_NUMBER = re.compile(r"[+-]?([0-9.]+(e[+-]?[0-9]+)?|inf)|nan", re.IGNORECASE)
_TEXTS = ("string", "id", "date")
_CONTAINERS = ("list", "container")


def open_xes(path: Path, stack: ExitStack) -> EventFile:
    """Open an XES log; its columns are the keys of its first events. The stack closes it."""
    columns: dict[str, None] = {}
    number = 0
    with ExitStack() as peek:
        for row in islice(_rows(path, _open(path, peek)[1]), HEAD_ROWS):
            columns.update(dict.fromkeys(row.values))
            number = row.number
    if not number:
        raise ImportRefused(f"{path} has no events.", hint="XES has them as <event> in the <trace>s of its <log>.")
    plain, content = _open(path, stack)
    return EventFile(tuple(columns), _rows(path, content), plain.tell, path.stat().st_size)


def _open(path: Path, stack: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Open the file; return the file itself, at the position of reading, and its content."""
    plain = cast(BinaryIO, stack.enter_context(path.open("rb")))
    if path.suffix.lower() == ".gz":
        return plain, cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=plain)))
    return plain, plain


def _rows(path: Path, content: BinaryIO) -> Iterator[Row]:
    number, size = 0, 0
    open_elements: list[Element] = []
    # of the trace being read: its attributes, and the number of events before it
    trace: dict[str, Element] = {}
    events_before = 0
    last_ended: Element | None = None
    try:
        for action, element in _elements(path, content):
            if action == "start":
                open_elements.append(element)
                # earlier elements are discarded before the next event or trace, or with it
                size = 0 if _tag(element) in {"event", "trace"} else size
                size += ELEMENT_BYTES + sum(len(key) + len(value) for key, value in element.attrib.items())
                if size > ROW_LIMIT:
                    raise ImportRefused(
                        f"{path} cannot be read.",
                        detail=f"An event, or what stands before one, takes more than {ROW_LIMIT} bytes.",
                    )
                if _tag(element) == "trace":
                    trace, events_before = {}, number
                continue
            open_elements.pop()
            # text between tags is no value
            element.text = None
            if last_ended is not None:
                last_ended.tail = None
            last_ended = element
            if _tag(element) == "event":
                number += 1
                yield _row(number, size, trace, element)
            elif open_elements and _tag(open_elements[-1]) == "trace":
                if number > events_before:
                    raise ImportRefused(
                        f"{path} cannot be read.",
                        detail=f"A trace has its attribute {element.get('key')!r} after an event that it belongs to.",
                    )
                trace[f"case:{element.get('key')}"] = element
            if open_elements and _tag(open_elements[-1]) in {"log", "trace"}:
                # discard what is read: a log may be larger than the memory
                open_elements[-1].remove(element)
                size = 0 if _tag(open_elements[-1]) == "log" else size
    except ParseError as error:
        raise ImportRefused(f"{path} cannot be read.", detail=f"It is not XML: {error}.") from error


def _elements(path: Path, content: BinaryIO) -> Iterator[tuple[str, Element]]:
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    unparsed = 0
    while chunk := content.read(CHUNK_BYTES):
        parser.feed(chunk)
        unparsed += len(chunk)
        for event in cast(Iterator[tuple[str, Element]], parser.read_events()):
            unparsed = 0
            yield event
        if unparsed > ROW_LIMIT:
            raise ImportRefused(
                f"{path} cannot be read.", detail=f"A tag, or a text, is longer than {ROW_LIMIT} bytes."
            )
    parser.close()


def _row(number: int, size: int, trace: dict[str, Element], event: Element) -> Row:
    values: dict[str, Any] = {}
    fault = None
    for key, attribute in [*trace.items(), *((str(one.get("key")), one) for one in event)]:
        if key in values:
            fault = f"it has two attributes {key!r}"
        try:
            values[key] = _value(attribute)
        except (ValueError, ArithmeticError, KeyError, RecursionError):
            values[key] = attribute.get("value")
            fault = f"its {key!r} is no {_tag(attribute)}: {attribute.get('value')!r}"
    return Row(number, number, "", size, values, fault)


def _value(attribute: Element) -> Any:  # noqa: ANN401 - JSON has any type
    """Return an attribute's value; for a list or a container, its attributes in order, each an object."""
    tag = _tag(attribute)
    if tag in _CONTAINERS:
        inner = [one for part in attribute for one in (part if _tag(part) == "values" else (part,))]
        return [{str(one.get("key")): _value(one)} for one in inner]
    text = attribute.attrib["value"]
    if tag in _TEXTS:
        return text
    if tag == "boolean":
        return _BOOLEANS[text]
    if tag not in {"int", "float"} or not _NUMBER.fullmatch(text):
        raise ValueError
    return int(text) if tag == "int" else exact(text)


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]
