"""Messages as changes, for tests of decoding."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.changes import ChangeDecoder
from millrace.capture.decoding.pgoutput import LogicalMessage, Lsn
from tests.support.capturing.pgoutput_bytes import INT4, TEXT, begin, commit, encode, relation
from tests.support.capturing.sources import Source

T = relation(("id", INT4), ("note", TEXT))
FULL = relation(("id", INT4), ("note", TEXT), identity="f")


def decoder(*tables: CapturedTable) -> ChangeDecoder:
    return ChangeDecoder(tables or (CapturedTable("t"),), "shop", 3, 1000)


def decoded(*raw: bytes, tables: Iterable[CapturedTable] = ()) -> list[Change]:
    return both_ways([begin(), *raw, commit()], tables)


def streamed(source: Source, *tables: CapturedTable) -> list[Change]:
    return both_ways(list(source.take()), tables)


def both_ways(messages: Sequence[bytes], tables: Iterable[CapturedTable]) -> list[Change]:
    """Decode messages one by one and together; assert equal changes and return them."""
    declared = tuple(tables)
    one_by_one, together = decoder(*declared), decoder(*declared)
    changes = [change for message in messages for change in one_by_one.feed(message)]
    assert together.feed_all(messages) == changes
    return changes


def annotated(content: bytes, prefix: str = "millrace.annotations", *, transactional: bool = True) -> bytes:
    return encode(LogicalMessage(transactional, Lsn(1), prefix, content))


def data(change: Change) -> dict[str, Any]:
    assert change.data is not None
    assert (change.fault, change.raw, change.relation) == (None, None, None)
    found: dict[str, Any] = json.loads(change.data)
    return found


def body(change: Change) -> dict[str, Any]:
    """Return the data without the keys that every change has."""
    shared = {"commit_lsn", "commit_idx", "xid", "committed_at", "source"}
    found = data(change)
    assert shared <= found.keys()
    return {key: value for key, value in found.items() if key not in shared}


def moves(changes: Iterable[Change]) -> list[tuple[str, str | None, dict[str, Any]]]:
    return [(change.action, change.decider_id, body(change)) for change in changes]
