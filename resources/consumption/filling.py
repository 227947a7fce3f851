"""Fills the new tables of a rebuild, several at once, before one transaction swaps all of them in.

Belongs here: which connection fills which table, and that none stays where a rebuild fails. Not here: the statements
(`read_models.stored.merge`), the transaction of the swap (`commit`).

Each table is made and filled in a transaction of its own, whose rows nobody reads before the swap: of tables that a
transaction has not committed, another connection could fill none. A process that dies leaves the tables that it filled;
the next rebuild of their log partition drops them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress

import psycopg

from millrace.resources.archive.store import NO_TIME_LIMITS
from millrace.resources.connecting import connect
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.stored.merge import StagedRows, fill_child
from millrace.resources.read_models.stored.tables import drop_new_children

# a connection costs some milliseconds, as so many rows do
ROWS_OF_A_CONNECTION = 1_000


@contextmanager
def filled_children(
    dsn: str,
    connection: psycopg.Connection,
    model: ReadModel,
    partitions: Sequence[int],
    batch: int,
    staged: Sequence[StagedRows],
    connections: int,
) -> Iterator[Mapping[int, int]]:
    """Yield the rows of each log partition whose new table is filled from a batch's staged rows.

    If the block fails, the tables are dropped.

    Args:
        dsn: The event store.
        connection: The consumer's connection, outside of a transaction.
        model: The read model.
        partitions: The log partitions, whose leases the caller has.
        batch: The number of the batch.
        staged: The rows of each task attempt that counts.
        connections: On how many connections tables are filled at most.
    """
    # from before: of processes that died, or that lost their leases
    drop_new_children(connection, model, partitions, batch)
    rows = sum(each.rows for each in staged)
    side_by_side = min(connections, len(partitions), 1 + rows // ROWS_OF_A_CONNECTION)
    try:
        yield _fill(dsn, model, partitions, batch, staged, side_by_side)
    except BaseException:
        # if this fails, too, the next rebuild drops them
        with suppress(psycopg.Error):
            drop_new_children(connection, model, partitions, batch)
        raise


def _fill(
    dsn: str,
    model: ReadModel,
    partitions: Sequence[int],
    batch: int,
    staged: Sequence[StagedRows],
    connections: int,
) -> dict[int, int]:
    rows: dict[int, int] = {}
    # the next one is the last one of the list, whoever asks
    waiting = sorted(partitions, reverse=True)

    def fill(connection: psycopg.Connection) -> None:
        with suppress(IndexError):
            while True:
                partition = waiting.pop()
                rows[partition] = fill_child(connection, model, partition, batch, staged)

    with ExitStack() as opened:
        own = [opened.enter_context(connect(dsn))]
        # the server may have no more to give
        with suppress(psycopg.OperationalError):
            while len(own) < connections:
                own.append(opened.enter_context(connect(dsn)))
        for connection in own:
            connection.execute(NO_TIME_LIMITS)
        _side_by_side(own, fill, waiting.clear)
    return {partition: rows[partition] for partition in partitions}


def _side_by_side(
    connections: Sequence[psycopg.Connection], work: Callable[[psycopg.Connection], None], stop: Callable[[], None]
) -> None:
    """Let each connection work; where one fails, or this process is told to end, end the statements of all others."""
    with ThreadPoolExecutor(len(connections), thread_name_prefix="filling") as pool:
        futures = [pool.submit(work, connection) for connection in connections]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            stop()
            for connection in connections:
                with suppress(psycopg.Error):
                    connection.cancel_safe()
            raise
