"""Server-sent events, as `EventSource` and `curl -N` read them."""

import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import psycopg
from starlette.exceptions import HTTPException

from millrace.errors import MillraceError
from millrace.patience import PATIENCE_S, WATCH_S
from millrace.streams.followers import Batch, Followers
from millrace.streams.reading import Topic
from millrace.streams.snapshot import BETWEEN

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store, no-cache", "X-Accel-Buffering": "no"}
RESET = b'{"headers":{"control":"reset"}}'
# cursors of the protocol count intervals of 20 seconds since a day
INTERVAL_S = 20
FIRST_DAY = datetime(2024, 10, 9, tzinfo=UTC).timestamp()
JITTER = 180
# digits of a cursor that count
WIDEST = 15


def pieces(batch: Batch) -> Iterator[bytes]:
    """Yield the messages of a batch, with `BETWEEN` between them."""
    between = b""
    rows = batch.rows.pieces() if batch.rows else ()
    for part in ([RESET] if batch.resets else (), rows, [BETWEEN.join(batch.texts)] if batch.texts else ()):
        for number, piece in enumerate(part):
            yield piece if number else between + piece
            between = BETWEEN


def cursor(given: str | None) -> str:
    """Return the cursor of now, beyond the one that a client gives."""
    now = int((time.time() - FIRST_DAY) // INTERVAL_S)
    if given and given.isascii() and given.isdecimal() and now <= int(given[:WIDEST]):
        return str(int(given[:WIDEST]) + random.randint(1, JITTER))  # noqa: S311 - spreads caches
    return str(now)


async def events(followers: Followers, topic: Topic, batch: Batch, given: str | None) -> AsyncIterator[bytes]:
    """Yield a batch and all that follows, for a minute: then rights are asked for again.

    Args:
        followers: Where it is read.
        topic: What is read.
        batch: The first one.
        given: The client's cursor.
    """
    until = time.monotonic() + PATIENCE_S
    yield b"retry: 1000\n\n"
    told, quiet = "", True
    while True:
        if batch:
            yield b"event: data\ndata:["
            for piece in pieces(batch):
                yield piece.replace(b"\n", b"\ndata:")
            yield b"]\n\n"
        if batch or (quiet and str(batch.place) != told):
            told = str(batch.place)
            yield _control(batch, given)
        elif quiet:
            yield b":\n\n"
        left = until - time.monotonic()
        if left <= 0 or followers.stopped:
            return
        try:
            later = await followers.later(topic, batch, min(WATCH_S, left))
        except (HTTPException, MillraceError, psycopg.Error):
            # the client comes again with its offset, and hears why
            return
        quiet = later is None
        batch = replace(batch, texts=(), rows=None, resets=False) if later is None else later


def _control(batch: Batch, given: str | None) -> bytes:
    place = str(batch.place)
    content: dict[str, str | bool] = {"streamNextOffset": place, "streamCursor": cursor(given)}
    if batch.up_to_date:
        content["upToDate"] = True
    return b"event: control\ndata:%s\nid: %s\n\n" % (msgspec.json.encode(content), place.encode())
