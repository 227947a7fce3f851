"""The readers of one process: they hear of new events together, and share each read.

One session listens. A thread of its own reads the end of the log after each notification; readers wait for that. What
follows a place is read once for all that stand there.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar, cast

import psycopg
from starlette.exceptions import HTTPException

from millrace.event_store.following import as_of_now
from millrace.event_store.platform import PlatformStore
from millrace.event_store.wake_ups import Wakeups
from millrace.patience import AWAY_S, LOOK_S, PATIENCE_S, PAUSE_S, POLL_S
from millrace.postgres.connecting import ANSWER_S, Connection, connect
from millrace.streams.offsets import Place
from millrace.streams.reading import Chunk, Ends, Feed, LogPlace, Numbers, StreamStore, Topic
from millrace.streams.snapshot import Snapshot, snapshot

# sessions for reads
SESSIONS = 4

Key = TypeVar("Key")
Found = TypeVar("Found")
Call: TypeAlias = Callable[[PlatformStore, LogPlace], Found]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """Messages that follow a place.

    Attributes:
        place: The place behind them.
        texts: The messages, after those of `rows`.
        up_to_date: Whether there were no more.
        seen: The end of the log that was known before they were read.
        rows: A read model's rows.
        resets: Whether the rows replace those that the reader has.
    """

    place: Place
    texts: Sequence[bytes]
    up_to_date: bool
    seen: LogPlace | None = None
    rows: Snapshot | None = None
    resets: bool = False

    def __bool__(self) -> bool:
        return bool(self.texts or self.rows)


class Followers:
    """Reads for all readers of a process. Its methods, but `stop`, belong to one event loop.

    Attributes:
        dsn: The event store.
        log: The end of the log that was heard of last; another object for each.
        reads: How often the store was read for readers.
    """

    def __init__(self, dsn: str) -> None:
        self.log: LogPlace | None = None
        self.reads = 0
        self.dsn = dsn
        self._chunks = dict[tuple[Topic, Numbers], asyncio.Task[Chunk]]()
        self._snapshots = dict[Topic, asyncio.Task[Snapshot]]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(SESSIONS, "reads of streams")
        self._idle = list[Connection]()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the log during the block."""
        self._loop = loop = asyncio.get_running_loop()
        listener = threading.Thread(target=self._listen, args=(loop,), name="streams")
        listener.start()
        try:
            yield
        finally:
            self.stop()
            await asyncio.to_thread(listener.join)
            self._threads.shutdown()
            for connection in self._idle:
                connection.close()

    @property
    def stopped(self) -> bool:
        """Whether all readers should end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Let all readers end; from any thread."""
        self._stop.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._tell, self.log)

    async def later(self, topic: Topic, batch: Batch, within_s: float) -> Batch | None:
        """Return the batch after one, possibly empty, once the log may have more; None if it does not grow in time."""
        if batch.up_to_date and not await self._grows(batch.seen, within_s, batch.place.partition):
            return None
        return await self.after(topic, batch.place)

    async def _grows(self, seen: LogPlace | None, within_s: float, partition: int | None = None) -> bool:
        """Wait until the log, or its partition, ends elsewhere than at `seen`; return whether it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self._grew(seen, partition) and not self.stopped:
                    await self._news.wait()
        return self._grew(seen, partition)

    def _grew(self, seen: LogPlace | None, partition: int | None) -> bool:
        log = self.log
        if seen is None or log is None or partition is None or seen.store != log.store:
            return log is not seen
        return log.marks[partition] != seen.marks[partition]

    async def place(self, topic: Topic, offset: str) -> Place | None:
        """Return the place of an offset; None for the beginning of a read model, which is its rows.

        Raises:
            HTTPException: There is no such stream, or no such offset.
        """
        given = None if offset in {"-1", "now"} else Place.parsed(offset)

        def call(store: PlatformStore, log: LogPlace) -> tuple[str, Ends]:
            return log.store, topic.ends(store, log)

        name, ends = await self._call(call)
        if given is None:
            begins = offset == "-1"
            at = ends.first if begins else ends.last
            return None if begins and isinstance(topic, Feed) else Place(name, at, ends.epoch, partition=ends.partition)
        return replace(_of_store(name, given), partition=ends.partition)

    async def after(self, topic: Topic, place: Place | None, *, alone: bool = False) -> Batch:
        """Return what follows a place: of a read model from the beginning, and where its rows were replaced, the rows.

        Args:
            topic: What is read.
            place: The place; None for the beginning of a read model.
            alone: Read what is committed now; others may share a read until the log grows.

        Raises:
            HTTPException: The log does not go on there, or the rows are too many.
        """
        seen = self.log
        if place is None:
            return await self._rows(cast("Feed", topic), resets=False)
        chunk = await self._chunk(topic, place, alone=alone)
        if chunk.epoch > place.epoch:
            return await self._rows(cast("Feed", topic), chunk.epoch, resets=True)
        return Batch(place.after(chunk.at, chunk.offsets), chunk.texts, chunk.up_to_date, seen)

    async def _rows(self, feed: Feed, epoch: int = 0, *, resets: bool) -> Batch:
        """Return the rows of an epoch, or of a later one, and all changes up to a place that has a text."""

        def call(store: PlatformStore, log: LogPlace) -> Snapshot:
            return snapshot(store, log, feed)

        while True:
            rows = await self._shared(self._snapshots, feed, call, keeps=False)
            if rows.place.epoch < epoch:
                continue  # one that had begun before
            place, texts = rows.place, list[bytes]()
            while True:
                seen = self.log
                chunk = await self._chunk(feed, place)
                if chunk.epoch > place.epoch:
                    epoch = chunk.epoch
                    break
                texts += (text for offset, text in chunk.messages if text and offset not in place.passed)
                place = place.after(chunk.at, chunk.offsets)
                if not place.passed:
                    return Batch(place, texts, chunk.up_to_date, seen, rows, resets)
                if chunk.up_to_date and not await self._grows(seen, PATIENCE_S):
                    raise HTTPException(503, "No sequencer gives events their positions: millrace run sequencer.")

    async def _chunk(self, topic: Topic, place: Place, *, alone: bool = False) -> Chunk:
        def call(store: PlatformStore, log: LogPlace) -> Chunk:
            _of_store(log.store, place)
            return topic.read(store, log, place.at)

        if alone:
            return await self._call(call)
        return await self._shared(self._chunks, (topic, place.at), call, keeps=True)

    async def _shared(self, kept: dict[Key, asyncio.Task[Found]], key: Key, call: Call[Found], *, keeps: bool) -> Found:
        """Return the result of a call for all that ask for it while it runs; with `keeps`, until there are news."""
        task = kept.get(key)
        if task is None:
            task = kept[key] = asyncio.create_task(self._call(call))

            def ended(done: asyncio.Task[Found]) -> None:
                if (done.exception() or not keeps) and kept.get(key) is done:
                    del kept[key]

            task.add_done_callback(ended)
        # a reader that goes away does not end the read of others
        return await asyncio.shield(task)

    async def _call(self, call: Call[Found]) -> Found:
        self.reads += 1
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._in_thread, call)

    def _in_thread(self, call: Call[Found]) -> Found:
        """Run a call on a session of its own, once more if that was lost."""
        for again in (True, False):
            connection: Connection | None = None
            try:
                with suppress(IndexError):
                    connection = self._idle.pop()
                connection = connection or self._connected()
                with as_of_now(connection):
                    found = call(PlatformStore(connection), StreamStore(connection).log_place())
            except psycopg.OperationalError:
                if connection is None or not connection.closed or not again:
                    raise
                # those that idle are lost, too
                while self._idle:
                    self._idle.pop().close()
            else:
                return found
            finally:
                if connection is not None and not connection.closed:
                    self._idle.append(connection)
        raise AssertionError

    def _connected(self) -> Connection:
        connection = connect(self.dsn, answer_s=ANSWER_S, stop=self._stop)
        # times in rows have the texts that they have in feeds
        connection.execute(f"set statement_timeout = {1000 * AWAY_S}; set timezone to 'UTC'")
        return connection

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        connection: Connection | None = None
        last: LogPlace | None = None
        with Wakeups(self.dsn) as wake_ups:
            while not self.stopped:
                try:
                    connection = connection or connect(self.dsn, answer_s=ANSWER_S, stop=self._stop)
                    found = StreamStore(connection).log_place()
                except psycopg.Error as error:
                    logger.warning("The event store does not answer: %s", error)
                    if connection is not None:
                        connection.close()
                    connection = None
                    self._stop.wait(LOOK_S)
                    continue
                if found != last:
                    last = found
                    loop.call_soon_threadsafe(self._tell, found)
                    # what comes meanwhile is told together: each telling wakes all readers
                    self._stop.wait(POLL_S)
                wake_ups.wait(PAUSE_S, self._stop)
        if connection is not None:
            connection.close()

    def _tell(self, log: LogPlace | None) -> None:
        self.log = log
        self._chunks.clear()
        self._news.set()
        self._news = asyncio.Event()


def _of_store(store: str, place: Place) -> Place:
    if place.store != store:
        raise HTTPException(
            410, "The offset is of another store, or of this one before it was restored: begin with -1."
        )
    return place
