"""The source database as a stream: its connection, the slot, and the messages that the slot holds.

Belongs here: what is asked of any logical slot. Not here: what is published (`publication`), the rows that are there already
(`source_chunks`), what messages mean (`captured_changes`).

Reading and consuming are two calls: `peek` takes nothing away, `advance` gives up what is stored elsewhere by then.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import TypeVar, cast

import psycopg
from psycopg.errors import (
    Diagnostic,
    ObjectInUse,
    ObjectNotInPrerequisiteState,
    QueryCanceled,
    UndefinedFile,
    UndefinedObject,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.errors import MillraceError, Unreachable

Result = TypeVar("Result")

# how long somebody else may hold the slot: a session that was killed still ends its work
BUSY_S = 10.0
# one by one takes twice as long; more at once gains little, and messages may be large
_ROWS_AT_ONCE = 20

# The server writes values as text for the session that reads them.
_SETTINGS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    # an error and not a part of the rows, where a policy hides some
    "row_security": "off",
    # peek listens to warnings
    "client_min_messages": "warning",
    "synchronous_commit": "local",
    "lock_timeout": "10s",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "10min",
}


class SlotBusy(MillraceError):
    """Somebody else holds the slot."""


class SlotLost(MillraceError):
    """The slot is gone, or the source removed what it had not given out yet."""


class PublicationMissing(MillraceError):
    """There is no such publication, or there was none for some of the changes."""


@dataclass(frozen=True)
class SlotState:
    """A slot as the source sees it.

    Attributes:
        slot: Its name.
        plugin: What decodes for it.
        database: Whose changes it holds.
        active_pid: The session that reads it now.
        confirmed_flush_lsn: Up to where it was consumed.
        restart_lsn: From where on the source keeps its log for it.
        wal_status: reserved, extended, unreserved or lost.
        invalidation_reason: Why it is lost, from PostgreSQL 17 on.
        safe_wal_size: How many bytes the source may write until it is in danger; None where there is no limit.
        inactive_since: Since when nobody reads it, from PostgreSQL 17 on.
        lag_bytes: How much of the log it has not been consumed for.
        retained_bytes: How much of the log the source keeps for it.
    """

    slot: str
    plugin: str
    database: str
    active_pid: int | None
    confirmed_flush_lsn: Lsn | None
    restart_lsn: Lsn | None
    wal_status: str | None
    invalidation_reason: str | None
    safe_wal_size: int | None
    inactive_since: datetime | None
    lag_bytes: int | None
    retained_bytes: int | None

    @property
    def lost(self) -> str | None:
        """Why nothing can be read from it any more; None if it can."""
        if self.invalidation_reason:
            return self.invalidation_reason
        return "the source removed log that it needs" if self.wal_status == "lost" or self.restart_lsn is None else None


@dataclass(frozen=True)
class SourceIdentity:
    """Which database this is: a copy of it has the same identifier, a promoted one another timeline."""

    system_identifier: str
    database: str
    timeline: int


def connect_source(dsn: str) -> psycopg.Connection:
    """Open an autocommit connection whose values have the text form that all of change capture uses.

    Raises:
        Unreachable: The server does not answer.
    """
    try:
        connection = psycopg.connect(dsn, autocommit=True, connect_timeout=10)
        with connection.cursor() as cursor:
            cursor.execute(
                "select set_config(name, setting, false) from unnest(%s::text[], %s::text[]) as settings (name, setting)",
                (list(_SETTINGS), list(_SETTINGS.values())),
            )
    except psycopg.OperationalError as error:
        raise Unreachable(
            "The source database does not answer.",
            detail=str(error).strip(),
            hint="Check the source's connection string.",
        ) from error
    return connection


def source_identity(connection: psycopg.Connection) -> SourceIdentity:
    """Tell which database this is."""
    row = connection.execute(
        """
        select system_identifier::text, current_database(), ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int
        from pg_control_system()
        """
    ).fetchone()
    assert row is not None
    return SourceIdentity(*row)


def flush_lsn(connection: psycopg.Connection) -> tuple[Lsn, datetime]:
    """Tell up to where the source's log is safe on its disk, and a time of its clock before that."""
    # in this order: what was told to have committed by then is below the position
    row = connection.execute("select clock_timestamp(), pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[1]), row[0]


def next_xid(connection: psycopg.Connection) -> int:
    """Tell the first transaction id, of 64 bits, that no transaction of the source has yet."""
    row = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
    assert row is not None
    return int(row[0])


def oldest_xid(connection: psycopg.Connection) -> int:
    """Tell the first transaction id, of 64 bits, whose transaction has not ended."""
    row = connection.execute("select pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()
    assert row is not None
    return int(row[0])


def oldest_transaction(connection: psycopg.Connection) -> str | None:
    """Tell which open transaction of the server took its id first, in words; None if our role sees none."""
    row = connection.execute(
        """
        select whose
        from (
          select
            backend_xid,
            format('the transaction of session %s (%s in database %s, since %s)', pid, usename, datname, date_trunc('second', xact_start))
          from pg_stat_activity
          where backend_xid is not null
          union all
          select
            transaction,
            format('prepared transaction %L (%s in database %s, since %s)', gid, owner, database, date_trunc('second', prepared))
          from pg_prepared_xacts
        ) open (xid, whose)
        order by age(xid) desc
        limit 1
        """
    ).fetchone()
    return None if row is None else str(row[0])


def create_slot(connection: psycopg.Connection, slot: str) -> Lsn:
    """Make a slot; return the position from which on it holds every commit. Its publication is there before.

    Waits for the transactions that are open on the source.

    Raises:
        SlotBusy: One of them did not end in a minute.
        psycopg.errors.DuplicateObject: There is such a slot.
    """
    try:
        row = connection.execute(
            "select lsn::text from pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,)
        ).fetchone()
    except QueryCanceled as error:
        raise SlotBusy(
            f"Slot {slot} cannot be made while other transactions are open on the source.",
            detail=str(error),
            hint="Look for long transactions in pg_stat_activity; try again when they have ended.",
        ) from error
    assert row is not None
    return Lsn.parse(row[0])


def drop_slot(connection: psycopg.Connection, slot: str) -> None:
    """Remove a slot, and with it all that it holds; do nothing if there is none.

    Raises:
        SlotBusy: Somebody reads it for longer than a few seconds.
    """

    def drop() -> None:
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", (slot,)
        )

    with suppress(UndefinedObject):  # somebody else was first
        _patiently(slot, drop)


def slot_state(connection: psycopg.Connection, slot: str) -> SlotState | None:
    """Look at a slot; None if there is none."""
    # columns that this version of the server does not have are absent
    row = connection.execute(
        """
        select
          to_jsonb(s),
          pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.confirmed_flush_lsn)::bigint,
          pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn)::bigint
        from pg_replication_slots s
        where s.slot_name = %s
        """,
        (slot,),
    ).fetchone()
    if row is None:
        return None
    seen, lag, retained = row
    since = seen.get("inactive_since")
    return SlotState(
        slot=slot,
        plugin=seen["plugin"],
        database=seen["database"],
        active_pid=seen["active_pid"],
        confirmed_flush_lsn=_lsn(seen["confirmed_flush_lsn"]),
        restart_lsn=_lsn(seen["restart_lsn"]),
        wal_status=seen["wal_status"],
        invalidation_reason=seen.get("invalidation_reason"),
        safe_wal_size=seen["safe_wal_size"],
        inactive_since=datetime.fromisoformat(since) if since else None,
        lag_bytes=lag,
        retained_bytes=retained,
    )


@contextmanager
def peek(
    connection: psycopg.Connection, slot: str, publication: str, limit_changes: int | None = None
) -> Iterator[Iterator[bytes]]:
    """Read what the slot holds, message by message, without consuming it.

    Whole transactions only: it ends with the first one in which `limit_changes` messages are reached. The server keeps what it found on
    its disk where it is much; here a few messages are in memory. Nothing else can be asked on the connection meanwhile.

    Raises:
        SlotBusy: Somebody else reads the slot for longer than a few seconds.
        SlotLost: The slot is gone, or is no longer good.
        PublicationMissing: There is no such publication, or there was none at the time of some changes.
    """
    if connection.execute("select from pg_publication where pubname = %s", (publication,)).fetchone() is None:
        raise _no_publication(publication, f"database {connection.info.dbname} has none of this name")
    warnings: list[str] = []

    def note(diagnostic: Diagnostic) -> None:
        # from PostgreSQL 18 on the server warns and goes on without its changes; before, it refuses
        if diagnostic.sqlstate == ObjectNotInPrerequisiteState.sqlstate:
            warnings.append(str(diagnostic.message_primary))

    connection.add_notice_handler(note)
    try:
        opened, first, rest = _patiently(slot, lambda: _peek(connection, slot, publication, limit_changes))
        with opened:
            if warnings:
                raise _no_publication(publication, warnings[0])
            yield (row[0] for row in chain(first, rest))
    except (UndefinedObject, UndefinedFile, ObjectNotInPrerequisiteState) as error:
        raise _reason(connection, slot, publication, error) from error
    finally:
        connection.remove_notice_handler(note)


def advance(connection: psycopg.Connection, slot: str, lsn: Lsn) -> None:
    """Consume what committed before `lsn`, the end of a transaction or an idle source's `flush_lsn`; never goes back.

    A source that crashes may give out again what was consumed shortly before.

    Raises:
        SlotBusy: Somebody else reads the slot for longer than a few seconds.
        SlotLost: The slot is gone, or is no longer good.
    """

    def move() -> None:
        state = slot_state(connection, slot)
        if state is None or state.lost:
            raise _lost(slot, state, None)
        if state.confirmed_flush_lsn is not None and state.confirmed_flush_lsn >= lsn:
            return
        with connection.transaction():
            connection.execute("set local statement_timeout = 0")
            connection.execute("select pg_replication_slot_advance(%s, %s::pg_lsn)", (slot, str(lsn)))

    try:
        _patiently(slot, move)
    except (UndefinedObject, UndefinedFile, ObjectNotInPrerequisiteState) as error:
        raise _reason(connection, slot, None, error) from error


def _peek(
    connection: psycopg.Connection, slot: str, publication: str, limit_changes: int | None
) -> tuple[ExitStack, list[tuple[bytes]], Iterator[tuple[bytes]]]:
    """Begin to read; the server decodes everything before it gives the first row, and what fails fails there."""
    quoted = publication.replace('"', '""')
    with ExitStack() as opening:
        opening.enter_context(connection.transaction())
        connection.execute("set local statement_timeout = 0")
        cursor = opening.enter_context(connection.cursor(binary=True))
        stream = cursor.stream(
            "select data from pg_logical_slot_peek_binary_changes(%s, null, %s, 'proto_version', '1',"
            " 'publication_names', %s, 'messages', 'true')",
            (slot, limit_changes, f'"{quoted}"'),
            size=_ROWS_AT_ONCE,
        )
        rows = opening.enter_context(closing(cast(Generator[tuple[bytes], None, None], stream)))
        first = list(islice(rows, 1))
        opened = opening.pop_all()
    return opened, first, rows


def _patiently(slot: str, work: Callable[[], Result]) -> Result:
    """Do the work, again while somebody else holds the slot."""
    retrying = Retrying(
        retry=retry_if_exception_type(ObjectInUse),
        wait=wait_exponential(multiplier=0.05, max=1),
        stop=stop_after_delay(BUSY_S),
        reraise=True,
    )
    try:
        return retrying(work)
    except ObjectInUse as error:
        raise SlotBusy(
            f"Somebody else reads slot {slot}.",
            detail=str(error),
            hint="Only one capture may read a slot: stop the other one.",
        ) from error


def _reason(
    connection: psycopg.Connection, slot: str, publication: str | None, error: psycopg.Error
) -> MillraceError | psycopg.Error:
    """Why reading a slot failed; the error itself if that has to do with neither slot nor publication."""
    state = slot_state(connection, slot)
    if state is None or state.lost or isinstance(error, UndefinedFile):
        return _lost(slot, state, error)
    if publication is not None and isinstance(error, UndefinedObject):
        return _no_publication(publication, str(error))
    return error


def _lost(slot: str, state: SlotState | None, error: psycopg.Error | None) -> SlotLost:
    return SlotLost(
        f"Slot {slot} holds no changes any more.",
        detail="there is no such slot" if state is None else state.lost or str(error),
        hint="What changed since it was last read is in no slot: begin the capture anew, with a new slot.",
    )


def _no_publication(publication: str, detail: str) -> PublicationMissing:
    return PublicationMissing(
        f"There is no publication {publication}, or there was none when something changed.",
        detail=detail,
        hint="What changed without it is in no slot: begin the capture anew.",
    )


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)
