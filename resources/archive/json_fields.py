"""Fields of jsonb's text by path, as Postgres' `data #>> path` gives them: of one text, and of an Arrow array of texts.

Belongs here: what stands at a path. Not here: which texts are read (`archive_rows`).

Numbers are as they stand in the text: no digit is lost or added, whatever a float holds. So Spark's own functions for JSON are of no
use: from_json makes 1.5 of 1.50 and Infinity of 1e400, and writes nested values anew.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# what Postgres reads as the position in an array: C's strtol
_INDEX = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")
# a key that stands in a text as it is, and begins with nothing that may follow the end of a string
_PLAIN = re.compile(r"[^\x00-\x1f\"\\\ud800-\udfff,:}\]][^\x00-\x1f\"\\\ud800-\udfff]*")
_NOWHERE = np.int64(2**62)
# a string or number, a string or bracket, of a text that Postgres printed
_SCALAR = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^],}\s]++')
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|[][{}]')
_WORD = 8
_PIECE = 4096


def field(text: str, path: Sequence[str]) -> str | None:
    """The value at a path of a JSON text that Postgres printed: text as it is, null for a JSON null and for what is not there.

    Anything else is a part of the text, however deep it is: nothing is made of it.
    """
    start = 0
    for key in path:
        values: Iterator[int] | None = None
        if text[start] == "{":
            values = (value for name, value in _members(text, start) if json.loads(name) == key)
        elif text[start] == "[" and _INDEX.fullmatch(key):
            elements, index = list(_elements(text, start)), int(key)
            values = iter(elements[index:][:1] if -len(elements) <= index < len(elements) else ())
        found = next(values, None) if values is not None else None
        if found is None:
            return None
        start = found
    value = text[start : _end(text, start)]
    if value == "null":
        return None
    return str(json.loads(value)) if value.startswith('"') else value


def _members(text: str, start: int) -> Iterator[tuple[str, int]]:
    """The keys of the object that begins there, as they are written, and where their values begin."""
    position = start + 1
    while text[position] == '"':
        after = _end(text, position)
        value = after + len(": ")
        yield text[position:after], value
        position = _end(text, value) + len(", ")
        if text[position - len(", ")] != ",":
            return


def _elements(text: str, start: int) -> Iterator[int]:
    """Where the elements of the array that begins there begin."""
    position = start + 1
    while text[position] != "]":
        yield position
        position = _end(text, position) + len(", ")
        if text[position - len(", ")] != ",":
            return


def _end(text: str, start: int) -> int:
    """Where the value ends that begins there."""
    if text[start] not in "{[":
        scalar = _SCALAR.match(text, start)
        assert scalar is not None
        return scalar.end()
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise ValueError(f"no JSON of Postgres: {text[:100]!r}")


def fields(texts: pa.StringArray, paths: Sequence[Sequence[str]]) -> list[pa.ChunkedArray]:
    """The value at each path in each text, null for a text that is null.

    What `PlainTexts` knows comes from all texts at once; only the others are gone through one by one.
    """
    # a few at a time, which a processor's cache holds
    pieces = [_fields(texts.slice(first, _PIECE), paths) for first in range(0, len(texts), _PIECE)]
    return [pa.chunked_array([piece[n] for piece in pieces], pa.string()) for n in range(len(paths))]


def _fields(texts: pa.StringArray, paths: Sequence[Sequence[str]]) -> list[pa.StringArray]:
    plain = PlainTexts(texts)
    known = [plain.values(path) for path in paths]
    unknown = np.logical_or.reduce([each for _, each in known])
    if not unknown.any():
        return [values for values, _ in known]
    mask = pa.array(unknown)
    documents = texts.filter(mask).to_pylist()
    return [
        pc.replace_with_mask(
            values, mask, pa.array([None if each is None else field(each, path) for each in documents], pa.string())
        )
        for (values, _), path in zip(known, paths, strict=True)
    ]


class PlainTexts:
    """Texts of jsonb in which values are found by looking for keys, all texts at once.

    Why that is exact: jsonb prints a key and its value as `"key": value`. Where there is no backslash before it, each quote there begins
    or ends a string, so the first `"` of `"key": ` cannot be an end: after an end comes none of the characters that a plain key begins
    with. It begins a string that is a key; and one of this object, if no other object was opened before it, nor this one closed.
    """

    def __init__(self, texts: pa.StringArray) -> None:
        if texts.null_count:
            texts = pc.fill_null(texts, "")
        _, offsets, characters = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
        content = characters.slice(bounds[0], bounds[-1] - bounds[0]).to_pybytes() if characters else b""
        bounds -= bounds[0]
        # so that there is a word wherever a text may end
        content += bytes(_WORD)
        self._characters = np.frombuffer(content, np.uint8)
        # the eight characters from each place on
        self._words = np.ndarray((len(content) - _WORD + 1,), "<u8", content, strides=(1,))
        self._starts, self._ends = bounds[:-1], bounds[1:]

    def values(self, path: Sequence[str]) -> tuple[pa.StringArray, npt.NDArray[np.bool_]]:
        """The value at a path in each text, and where it is unknown instead.

        It is known where the key is not in the text at all; and where the value is none and no object, the path leads through no array, and
        there is neither another object before it nor a backslash before it or in it.
        """
        at = self._starts
        objects = self._characters[at] == ord("{")
        unknown = ~objects
        if not all(_PLAIN.fullmatch(key) for key in path):
            return pa.nulls(len(at), pa.string()), np.ones(len(at), np.bool_)
        there = objects
        for depth, key in enumerate(path):
            if depth:
                first = self._characters[at]
                unknown |= there & (first == ord("["))
                there &= first == ord("{")
            found = _first(self._keys(key.encode()), at)
            there &= found < self._ends
            doubtful = (_first(self._opened, at + 1) < found) | (_first(self._escaped, at) < found)
            if depth:
                doubtful |= _first(self._closed, at) < found
            unknown |= there & doubtful
            there &= ~doubtful
            at = np.where(there, found + len(key.encode()) + len('"": '), at)
        return self._cut(at, there, unknown)

    def _cut(
        self, at: npt.NDArray[np.int64], there: npt.NDArray[np.bool_], unknown: npt.NDArray[np.bool_]
    ) -> tuple[pa.StringArray, npt.NDArray[np.bool_]]:
        """The values that begin at places, where there is one."""
        first = self._characters[at]
        quoted = first == ord('"')
        unknown |= there & ((first == ord("{")) | (first == ord("[")))
        there = there & ~unknown & (first != ord("n"))
        ends = np.where(quoted, _first(self._quotes, at + 1), _first(self._separators, at))
        escaped = there & (_first(self._escaped, at) < ends)
        unknown |= escaped
        there &= ~escaped
        begins = np.where(there, at + quoted, 0)
        lengths = np.where(there, ends - begins, 0)
        bounds = np.zeros(len(at) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        from_where = np.arange(bounds[-1]) + np.repeat(begins - bounds[:-1], lengths)
        return (
            pa.StringArray.from_buffers(
                len(at),
                pa.py_buffer(bounds.astype(np.int32)),
                pa.py_buffer(self._characters[from_where]),
                pa.array(there).buffers()[1],
            ),
            unknown,
        )

    def _keys(self, key: bytes) -> npt.NDArray[np.int64]:
        """Where `"key": ` stands."""
        sought = b'"%s": ' % key
        # no quote is in a key, so its two are neighbours: most others are passed over without looking at what is between
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
    """The first of rising places from each position on; none is beyond everything."""
    if not len(places):
        return np.full(len(at), _NOWHERE)
    found: npt.NDArray[np.int64] = np.append(places, _NOWHERE)[np.searchsorted(places, at)]
    return found
