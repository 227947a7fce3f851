"""A read model's rows at one moment, as messages in a file: a slow reader holds no snapshot of the database."""

import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import psycopg
from msgspec import Raw
from psycopg import sql
from starlette.exceptions import HTTPException

from millrace.event_store.platform import PlatformStore
from millrace.read_models.stored.feed import key_text, stream_of
from millrace.read_models.stored.tables import listed
from millrace.streams.offsets import Place
from millrace.streams.reading import Feed, LogPlace, change_text

MOST_ROWS = 50_000
PIECE = 65_536
BETWEEN = b",\n"


@dataclass(frozen=True)
class Snapshot:
    """The rows, and the place that they are of.

    Attributes:
        place: The place. It has passed what the rows have already.
        file: The messages with `BETWEEN` between them; removed once no reader has it.
    """

    place: Place
    file: IO[bytes]

    def pieces(self) -> Iterator[bytes]:
        """Yield the messages' text in pieces; several readers may read at once."""
        at = 0
        while piece := os.pread(self.file.fileno(), PIECE, at):
            at += len(piece)
            yield piece


def snapshot(store: PlatformStore, log: LogPlace, feed: Feed) -> Snapshot:
    """Write a read model's rows into a file, in a transaction of one snapshot.

    Raises:
        HTTPException: The model has no feed, or too many rows.
    """
    place, connection = feed.place(store), store.connection
    table = sql.Identifier("read_models", feed.name)
    some = sql.SQL("select count(*) from (select from {} limit %s) r").format(table)
    if connection.execute(some, (MOST_ROWS + 1,)).fetchone() == (MOST_ROWS + 1,):
        raise HTTPException(
            413, f"The read model has more than {MOST_ROWS:,} rows: read the table read_models.{feed.name} instead."
        )
    query = sql.SQL("select {}, to_jsonb(r)::text from (select {} from {}) r").format(
        key_text(place.key), listed(place.columns), table
    )
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as its readers
    for number, (key, row) in enumerate(rows(connection, query)):
        text = change_text(feed.name, stream_of(key), "insert", Raw(row.encode()))
        file.write(BETWEEN + text if number else text)
    file.flush()
    found = Snapshot(Place(log.store, tuple(log.marks), place.epoch, frozenset(place.unsequenced)), file)
    weakref.finalize(found, file.close)
    return found


def rows(connection: psycopg.Connection, query: sql.Composed) -> Iterator[tuple[str, str]]:
    """Yield a query's rows, which need not fit into memory at once."""
    with connection.cursor("rows") as cursor:
        yield from cursor.execute(query)
