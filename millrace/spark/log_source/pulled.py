"""Fields of data in their newest shape, without upcasting the document: each is read from its place as stored.

That costs a fraction of moving the whole document (`event_store_platform.moved`), and gives the same result. A path is
followed backwards, move by move, to the stored place. If a move changes a part of the value at the path, or a key could
be an index of an array, `NotPulled` says that the whole document must be moved.
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

# with more places, or a longer expression, a field would cost more than moving the document
MOST_PLACES = 100
MOST_CHARACTERS = 4_000
# keys that `#>` takes as an index of an array, which no move enters
_INDEX = re.compile(r"\s*[+-]?[0-9]+")


class NotPulled(Exception):
    """A field cannot be read by itself: the whole document must be moved."""


def pulled(path: Path, moves: Moves) -> "sql.Composed":
    """Return an expression for the jsonb at a path of `e.data`, an object, after some moves; null for no value.

    Raises:
        NotPulled: The field cannot be read by itself.
    """
    found = _Pull().after(path, moves)
    if len(found.as_string()) > MOST_CHARACTERS:
        raise NotPulled
    return found


class _Pull:
    """Follows a field back through the moves; each rename may lead to several places."""

    def __init__(self) -> None:
        self._places = 0

    def after(self, path: Path, moves: Moves) -> "sql.Composed":
        """Return an expression for the value at a path after some moves."""
        from psycopg import sql

        self._places += 1
        moves = _touching(path, moves)
        if self._places > MOST_PLACES or (not moves and any(_INDEX.fullmatch(key) for key in path)):
            raise NotPulled
        if not moves:
            return sql.SQL("(e.data #> {}::text[])").format(list(path))
        *before, move = moves
        at = tuple(move["path"])
        if move["move"] == "rename":
            to = tuple(move["to"])
            if any(_leads(path, other) and path != other for other in (at, to)):
                raise NotPulled
            came = self.after(at + path[len(to) :], before) if _leads(to, path) else sql.SQL("null::jsonb").format()
            return sql.SQL("case when {there} is not null and {free} then {came} else {was} end").format(
                there=self.after(at, before), free=self._is_free(to, before), came=came, was=self.after(path, before)
            )
        if _leads(path, at) and path != at:
            raise NotPulled
        # a scalar has nothing inside
        if path != at and move["move"] not in {"drop", "default"}:
            return self.after(path, before)
        if move["move"] == "drop":
            return sql.SQL("null::jsonb").format()
        was = self.after(path, before)
        if move["move"] == "default":
            value = sql.SQL("({}::jsonb #> {}::text[])").format(_json(move["value"]), list(path[len(at) :]))
            return sql.SQL("case when {there} is not null then {was} when {free} then {value} end").format(
                there=self.after(at, before), was=was, free=self._is_free(at, before), value=value
            )
        return sql.SQL("coalesce(event_store_platform.moved_value({was}, {move}::jsonb), {was})").format(
            was=was, move=_json(move)
        )

    def _is_free(self, to: Path, moves: Moves) -> "sql.Composed":
        """Return a condition: after some moves each value on the way to a path is an object, or missing."""
        from psycopg import sql

        free = [sql.SQL("true").format()]
        for length in range(1, len(to)):
            on_the_way = to[:length]
            # a move that changes a part of an object leaves it an object
            value = self.after(on_the_way, _touching(on_the_way, moves, within=False))
            free.append(sql.SQL("coalesce(jsonb_typeof({}) = 'object', true)").format(value))
        return sql.SQL(" and ").join(free)


def _touching(path: Path, moves: Moves, *, within: bool = True) -> Moves:
    """Return the moves up to the last one of a value at the path, above it, or (if `within`) below it."""
    for number in range(len(moves), 0, -1):
        paths = [tuple(moves[number - 1][name]) for name in ("path", "to") if name in moves[number - 1]]
        if any(_leads(one, path) or (within and _leads(path, one)) for one in paths):
            return moves[:number]
    return []


def _leads(path: Path, to: Path) -> bool:
    """Return whether a path is a prefix of another, or the same."""
    return bool(path) and to[: len(path)] == path


def _json(value: object) -> str:
    """Return the text of JSON that was parsed with `parse_float=Decimal`: numbers keep their digits."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_json(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(map(_json, value))}]" if isinstance(value, list) else json.dumps(value)
