"""Upcasts for read models, which read all events in their newest shape, and the moves that decide what one reads."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import psycopg

from millrace.errors import MillraceError

Path = tuple[str, ...]
# decider, event, version, and a move to that version
Touching = tuple[str, str, int, Mapping[str, Any]]
# the names of the paths in a move
_PATHS = ("path", "to")


class Overtaken(MillraceError):
    """The store has an upcast that a drain did not read events with."""


@dataclass(frozen=True)
class Upcast:
    """The step from the data of one version of an event to the data of the next, as the store has it.

    The moves are a JSON text: a number in them keeps its digits.
    """

    decider: str
    event: str
    to_version: int
    moves: str

    @cached_property
    def digest(self) -> str:
        """The digest of the moves, as the store has it."""
        return hashlib.sha256(self.moves.encode()).hexdigest()

    @property
    def parsed(self) -> Sequence[Mapping[str, Any]]:
        """The moves, parsed."""
        return _parsed(self.moves)


# sensors need the same ones again and again, for each path of each model
@lru_cache(1_000)
def _parsed(moves: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(moves))


def as_option(upcasts: Iterable[Upcast]) -> str:
    """Return upcasts as the option `upcasts` of the source `event_log` takes them."""
    return "[{}]".format(
        ", ".join(
            f'{{"decider": {json.dumps(one.decider)}, "event": {json.dumps(one.event)},'
            f' "to_version": {one.to_version}, "moves": {one.moves}}}'
            for one in upcasts
        )
    )


def stored_upcasts(connection: psycopg.Connection) -> tuple[Upcast, ...]:
    """Return all upcasts that the store knows, in order."""
    rows = connection.execute(
        "select decider, event, to_version, moves::text from event_store.event_upcasts order by decider, event, to_version"
    )
    return tuple(Upcast(*row) for row in rows.fetchall())


def require_known(connection: psycopg.Connection, upcasts: Sequence[Upcast] | None) -> None:
    """Refuse to commit rows of events that were read with some upcasts if the store has others.

    Events of a version come only after its upcast: so none of them was read without it.

    Raises:
        Overtaken: The store has others.
    """
    rows = connection.execute("select decider, event, to_version, digest from event_store.event_upcasts").fetchall()
    if set(rows) != {(one.decider, one.event, one.to_version, one.digest) for one in upcasts or ()}:
        raise Overtaken(
            "The shape in which an event is read is another one since this drain began.",
            hint="Nothing is lost: the next drain reads the events again, in the new shape.",
        )


def touching(path: Path, upcasts: Iterable[Upcast]) -> list[Touching]:
    """Return the moves that decide the value at a path of events in their newest shape; for each event the last first.

    An empty path stands for all data. If a rename brings a value to the path, moves of the value's old path count.
    """
    found = []
    paths: dict[tuple[str, str], set[Path]] = {}
    for upcast in sorted(upcasts, key=lambda one: (one.decider, one.event, one.to_version), reverse=True):
        reached = paths.setdefault((upcast.decider, upcast.event), {path})
        for move in reversed(upcast.parsed):
            move_paths = [tuple(move[name]) for name in _PATHS if name in move]
            # one of two paths leads through the other
            if not any(one[: len(two)] == two[: len(one)] for one in reached for two in move_paths):
                continue
            found.append((upcast.decider, upcast.event, upcast.to_version, move))
            if move["move"] == "rename":
                source, target = move_paths
                reached |= {source + one[len(target) :] for one in reached if one[: len(target)] == target}
                if len(reached) > 100:  # each may bring a value from twice as many places
                    # any earlier move touches it
                    reached.add(())
                    reached.intersection_update({()})
    return found
