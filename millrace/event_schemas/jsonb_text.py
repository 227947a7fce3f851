"""The parts of a JSON text printed by Postgres: the places of its members, elements and values."""

import re
from collections.abc import Iterator

# a string or a number; a string or a bracket
_SCALAR = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^],}\s]++')
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|[][{}]')


def members(text: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield each key of the object that begins at `start`, as it is written, and the start of its value."""
    position = start + 1
    while text[position] == '"':
        after = end(text, position)
        value = after + len(": ")
        yield text[position:after], value
        position = end(text, value) + len(", ")
        if text[position - len(", ")] != ",":
            return


def elements(text: str, start: int) -> Iterator[int]:
    """Yield the start of each element of the array that begins at `start`."""
    position = start + 1
    while text[position] != "]":
        yield position
        position = end(text, position) + len(", ")
        if text[position - len(", ")] != ",":
            return


def end(text: str, start: int) -> int:
    """Return the place after the value that begins at `start`."""
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
