"""The parts of a JSON text that Postgres printed: where members, elements and values stand in it."""

import re
from collections.abc import Iterator

# a string or number, a string or bracket, of a text that Postgres printed
_SCALAR = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^],}\s]++')
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|[][{}]')


def members(text: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield each key of the object that begins there, as it is written, and the place where its value begins."""
    position = start + 1
    while text[position] == '"':
        after = end(text, position)
        value = after + len(": ")
        yield text[position:after], value
        position = end(text, value) + len(", ")
        if text[position - len(", ")] != ",":
            return


def elements(text: str, start: int) -> Iterator[int]:
    """Yield the place where each element of the array that begins there begins."""
    position = start + 1
    while text[position] != "]":
        yield position
        position = end(text, position) + len(", ")
        if text[position - len(", ")] != ",":
            return


def end(text: str, start: int) -> int:
    """Return the place after the value that begins there."""
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
