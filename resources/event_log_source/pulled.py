"""Fields of data in their newest shape without that shape: each is read where the stored version has it.

Belongs here: from a path and the moves of upcasts to an expression of SQL, which costs a fraction of moving the whole
document (`event_store_platform.moved`) and gives the same. Not here: the SELECT (`reading`).

What stands at a path after some moves is told by what stood there, or elsewhere, before the last of them. So it is
followed backwards, move by move, to what is stored. Where a move changes something within the value at the path, or a
key could be one of an array, `NotPulled` says that the document has to be moved.
"""

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import sql

Path = tuple[str, ...]
Moves = Sequence[Mapping[str, Any]]

# longer than this it would cost more than to move the document
MOST_CHARACTERS = 4_000
# what `#>` takes for a place in an array, which no move enters
_INDEX = re.compile(r"\s*[+-]?[0-9]+")


class NotPulled(Exception):
    """A field cannot be read by itself: the document has to be moved."""


def pulled(path: Path, moves: Moves) -> "sql.Composed":
    """Return jsonb: what stands at a path of `e.data`, an object, after some moves; null where nothing does.

    Raises:
        NotPulled: It cannot be told of the field alone.
    """
    found = _after(path, moves)
    if len(found.as_string()) > MOST_CHARACTERS:
        raise NotPulled
    return found


def _after(path: Path, moves: Moves) -> "sql.Composed":
    from psycopg import sql

    if not moves:
        if any(_INDEX.fullmatch(key) for key in path):
            raise NotPulled
        return sql.SQL("(e.data #> {}::text[])").format(list(path))
    *before, move = moves
    at = tuple(move["path"])
    if move["move"] == "rename":
        return _renamed(path, before, at, tuple(move["to"]))
    if _leads(path, at) and path != at:
        raise NotPulled
    was = _after(path, before)
    # another place; or within a scalar, where nothing is
    if not _leads(at, path) or (path != at and move["move"] not in {"drop", "default"}):
        return was
    if move["move"] == "drop":
        return sql.SQL("null::jsonb").format()
    if move["move"] == "default":
        value = sql.SQL("({}::jsonb #> {}::text[])").format(_json(move["value"]), list(path[len(at) :]))
        return sql.SQL("case when {there} is not null then {was} when {free} then {value} end").format(
            there=_after(at, before), was=was, free=_is_free(at, before), value=value
        )
    return sql.SQL("coalesce(event_store_platform.moved_value({was}, {move}::jsonb), {was})").format(
        was=was, move=_json(move)
    )


def _renamed(path: Path, before: Moves, at: Path, to: Path) -> "sql.Composed":
    from psycopg import sql

    for other in (at, to):
        if _leads(path, other) and path != other:
            raise NotPulled
    if not _leads(at, path) and not _leads(to, path):
        return _after(path, before)
    came = _after(at + path[len(to) :], before) if _leads(to, path) else sql.SQL("null::jsonb").format()
    return sql.SQL("case when {there} is not null and {free} then {came} else {was} end").format(
        there=_after(at, before), free=_is_free(to, before), came=came, was=_after(path, before)
    )


def _is_free(to: Path, moves: Moves) -> "sql.Composed":
    """Return whether what stands on the way to a path, after some moves, is an object or nothing."""
    from psycopg import sql

    free = [sql.SQL("true").format()]
    for length in range(1, len(to)):
        on_the_way = to[:length]
        # what changes something within an object leaves it one
        known = [*moves]
        while known and not any(_leads(tuple(known[-1].get(name, ())), on_the_way) for name in ("path", "to")):
            known.pop()
        value = _after(on_the_way, known)
        free.append(sql.SQL("coalesce(jsonb_typeof({}) = 'object', true)").format(value))
    return sql.SQL(" and ").join(free)


def _leads(path: Path, to: Path) -> bool:
    """Say whether a path leads to another, or is it."""
    return bool(path) and to[: len(path)] == path


def _json(value: object) -> str:
    """Return the text of JSON that was read with `parse_float=Decimal`: numbers keep their digits."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_json(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(map(_json, value))}]" if isinstance(value, list) else json.dumps(value)
