"""Fields of data in their newest shape without that shape: each is read where the stored version has it.

That costs a fraction of moving the whole document (`event_store_platform.moved`), and gives the same. A path is
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

# of so many places, or behind so long an expression, it would cost more than to move the document
MOST_LOOKS = 100
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
    found = _Pull().after(path, moves)
    if len(found.as_string()) > MOST_CHARACTERS:
        raise NotPulled
    return found


class _Pull:
    """Follows a field back; each rename may lead to several places."""

    def __init__(self) -> None:
        self._looks = 0

    def after(self, path: Path, moves: Moves) -> "sql.Composed":
        """Return what stands at a path after some moves."""
        from psycopg import sql

        self._looks += 1
        moves = _touching(path, moves)
        if self._looks > MOST_LOOKS or (not moves and any(_INDEX.fullmatch(key) for key in path)):
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
        # within a scalar nothing is
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
        """Return whether what stands on the way to a path, after some moves, is an object or nothing."""
        from psycopg import sql

        free = [sql.SQL("true").format()]
        for length in range(1, len(to)):
            on_the_way = to[:length]
            # what changes something within an object leaves it one
            value = self.after(on_the_way, _touching(on_the_way, moves, within=False))
            free.append(sql.SQL("coalesce(jsonb_typeof({}) = 'object', true)").format(value))
        return sql.SQL(" and ").join(free)


def _touching(path: Path, moves: Moves, *, within: bool = True) -> Moves:
    """Return the moves up to the last one of what is at a path, or leads there, or of something within it."""
    for number in range(len(moves), 0, -1):
        said = [tuple(moves[number - 1][name]) for name in ("path", "to") if name in moves[number - 1]]
        if any(_leads(one, path) or (within and _leads(path, one)) for one in said):
            return moves[:number]
    return []


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
