"""Events, checks of the log, a second session that waits: one line each in a test of the store."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, LiteralString, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from millrace.archive.store import ArchiveStore
from millrace.errors import MillraceError
from millrace.event_schemas.model import declared_event
from millrace.event_store import Delivery, Event, Json
from millrace.event_store.platform import PlatformStore
from millrace.event_store.sql_functions import SqlFunctions
from millrace.examples.shop.events import SHOP
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchedEvent, BatchEvent, append_event, append_events

Connect = Callable[..., psycopg.Connection]
# for `str.translate`: digits as other scripts write them
ARABIC, FULL_WIDTH = ({ord("0") + n: zero + n for n in range(10)} for zero in (0x660, 0xFF10))
Result = TypeVar("Result")


class Killed(BaseException):
    """Stands for the end of the process."""


def register_orders(store: PlatformStore) -> PlatformStore:
    """Let the deciders order and invoice append placed, paid and shipped."""
    for decider in ("order", "invoice"):
        for event in ("placed", "paid", "shipped"):
            store.register_decider_event(decider, event, f"{decider} was {event}")
    return store


def register_shop_without_schemas(store: PlatformStore) -> None:
    """Let the example shop append its events with any data."""
    for each in filter(None, map(declared_event, SHOP)):
        store.register_decider_event(each.decider, each.event, each.description)


def append(
    store: PlatformStore,
    decider_id: str = "o-1",
    previous: UUID | None = None,
    *,
    event: str = "placed",
    decider: str = "order",
    event_id: UUID | None = None,
    data: Json = None,
    command_id: UUID | None = None,
    final: bool = False,
) -> Event:
    return append_event(
        store,
        event,
        event_id or uuid4(),
        decider,
        decider_id,
        {"n": 1} if data is None else data,
        command_id or uuid4(),
        previous,
        final=final,
    )


def new_event(decider_id: str = "o-1", *, event: str = "placed", decider: str = "order") -> BatchEvent:
    return BatchEvent(decider, decider_id, event, uuid4(), {"n": 1}, uuid4())


def append_to(store: PlatformStore, *decider_ids: str) -> list[BatchedEvent]:
    return append_events(store, [new_event(decider_id) for decider_id in decider_ids])


def pump(store: PlatformStore, view: str, *decider_ids: str) -> list[BatchedEvent]:
    """Append one event to each named stream; sequence and dispatch committed events, as a service's loop does."""
    appended = append_to(store, *decider_ids) if decider_ids else []
    store.sequence_events()
    store.dispatch_events(view)
    return appended


def ids_of_one_partition(connection: psycopg.Connection, number: int, partition: int = 0) -> list[str]:
    found = connection.execute(
        """
        select id from (select 'p-' || n as id from generate_series(1, 20000) n) candidates
        where event_store.stream_partition(id, (select count(*) from event_store.partitions)) = %s
        limit %s
        """,
        (partition, number),
    ).fetchall()
    assert len(found) == number
    return [row[0] for row in found]


def purge(store: PlatformStore, partition: int, below: int) -> int:
    """Remove a log partition's events below a position as if archived; return the number of events."""
    archive = ArchiveStore(store.connection)
    archive.mark_archived(partition, below)
    archive.raise_low_water_mark(partition, below)
    return archive.purge_events(partition)


def purge_all(store: PlatformStore) -> None:
    """Sequence, and remove all events of the log."""
    store.sequence_events()
    for info in store.partition_info():
        purge(store, info.partition, info.high_water_mark)


def unprepared(connection: psycopg.Connection) -> None:
    """Make the store behave as on a server without prepared transactions, where appends wake a sequencer."""
    connection.execute(
        "create or replace function event_store_private.notifies_appends() returns boolean language sql as 'select true'"
    )


def rows(connection: psycopg.Connection, query: LiteralString, *arguments: object) -> list[tuple[Any, ...]]:
    return connection.execute(query, arguments).fetchall()


def value(connection: psycopg.Connection, query: LiteralString, *arguments: object) -> Any:  # noqa: ANN401 - the query decides
    ((only,),) = rows(connection, query, *arguments)
    return only


def everything(store: SqlFunctions) -> dict[str, list[Any]]:
    return {
        name: store.connection.execute(
            sql.SQL("select t::text from {} t order by 1").format(sql.Identifier(schema, name))
        ).fetchall()
        for schema, name in rows(
            store.connection,
            "select schemaname, tablename from pg_tables where schemaname in ('event_store', 'event_store_keys', 'read_models')",
        )
        if name != "sequencer"  # it has the time of the last search for new events
    }


def append_many(connection: psycopg.Connection, number: int, prefix: str = "many") -> None:
    """Append `number` first events, faster than one by one from Python."""
    connection.execute(
        """
        select from event_store.append_events((
          select jsonb_agg(jsonb_build_object(
            'decider', 'order', 'decider_id', %s || n, 'event', 'placed', 'event_id', gen_random_uuid(),
            'command_id', gen_random_uuid(), 'data', '{}'::jsonb
          )) from generate_series(1, %s) n
        ))
        """,
        (prefix, number),
    )


def buffers(connection: psycopg.Connection, query: LiteralString, *arguments: object) -> int:
    """Run a query and count the pages that it and its functions read."""
    explained = value(connection, "explain (analyze, buffers, format json) " + query, *arguments)
    plan = explained[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def reading_more(
    connection: psycopg.Connection, most: Mapping[LiteralString, int], *arguments: object
) -> dict[LiteralString, int]:
    """Return those queries that read more pages than stated, with the pages; each query gets the same arguments."""
    for _ in range(2):  # the first call of a session reads the catalog too
        read = {query: buffers(connection, query, *(arguments if "%s" in query else ())) for query in most}
    return {query: pages for query, pages in read.items() if pages > most[query]}


def give_to_read_model(connection: psycopg.Connection, view: str) -> None:
    """Make a view belong to a read model `m` without tables."""
    connection.execute(
        "insert into read_models.declarations (model, version, view, fingerprint, serves, unbuilt)"
        " values ('m', 1, %s, '', true, '{}')",
        (view,),
    )


def set_clock(connection: psycopg.Connection, time_: str) -> None:
    """Set the store's clock for this session; '' returns to the wall clock."""
    connection.execute("select set_config('event_store.clock', %s, false)", (time_,))


def move_clock(connection: psycopg.Connection, *, by_s: float) -> None:
    """Stop the clock of all future sessions, of other processes too, at `by_s` seconds from now."""
    connection.execute(
        sql.SQL("alter database {} set event_store.clock = {}").format(
            sql.Identifier(connection.info.dbname), str(datetime.now(UTC) + timedelta(seconds=by_s))
        )
    )


def take_over(former: PlatformStore, holder: PlatformStore, view: str = "v") -> tuple[Delivery, Delivery]:
    """Let one session's lock expire and another session get its event; return both deliveries."""
    set_clock(former.connection, "2030-01-01 00:00:00+00")
    (late,) = former.lease_events(view, 1, 60)
    for store in (former, holder):
        set_clock(store.connection, "2030-01-01 00:01:00+00")
    (held,) = holder.lease_events(view, 1, 600)
    assert (held.offset, held.attempt) == (late.offset, late.attempt + 1)
    return late, held


def with_odd_settings(dsn: str) -> str:
    """Return the connection string of sessions with unusual formats of texts and times."""
    return f"{dsn}&options=-cclient_encoding%3Dlatin1%20-cdatestyle%3DGerman%20-ctimezone%3DAsia/Kathmandu"


def refusal(error: type[MillraceError], work: Callable[[], object]) -> MillraceError:
    with pytest.raises(error) as refused:
        work()
    assert refused.value.detail
    assert refused.value.hint
    return refused.value


@dataclass(frozen=True)
class LogEntry:
    partition: int
    position: int
    offset: int
    decider: str
    decider_id: str
    event_id: UUID
    previous_id: UUID | None


def read_log(connection: psycopg.Connection) -> list[LogEntry]:
    return [
        LogEntry(*row)
        for row in rows(
            connection,
            """
            select l.partition, l.position, l."offset", e.decider, e.decider_id, e.event_id, e.previous_id
            from event_store.event_log l left join event_store.events e using ("offset")
            order by l.partition, l.position
            """,
        )
    ]


def assert_log_holds_every_event_once(connection: psycopg.Connection) -> None:
    """Assert that every committed event is in the log once, and that the checks of `millrace verify` find no fault."""
    # imported here because it imports Arrow, which few tests of the store need
    from millrace.operations.verification.checks import Report, Watcher, check_log

    report = Report()
    check_log(connection, report, Watcher())
    assert report.faults == []
    stored = value(connection, "select count(*) from event_store.events")
    marks = value(connection, "select sum(high_water_mark - earliest_position) from event_store.partitions")
    assert (report.positions, report.events) == (stored, stored) == (marks, marks)


def assert_locks_know_versions(connection: psycopg.Connection) -> None:
    """Assert that each lock's version divides the events of its stream as its offset does."""
    wrong: LiteralString = """
        select k.view, e.decider_id, e."offset", e.version, k.last_offset, k.last_version
        from event_store.stream_locks k
        join event_store.events e using (decider, decider_id)
        where (e.version > k.last_version) <> (e."offset" > k.last_offset)
    """
    assert rows(connection, wrong) == []


def assert_dense_and_ordered(log: Iterable[LogEntry]) -> None:
    """Assert that partitions count 0, 1, 2, …, events follow their predecessors, and streams keep their partition."""
    seen: dict[int, int] = {}
    heads: dict[tuple[str, str], tuple[UUID, int]] = {}
    for entry in log:
        assert entry.position == seen.get(entry.partition, 0)
        seen[entry.partition] = entry.position + 1
        head = heads.get((entry.decider, entry.decider_id))
        assert entry.previous_id == (head and head[0])
        assert head is None or head[1] == entry.partition
        heads[entry.decider, entry.decider_id] = entry.event_id, entry.partition


def assert_rising(offsets: Iterable[int]) -> None:
    assert all(a < b for a, b in pairwise(offsets))


def start(work: Callable[[], Result]) -> Future[Result]:
    """Do the work in its own thread, which never keeps pytest from ending."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def at_once(works: Iterable[Callable[[], Result]]) -> list[Future[Result]]:
    """Run all works in threads that start together; return their futures when all have ended."""
    todo = list(works)
    barrier = threading.Barrier(len(todo))

    def together(work: Callable[[], Result]) -> Callable[[], Result]:
        def run() -> Result:
            barrier.wait(patience())
            return work()

        return run

    futures = [start(together(work)) for work in todo]
    for future in futures:
        future.exception(patience() * 2)
    return futures


def wait_blocked(observer: psycopg.Connection, pid: int) -> None:
    wait_until(
        lambda: rows(observer, "select wait_event_type from pg_stat_activity where pid = %s", pid) == [("Lock",)],
        f"session {pid} waits for a lock",
    )


def start_blocked(
    observer: SqlFunctions, session: SqlFunctions | psycopg.Connection, work: Callable[[], Result]
) -> Future[Result]:
    """Do the work in a thread, and return when its session waits for another session's lock."""
    future = start(work)
    connection = session if isinstance(session, psycopg.Connection) else session.connection
    wait_blocked(observer.connection, connection.info.backend_pid)
    return future


@contextmanager
def away(server: EmbeddedPostgres, database: str) -> Iterator[None]:
    """Close a database during the block, as when a server restarts: sessions are cut, new ones refused."""
    allow = sql.SQL("alter database {} allow_connections {}")
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        admin.execute(allow.format(sql.Identifier(database), sql.Literal(False)))
        try:
            ended = "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s"
            admin.execute(ended, (database,))
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(database), sql.Literal(True)))


def terminate(observer: psycopg.Connection, pid: int) -> None:
    """End a session as `kill` would, and wait until it is gone."""
    observer.execute("select pg_terminate_backend(%s)", (pid,))
    wait_until(lambda: not rows(observer, "select from pg_stat_activity where pid = %s", pid), f"session {pid} ended")


def end_transaction(observer: SqlFunctions, session: SqlFunctions | psycopg.Connection, how: str) -> None:
    """Commit, roll back or kill another session."""
    connection = session if isinstance(session, psycopg.Connection) else session.connection
    if how == "kill":
        terminate(observer.connection, connection.info.backend_pid)
    else:
        getattr(connection, how)()
