"""Moves: the steps of an upcast from the data of one version of an event to those of the next version.

A move never fails on data: data that it does not apply to stay as they are. Paths lead through objects only. `moved`
works on the text that Postgres printed, so a number keeps its digits, and parses only objects on the paths of moves.
`moves_fault` in `sql/functions` decides which moves the store refuses.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, Required, TypedDict

from millrace.errors import InvalidEvent, Malformed
from millrace.event_schemas.jsonb_text import end, members
from millrace.event_store.json_text import written
from millrace.event_store.rows import Json

CastType = Literal["string", "number", "integer", "boolean"]
MOST_KEYS = 32
MOST_POWER = 18
_TYPES = ("string", "number", "integer", "boolean")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,99})(?:\.[0-9]{1,100})?")
# made once: json.dumps makes an encoder for each text
_ENCODER = json.JSONEncoder(ensure_ascii=False)
# an object's members by key; a value is a part of the text, or a parsed object
_Object = dict[str, Any]


class Move(TypedDict, total=False):
    """A move as the store has it."""

    move: Required[str]
    path: Required[list[str]]
    to: list[str]
    value: Json
    type: str
    values: Mapping[str, Json]
    power: int


Path = str | Sequence[str]


def rename(path: Path, to: Path) -> Move:
    """Move the value at `path` to `to`, replacing any value there.

    Missing objects on the way are made. If a value on the way is no object, nothing changes.

    Args:
        path: Keys of objects from the root: dotted, or a list, for keys with dots.
        to: The new place; not within `path`.

    Raises:
        InvalidEvent: A path is empty, or `to` lies within `path`.
    """
    keys, target = _keys(path), _keys(to)
    if target[: len(keys)] == keys:
        raise InvalidEvent(f"rename: {to!r} lies within {path!r}; name another place")
    return {"move": "rename", "path": keys, "to": target}


def default(path: Path, value: Json) -> Move:
    """Set a missing key to a value, any JSON; missing objects on the way are made.

    Raises:
        InvalidEvent: The path is empty, or the value is no JSON.
    """
    return {"move": "default", "path": _keys(path), "value": _json("default", value)}


def drop(path: Path) -> Move:
    """Drop a key with its value.

    Raises:
        InvalidEvent: The path is empty.
    """
    return {"move": "drop", "path": _keys(path)}


def cast(path: Path, to: CastType) -> Move:
    """Convert a value to another type if that is exact: `"12.50"` to a number, `12.0` to an integer, `12` to a text.

    Raises:
        InvalidEvent: The path is empty, or the type is none of these.
    """
    if to not in _TYPES:
        raise InvalidEvent(f"cast: {to!r} is no type; a value becomes {', '.join(_TYPES)}")
    return {"move": "cast", "path": _keys(path), "type": to}


def values(path: Path, becomes: Mapping[str, Json]) -> Move:
    """Replace a text that is a key of `becomes` by its value there: a text, number, boolean or None.

    Raises:
        InvalidEvent: The path or `becomes` is empty, a key is no text, or a value is a list or an object.
    """
    if not becomes or any(isinstance(value, Mapping | list | tuple) for value in becomes.values()):
        raise InvalidEvent("values: name at least one text and what it becomes: a text, number, boolean or None")
    if not all(isinstance(key, str) for key in becomes):
        raise InvalidEvent("values: only texts are replaced; write each as a key")
    return {"move": "values", "path": _keys(path), "values": _json("values", dict(becomes))}


def scale(path: Path, power: int) -> Move:
    """Multiply a number by 10 to the power, exactly: `scale("amount", 2)` turns 12.5 into 1250.

    Raises:
        InvalidEvent: The path is empty, or the power is 0 or beyond -18 to 18.
    """
    if type(power) is not int or not 0 < abs(power) <= MOST_POWER:
        raise InvalidEvent(
            f"scale: the power is {power!r}; it is a whole number from -{MOST_POWER} to {MOST_POWER}, not 0"
        )
    return {"move": "scale", "path": _keys(path), "power": power}


def nest(paths: Iterable[Path], into: Path) -> list[Move]:
    """Move values into an object, each under the last key of its path.

    Raises:
        InvalidEvent: A path is empty, or none is given.
    """
    moves = [rename(path, [*_keys(into), _keys(path)[-1]]) for path in paths]
    if not moves:
        raise InvalidEvent("nest: name at least one path")
    return moves


def lift(path: Path, keys: Iterable[str]) -> list[Move]:
    """Move these keys of an object up beside it, and drop the object with all other keys.

    Raises:
        InvalidEvent: The path is empty, or no keys are given.
    """
    parent = _keys(path)
    moves = [rename([*parent, key], [*parent[:-1], key]) for key in keys]
    if not moves:
        raise InvalidEvent("lift: name at least one key")
    return [*moves, drop(parent)]


def moved(data: str, event_version: int, upcasts: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of data after all later `upcasts`: byte for byte the result of `moved` in SQL.

    Args:
        data: The data, as Postgres prints jsonb.
        event_version: The version of the data.
        upcasts: Mappings with `to_version` and `moves`; those to later versions are applied in order. Numbers in them
            are int, float or Decimal: numbers parsed with `parse_float=Decimal` keep their digits.
    """
    if not data.startswith("{"):
        return data
    root = None
    for upcast in sorted(upcasts, key=lambda each: int(each["to_version"])):
        if upcast["to_version"] > event_version:
            root = _opened(data) if root is None else root
            for move in upcast["moves"]:
                _apply(move, root)
    return data if root is None else _text(root)


def _apply(move: Move, root: _Object) -> None:
    path = move["path"]
    parent = _parent(root, path)
    if move["move"] == "default":
        if parent is None or path[-1] not in parent:
            _place(root, path, _printed(move["value"]))
        return
    if parent is None or path[-1] not in parent:
        return
    if move["move"] == "drop":
        del parent[path[-1]]
    elif move["move"] == "rename":
        value = parent.pop(path[-1])
        if not _place(root, move["to"], value if isinstance(value, str) else _text(value)):
            parent[path[-1]] = value
    elif isinstance(value := parent[path[-1]], str) and value[0] not in "{[n":
        new = _CHANGES[move["move"]](move, value)
        if new is not None:
            parent[path[-1]] = new


def _parent(root: _Object, path: Sequence[str]) -> _Object | None:
    """Return the object that holds the last key, None if there is none; objects on the way are parsed."""
    at = root
    for key in path[:-1]:
        inner = at.get(key)
        if isinstance(inner, str):
            if inner[0] != "{":
                return None
            inner = at[key] = _opened(inner)
        if inner is None:
            return None
        at = inner
    return at


def _place(root: _Object, path: Sequence[str], value: str) -> bool:
    """Set the value at a path and make missing objects; return False if a value on the way is no object."""
    for depth in range(len(path) - 1, -1, -1):
        parent = _parent(root, path[: depth + 1])
        if parent is not None:
            if depth < len(path) - 1 and path[depth] in parent:
                return False
            for key in reversed(path[depth + 1 :]):
                value = f"{{{_quoted(key)}: {value}}}"
            parent[path[depth]] = value
            return True
    raise AssertionError("the root is an object")


def _value(move: Move, value: str) -> str | None:
    text = _string(value)
    return _printed(move["values"][text]) if text is not None and text in move["values"] else None


def _scaled(move: Move, value: str) -> str | None:
    if value[0] in '"tf' or len(value) > 1000:  # as `moved` in SQL
        return None
    power = move["power"]
    whole, _, fraction = value.lstrip("-").partition(".")
    if power > 0:
        fraction = fraction.ljust(power, "0")
        whole, fraction = whole + fraction[:power], fraction[power:]
    else:
        whole = whole.zfill(-power)
        whole, fraction = whole[:power], whole[power:] + fraction
    return _number(value[0] == "-", whole, fraction.rstrip("0"))


def _casted(move: Move, value: str) -> str | None:
    text, to = _string(value), move["type"]
    if to == "string":
        return f'"{value}"' if text is None else None
    if to == "boolean":
        return text if text in ("true", "false") else None
    if (text is None and (value[0] in "tf" or to == "number")) or (text is not None and not _NUMBER.fullmatch(text)):
        return None
    number = value if text is None else text
    whole, _, fraction = number.lstrip("-").partition(".")
    if to == "integer":
        if fraction.strip("0"):
            return None
        fraction = ""
    return _number(number[0] == "-", whole, fraction)


_CHANGES = {"values": _value, "scale": _scaled, "cast": _casted}


def _number(negative: bool, whole: str, fraction: str) -> str:
    """Return a number as Postgres prints it, which has no -0."""
    whole = whole.lstrip("0") or "0"
    sign = "-" if negative and (whole + fraction).strip("0") else ""
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _string(value: str) -> str | None:
    """Return the text of a JSON string, None for any other value."""
    if value[0] != '"':
        return None
    return value[1:-1] if "\\" not in value else str(json.loads(value))


def _opened(text: str) -> _Object:
    return {
        name[1:-1] if "\\" not in name else json.loads(name): text[start : end(text, start)]
        for name, start in members(text, 0)
    }


def _text(members_of: _Object) -> str:
    """Return an object as Postgres prints it; recurses as deep as objects were parsed, at most the depth of a path."""
    printed = ", ".join(
        f"{_quoted(key)}: {value if isinstance(value, str) else _text(value)}"
        # jsonb orders keys by their length first
        for key, value in sorted(members_of.items(), key=lambda member: (len(member[0].encode()), member[0].encode()))
    )
    return f"{{{printed}}}"


def _quoted(text: str) -> str:
    return _ENCODER.encode(text)


def _printed(value: object) -> str:
    """Return a JSON value as Postgres prints jsonb."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        return _text({key: _printed(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_printed, value))}]"
    if isinstance(value, float | Decimal):
        sign, digits = f"{Decimal(repr(value)) if isinstance(value, float) else value:f}".rpartition("-")[1:]
        return _number(bool(sign), *digits.partition(".")[::2])
    return json.dumps(value)


def _keys(path: Path) -> list[str]:
    keys = path.split(".") if isinstance(path, str) else list(path)
    if not keys or (isinstance(path, str) and "" in keys) or not all(isinstance(key, str) for key in keys):
        raise InvalidEvent(f"{path!r} is no path; write keys with dots between them, or a list of keys")
    if len(keys) > MOST_KEYS:
        raise InvalidEvent(f"{path!r} has {len(keys)} keys; a path has at most {MOST_KEYS}")
    return list(_json("path", keys))


def _json(move: str, value: Any) -> Any:  # noqa: ANN401 - JSON has any shape
    try:
        written(value)
    except Malformed as error:
        raise InvalidEvent(f"{move}: {value!r} is no JSON: {error.detail}") from error
    return value
