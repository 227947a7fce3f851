"""Fields of jsonb's text by path, as Postgres' `data #>> path` gives them: of one text, and of an Arrow array of texts.

Spark's own functions are of no use: from_json makes 1.5 of 1.50 and Infinity of 1e400, and rewrites nested values.

CPU seconds of `fields` for two fields, and for five, of 200,000 texts of about 80 characters:

    fields                                         0.12   0.24
    the same where a quarter has a nested object   0.41   0.50
    json.loads of each text                        0.81   0.91
    msgspec with a struct of Raw                   0.24   0.66
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.event_schemas.jsonb_text import elements, end, members

# the text that Postgres reads as the position in an array: C's strtol
_INDEX = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")
# a key that stands in a text as it is, and begins with nothing that may follow the end of a string
_PLAIN = re.compile(r"[^\x00-\x1f\"\\\ud800-\udfff,:}\]][^\x00-\x1f\"\\\ud800-\udfff]*")
_NOWHERE = np.int64(2**62)
_WORD = 8
_PIECE = 4096


def field(text: str, path: Sequence[str]) -> str | None:
    """Return the value at a path of a JSON text that Postgres printed; None for a JSON null and for no value.

    A string comes without quotes and escapes. Any other value comes unchanged as its part of the text, at any depth.
    """
    start = 0
    for key in path:
        values: Iterator[int] | None = None
        if text[start] == "{":
            values = (value for name, value in members(text, start) if json.loads(name) == key)
        elif text[start] == "[" and _INDEX.fullmatch(key):
            items, index = list(elements(text, start)), int(key)
            values = iter(items[index:][:1] if -len(items) <= index < len(items) else ())
        found = next(values, None) if values is not None else None
        if found is None:
            return None
        start = found
    value = text[start : end(text, start)]
    if value == "null":
        return None
    return str(json.loads(value)) if value.startswith('"') else value


def fields(texts: pa.StringArray, paths: Sequence[Sequence[str]]) -> list[pa.ChunkedArray]:
    """Return for each path the value in each text, null for a text that is null.

    `PlainTexts` finds most values in all texts at once; the texts where it cannot decide are parsed one by one.
    """
    # as many at a time as fit in a processor's cache
    pieces = [_fields(texts.slice(first, _PIECE), paths) for first in range(0, len(texts), _PIECE)]
    return [pa.chunked_array([piece[n] for piece in pieces], pa.string()) for n in range(len(paths))]


def _fields(texts: pa.StringArray, paths: Sequence[Sequence[str]]) -> list[pa.StringArray]:
    plain = PlainTexts(texts)
    results = [plain.values(path) for path in paths]
    unknown = np.logical_or.reduce([each for _, each in results])
    if not unknown.any():
        return [values for values, _ in results]
    mask = pa.array(unknown)
    parsed = [_parsed(text, paths) for text in texts.filter(mask).to_pylist()]
    return [
        pc.replace_with_mask(values, mask, pa.array([each[n] for each in parsed], pa.string()))
        for n, (values, _) in enumerate(results)
    ]


def _parsed(text: str | None, paths: Sequence[Sequence[str]]) -> list[str | None]:
    """Return the value at each path as `field` does, parsing the text once."""
    if text is None:
        return [None] * len(paths)
    try:
        # so a number keeps its digits
        document = json.loads(text, parse_float=str, parse_int=str)
    except RecursionError:
        return [field(text, path) for path in paths]
    return [_at(document, text, path) for path in paths]


def at(document: Any, path: Sequence[str]) -> Any:  # noqa: ANN401 - JSON has any shape
    """Return the value at a path of a parsed document; None for a JSON null and for no value."""
    value = document
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and _INDEX.fullmatch(key) and -len(value) <= int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _at(document: Any, text: str, path: Sequence[str]) -> str | None:  # noqa: ANN401 - JSON has any shape
    value = at(document, path)
    if isinstance(value, bool):
        return "true" if value else "false"
    # an object or array is returned as it stands in the text
    return value if value is None or isinstance(value, str) else field(text, path)


class PlainTexts:
    """Texts of jsonb, and a search for keys in all of them at once.

    The search is exact for these reasons. jsonb prints a key and its value as `"key": value`. Without a backslash
    before it, each quote begins or ends a string. The first `"` of a found `"key": ` cannot end one: no character that
    a plain key begins with may follow the end of a string. So it begins a string, and that string is a key. It is a key
    of this object if before it no other object begins and this one does not end.
    """

    def __init__(self, texts: pa.StringArray) -> None:
        if texts.null_count:
            texts = pc.fill_null(texts, "")
        _, offsets, characters = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
        content = characters.slice(bounds[0], bounds[-1] - bounds[0]).to_pybytes() if characters else b""
        bounds -= bounds[0]
        # so that a word of eight characters fits wherever a text may end
        content += bytes(_WORD)
        self._characters = np.frombuffer(content, np.uint8)
        # the eight characters that begin at each place
        self._words = np.ndarray((len(content) - _WORD + 1,), "<u8", content, strides=(1,))
        self._starts, self._ends = bounds[:-1], bounds[1:]

    def values(self, path: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.bool_]]:
        """Return the value at a path in each text, and a mask of the texts where the search cannot decide.

        It decides where the text has no such key. It also decides where the value is neither object nor array, the path
        leads through no array, no other object begins before the value, and no backslash stands before or in the value.
        """
        at = self._starts
        objects = self._characters[at] == ord("{")
        unknown = ~objects
        if not all(_PLAIN.fullmatch(key) for key in path):
            return pa.nulls(len(at), pa.string()), np.ones(len(at), np.bool_)
        is_there = objects
        for depth, key in enumerate(path):
            if depth:
                first = self._characters[at]
                unknown |= is_there & (first == ord("["))
                is_there &= first == ord("{")
            found = _first(self._keys(key.encode()), at)
            is_there &= found < self._ends
            doubtful = (_first(self._opened, at + 1) < found) | (_first(self._escaped, at) < found)
            if depth:
                doubtful |= _first(self._closed, at) < found
            unknown |= is_there & doubtful
            is_there &= ~doubtful
            at = np.where(is_there, found + len(key.encode()) + len('"": '), at)
        return self._cut(at, is_there, unknown)

    def _cut(
        self, at: npt.NDArray[np.int64], is_there: npt.NDArray[np.bool_], unknown: npt.NDArray[np.bool_]
    ) -> tuple[pa.StringArray, npt.NDArray[np.bool_]]:
        """Cut out the values that begin at places; `is_there` and `unknown` mask the texts as in `values`."""
        first = self._characters[at]
        quoted = first == ord('"')
        unknown |= is_there & ((first == ord("{")) | (first == ord("[")))
        is_there = is_there & ~unknown & (first != ord("n"))
        ends = np.where(quoted, _first(self._quotes, at + 1), _first(self._separators, at))
        escaped = is_there & (_first(self._escaped, at) < ends)
        unknown |= escaped
        is_there &= ~escaped
        begins = np.where(is_there, at + quoted, 0)
        lengths = np.where(is_there, ends - begins, 0)
        bounds = np.zeros(len(at) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        from_where = np.arange(bounds[-1]) + np.repeat(begins - bounds[:-1], lengths)
        return (
            pa.StringArray.from_buffers(
                len(at),
                pa.py_buffer(bounds.astype(np.int32)),
                pa.py_buffer(self._characters[from_where]),
                pa.array(is_there).buffers()[1],
            ),
            unknown,
        )

    def _keys(self, key: bytes) -> npt.NDArray[np.int64]:
        """Return the places of `"key": `."""
        sought = b'"%s": ' % key
        # a key contains no quote, so its two quotes are neighbours: most other places are skipped without a look at the
        # text between them
        found: npt.NDArray[np.int64] = self._quotes[:-1][self._apart == len(key) + 1]
        found = found[found + len(sought) < len(self._words)]
        for at in range(0, len(sought), _WORD):
            part = sought[at : at + _WORD]
            mask = np.uint64(2 ** (8 * len(part)) - 1)
            found = found[self._words[found + at] & mask == np.uint64(int.from_bytes(part, "little"))]
        return found

    def _places(self, character: str) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._characters == ord(character))

    @cached_property
    def _quotes(self) -> npt.NDArray[np.int64]:
        return self._places('"')

    @cached_property
    def _apart(self) -> npt.NDArray[np.int64]:
        return np.diff(self._quotes)

    @cached_property
    def _separators(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero((self._characters == ord(",")) | (self._characters == ord("}")))

    @cached_property
    def _opened(self) -> npt.NDArray[np.int64]:
        return self._places("{")

    @cached_property
    def _closed(self) -> npt.NDArray[np.int64]:
        return self._places("}")

    @cached_property
    def _escaped(self) -> npt.NDArray[np.int64]:
        return self._places("\\")


def _first(places: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first of rising places at or after each position, `_NOWHERE` where no place follows."""
    if not len(places):
        return np.full(len(at), _NOWHERE)
    found: npt.NDArray[np.int64] = np.append(places, _NOWHERE)[np.searchsorted(places, at)]
    return found
