"""A replication slot of the source: making, moving and dropping it, its state, and why it refuses."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import TypeVar

import psycopg
from psycopg import sql
from psycopg.errors import (
    DataError,
    ObjectInUse,
    ObjectNotInPrerequisiteState,
    QueryCanceled,
    UndefinedFile,
    UndefinedObject,
)
from tenacity import RetryCallState

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.source.connection import connect_source, oldest_transaction
from millrace.errors import MillraceError
from millrace.patience import BUSY_S, PAUSE_S, while_held
from millrace.postgres.connecting import Connection, unhurried

Result = TypeVar("Result")

# named in place of a transaction that is waited for and not visible
UNSEEN = "a transaction that our role may not see"
# From this version on standbys can have slots of their primary.
FAILOVER_VERSION = 170000


class SlotBusy(MillraceError):
    """Another session holds the slot."""


class SlotSlow(SlotBusy):
    """The source did not look into the slot in time: it decodes much, or waits for a standby."""


class SlotLost(MillraceError):
    """The slot is gone, or the source removed log that it had not given out yet."""


class FilterFails(MillraceError):
    """The `where` of a captured table fails for a row, so the source cannot give any change from there on."""


class PublicationMissing(MillraceError):
    """The publication does not exist, or did not exist when some of the changes were made."""


@dataclass(frozen=True)
class SlotState:
    """A slot as the source sees it.

    Attributes:
        slot: Its name.
        plugin: Its output plugin.
        database: The database of its changes.
        active_pid: The session that reads it now.
        confirmed_flush_lsn: Up to where the slot was consumed.
        restart_lsn: From where on the source keeps its log for the slot.
        wal_status: reserved, extended, unreserved or lost.
        invalidation_reason: Why it is lost, from PostgreSQL 17 on.
        safe_wal_size: How many bytes the source may write until the slot is in danger; None without a limit.
        inactive_since: Since when no session reads it, from PostgreSQL 17 on.
        failover: Whether a standby that synchronizes slots has it, too; None before PostgreSQL 17.
        lag_bytes: How much log lies after `confirmed_flush_lsn`.
        retained_bytes: How much of the log the source keeps for it.
        xid_age: The age, in transactions, of the oldest dead catalog rows that vacuum may not remove.
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
    failover: bool | None
    lag_bytes: int | None
    retained_bytes: int | None
    xid_age: int | None

    @property
    def is_being_made(self) -> bool:
        """Whether the server still waits for the transactions that were open when it began to make the slot."""
        return self.confirmed_flush_lsn is None and self.active_pid is not None

    @property
    def lost(self) -> str | None:
        """Why the slot can no longer be read; None if it can."""
        if self.invalidation_reason:
            return self.invalidation_reason
        return "the source removed log that it needs" if self.wal_status == "lost" or self.restart_lsn is None else None


def create_slot(source: psycopg.Connection, slot: str, on_wait: Callable[[str], object] = lambda _: None) -> Lsn:
    """Make a slot; return the position from which on it holds every commit. Make its publication first.

    From PostgreSQL 17 on it is a failover slot: a standby that synchronizes slots has it, too. The server waits for the
    transactions that are open on the source, and then for those that began meanwhile, however long they take.

    Args:
        source: An autocommit connection to the source.
        slot: Its name.
        on_wait: Called about once a second with a text that names what the wait is for. An error in it ends the wait.

    Raises:
        SlotBusy: Another session on the source cancelled it.
        psycopg.errors.DuplicateObject: The slot exists.
    """
    with ThreadPoolExecutor(1, "slot") as maker, ExitStack() as opened:
        creation = maker.submit(_create, source, slot)
        observer: psycopg.Connection | None = None
        try:
            while not wait([creation], PAUSE_S).done:
                if observer is None and isinstance(source, Connection):
                    observer = opened.enter_context(connect_source(source.dsn))
                on_wait((observer and oldest_transaction(observer)) or UNSEEN)
        except BaseException:
            with suppress(psycopg.Error):
                source.cancel_safe()
            raise
    return creation.result()


def _create(source: psycopg.Connection, slot: str) -> Lsn:
    query = sql.SQL("select lsn::text from pg_create_logical_replication_slot({}, 'pgoutput'{})").format(
        slot, sql.SQL(", failover => true" if source.info.server_version >= FAILOVER_VERSION else "")
    )
    try:
        with unhurried(source, inf), source.transaction():
            # these limits would end its wait, which is like one for a lock
            source.execute("set local statement_timeout = 0")
            source.execute("set local lock_timeout = 0")
            row = source.execute(query).fetchone()
    except QueryCanceled as error:
        raise SlotBusy(
            f"Slot {slot} was not made.",
            detail=str(error),
            hint="It waits for the transactions that are open on the source: pg_stat_activity has them. Try again.",
        ) from error
    assert row is not None
    return Lsn.parse(row[0])


def drop_slot(source: psycopg.Connection, slot: str) -> None:
    """Remove a slot with everything that it holds; do nothing if there is none.

    Raises:
        SlotBusy: Another session reads it for longer than a few seconds.
    """

    def drop() -> None:
        source.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", (slot,)
        )

    with suppress(UndefinedObject):  # another session was first
        patiently(source, slot, drop)


def slot_state(source: psycopg.Connection, slot: str) -> SlotState | None:
    """Return a slot as the source sees it; None if there is none."""
    # as JSON: a column that this version of the server lacks is absent, and not an error
    row = source.execute(
        """
        select
          to_jsonb(s),
          pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.confirmed_flush_lsn)::bigint,
          pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn)::bigint,
          age(s.catalog_xmin)::bigint
        from pg_replication_slots s
        where s.slot_name = %s
        """,
        (slot,),
    ).fetchone()
    if row is None:
        return None
    fields, lag, retained, xid_age = row
    since = fields.get("inactive_since")
    return SlotState(
        slot=slot,
        plugin=fields["plugin"],
        database=fields["database"],
        active_pid=fields["active_pid"],
        confirmed_flush_lsn=_lsn(fields["confirmed_flush_lsn"]),
        restart_lsn=_lsn(fields["restart_lsn"]),
        wal_status=fields["wal_status"],
        invalidation_reason=fields.get("invalidation_reason"),
        safe_wal_size=fields["safe_wal_size"],
        inactive_since=datetime.fromisoformat(since) if since else None,
        failover=fields.get("failover"),
        lag_bytes=lag,
        retained_bytes=retained,
        xid_age=xid_age,
    )


def slot_limits(source: psycopg.Connection) -> tuple[str, ...]:
    """Return the source's settings that may remove a slot without a reader, a sentence each, with their values."""
    limits = source.execute(
        """
        -- not pg_settings, which is larger than a small work_mem
        select name, current_setting(name, true)
        from (values ('max_slot_wal_keep_size', '-1'), ('idle_replication_slot_timeout', '0')) s (name, never)
        where current_setting(name, true) <> never
        """
    )
    return tuple(
        f"{name} is {setting}: beyond that the source takes a slot that is not read" for name, setting in limits
    )


def advance(source: psycopg.Connection, slot: str, lsn: Lsn) -> None:
    """Consume what committed before `lsn`, the end of a transaction or an idle source's `flush_lsn`; never move back.

    A source that crashes may repeat what was consumed shortly before.

    Raises:
        SlotBusy: Another session reads the slot for longer than a few seconds.
        SlotLost: The slot is gone, or is no longer good.
    """

    def move() -> None:
        state = slot_state(source, slot)
        if state is None or state.lost:
            raise _lost(slot, state, None)
        if state.confirmed_flush_lsn is not None and state.confirmed_flush_lsn >= lsn:
            return
        with unhurried(source), source.transaction():
            source.execute("set local statement_timeout = 0")
            source.execute("select pg_replication_slot_advance(%s, %s::pg_lsn)", (slot, str(lsn)))

    try:
        patiently(source, slot, move)
    except (UndefinedObject, UndefinedFile, ObjectNotInPrerequisiteState) as error:
        raise why_refused(source, slot, None, error) from error


def reader_name(slot: str) -> str:
    """Return the `application_name` of the session in which the lease's owner reads a slot."""
    return slot


def patiently(source: psycopg.Connection, slot: str, work: Callable[[], Result], *, takes_over: bool = True) -> Result:
    """Do the work; while another session holds the slot, retry for `BUSY_S`.

    Args:
        source: A connection to the source.
        slot: The slot's name.
        work: The work that needs the slot.
        takes_over: Whether to end a hanging session of a former process of ours.

    Raises:
        SlotBusy: Another session holds it for longer.
    """

    def end_former(_: RetryCallState) -> None:
        if takes_over:
            source.execute(
                """
                select pg_terminate_backend(s.active_pid)
                from pg_replication_slots s
                join pg_stat_activity a on a.pid = s.active_pid and a.application_name = %s
                where s.slot_name = %s
                """,
                (reader_name(slot), slot),
            )

    # the session of a killed reader may still be ending
    try:
        return while_held(ObjectInUse, BUSY_S, on_retry=end_former)(work)
    except ObjectInUse as error:
        raise SlotBusy(
            f"Another session reads slot {slot}.",
            detail=str(error),
            hint="Only one capture may read a slot: stop the other one.",
        ) from error


def why_refused(
    source: psycopg.Connection, slot: str, publication: str | None, error: psycopg.Error
) -> MillraceError | psycopg.Error:
    """Return why the source does not give a slot's changes; another error is returned as it is."""
    try:
        state = slot_state(source, slot)
    except psycopg.OperationalError:
        return error
    if state is None or state.lost or isinstance(error, UndefinedFile):
        return _lost(slot, state, error)
    if publication is not None and isinstance(error, UndefinedObject):
        return no_publication(publication, str(error))
    if publication is not None and isinstance(error, DataError):
        filtered = source.execute(
            "select r.prrelid::regclass::text from pg_publication_rel r join pg_publication p on p.oid = r.prpubid"
            " where p.pubname = %s and r.prqual is not null order by 1",
            (publication,),
        )
        if tables := [name for (name,) in filtered]:
            return FilterFails(
                f"The source cannot decode its log: a where fails for a row, of {' or '.join(tables)}.",
                detail=str(error),
                hint=(
                    "The log keeps what was declared when the row changed. Declare a where that holds for every row, such as"
                    " case when n <> 0 then 100 / n > 5 end; then: millrace capture restart CAPTURE --reason WHY"
                ),
            )
    return error


def _lost(slot: str, state: SlotState | None, error: psycopg.Error | None) -> SlotLost:
    return SlotLost(
        f"Slot {slot} holds no changes any more.",
        detail="there is no such slot" if state is None else state.lost or str(error),
        hint="What changed since it was last read is in no slot: begin the capture anew, with a new slot.",
    )


def no_publication(publication: str, detail: str) -> PublicationMissing:
    """Return the error for a missing publication."""
    return PublicationMissing(
        f"There is no publication {publication}, or there was none when something changed.",
        detail=detail,
        hint="What changed without it is in no slot: begin the capture anew.",
    )


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)
