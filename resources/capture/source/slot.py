"""A replication slot of the source, and the messages that it holds.

Belongs here: what is asked of any logical slot. Not here: the connection (`connection`), what is published
(`publication`), the rows that are there already (`chunks`), what messages mean (`decoding`).

Reading and consuming are two calls: `peek` takes nothing away; `advance` gives up what the caller has stored by then.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from math import inf
from typing import TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.errors import (
    CharacterNotInRepertoire,
    Diagnostic,
    ObjectInUse,
    ObjectNotInPrerequisiteState,
    QueryCanceled,
    UndefinedFile,
    UndefinedObject,
    UntranslatableCharacter,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from millrace.resources.capture.decoding.encodings import codec_of, recoded_message
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.source.connection import connect_source, oldest_transaction
from millrace.resources.connecting import Connection, unhurried
from millrace.resources.errors import MillraceError

Result = TypeVar("Result")

# How long to wait while somebody else holds the slot: the session of a killed reader still ends its work.
BUSY_S = 10.0
# Between two looks for whom a new slot waits
WAIT_S = 1.0
# whom one waits for that is not seen
UNSEEN = "a transaction that our role may not see"
# From this version on standbys can have slots of their primary.
FAILOVER_VERSION = 170000
# Messages that are fetched at a time. One by one takes twice as long; more gain little, and messages may be large.
_ROWS_AT_ONCE = 20


class SlotBusy(MillraceError):
    """Somebody else holds the slot."""


class SlotSlow(SlotBusy):
    """The source did not look into the slot in time: it decodes much, or waits for a standby."""


class SlotLost(MillraceError):
    """The slot is gone, or the source removed what it had not given out yet."""


class PublicationMissing(MillraceError):
    """The publication does not exist, or did not exist when some of the changes were made."""


@dataclass(frozen=True)
class SlotState:
    """A slot as the source sees it.

    Attributes:
        slot: Its name.
        plugin: What decodes for it.
        database: Whose changes it holds.
        active_pid: The session that reads it now.
        confirmed_flush_lsn: Up to where the slot was consumed.
        restart_lsn: From where on the source keeps its log for the slot.
        wal_status: reserved, extended, unreserved or lost.
        invalidation_reason: Why it is lost, from PostgreSQL 17 on.
        safe_wal_size: How many bytes the source may write until the slot is in danger; None where there is no limit.
        inactive_since: Since when nobody reads it, from PostgreSQL 17 on.
        failover: Whether a standby that synchronizes slots has it, too; None before PostgreSQL 17.
        lag_bytes: How much log lies behind `confirmed_flush_lsn`.
        retained_bytes: How much of the log the source keeps for it.
        xid_age: How many transactions ago the oldest one was whose dead rows of the catalog no vacuum may remove.
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
        """Whether the server still waits for the transactions that were open when it began to make it."""
        return self.confirmed_flush_lsn is None and self.active_pid is not None

    @property
    def lost(self) -> str | None:
        """Why nothing can be read from it any more; None if it can."""
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
        on_wait: Called about once a second with whom the server waits for, in words. What it raises ends the waiting.

    Raises:
        SlotBusy: Somebody on the source cancelled it.
        psycopg.errors.DuplicateObject: There is such a slot.
    """
    with ThreadPoolExecutor(1, "slot") as maker, ExitStack() as opened:
        making = maker.submit(_create, source, slot)
        looking: psycopg.Connection | None = None
        try:
            while not wait([making], WAIT_S).done:
                if looking is None and isinstance(source, Connection):
                    looking = opened.enter_context(connect_source(source.dsn))
                on_wait((looking and oldest_transaction(looking)) or UNSEEN)
        except BaseException:
            with suppress(psycopg.Error):
                source.cancel_safe()
            raise
    return making.result()


def _create(source: psycopg.Connection, slot: str) -> Lsn:
    query = sql.SQL("select lsn::text from pg_create_logical_replication_slot({}, 'pgoutput'{})").format(
        slot, sql.SQL(", failover => true" if source.info.server_version >= FAILOVER_VERSION else "")
    )
    try:
        with unhurried(source, inf), source.transaction():
            # it waits as for a lock
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
    """Remove a slot, and with it all that it holds; do nothing if there is none.

    Raises:
        SlotBusy: Somebody reads it for longer than a few seconds.
    """

    def drop() -> None:
        source.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", (slot,)
        )

    with suppress(UndefinedObject):  # somebody else was first
        _patiently(slot, drop)


def slot_state(source: psycopg.Connection, slot: str) -> SlotState | None:
    """Return a slot as the source sees it; None if there is none."""
    # as JSON: a column that this version of the server does not have is absent, and no error
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
    seen, lag, retained, xid_age = row
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
        failover=seen.get("failover"),
        lag_bytes=lag,
        retained_bytes=retained,
        xid_age=xid_age,
    )


@contextmanager
def peek(
    source: psycopg.Connection, slot: str, publication: str, limit_changes: int | None = None, within_s: float = 0
) -> Iterator[Iterator[bytes]]:
    """Read what the slot holds, message by message, without consuming it.

    It reads whole transactions, and ends with the first one that reaches `limit_changes` messages. A large result waits
    on the server's disk; here are only a few messages in memory. Until the `with` ends, the connection takes no other
    statement. With `within_s` the source has to begin to give within that time. Where a value is no text of its
    encoding, the server converts nothing: `recoded_message` marks the value.

    Raises:
        SlotBusy: Somebody else reads the slot for longer than a few seconds.
        SlotSlow: The source did not begin to give in time.
        SlotLost: The slot is gone, or is no longer good.
        PublicationMissing: The publication does not exist, or did not exist when some of the changes were made.
    """
    if source.execute("select from pg_publication where pubname = %s", (publication,)).fetchone() is None:
        raise _no_publication(publication, f"database {source.info.dbname} has none of this name")
    warnings: list[str] = []

    def note(diagnostic: Diagnostic) -> None:
        # PostgreSQL 18 and later warns of a missing publication and leaves its changes out; earlier ones refuse. A
        # standby that is waited for (synchronized_standby_slots) is warned of with the same code.
        said = str(diagnostic.message_primary)
        if diagnostic.sqlstate == ObjectNotInPrerequisiteState.sqlstate and publication in said:
            warnings.append(said)

    source.add_notice_handler(note)
    try:
        codec = None
        try:
            opened, first, rest = _patiently(slot, lambda: _peek(source, slot, publication, limit_changes, within_s))
        except (CharacterNotInRepertoire, UntranslatableCharacter):
            codec = codec_of(str(source.info.parameter_status("server_encoding")))
            opened, first, rest = _patiently(
                slot, lambda: _peek(source, slot, publication, limit_changes, within_s, converted=False)
            )
        with opened:
            if warnings:
                raise _no_publication(publication, warnings[0])
            messages = (row[0] for row in chain(first, rest))
            yield messages if codec is None else (recoded_message(message, codec) for message in messages)
    except (UndefinedObject, UndefinedFile, ObjectNotInPrerequisiteState) as error:
        raise _reason(source, slot, publication, error) from error
    finally:
        source.remove_notice_handler(note)


def advance(source: psycopg.Connection, slot: str, lsn: Lsn) -> None:
    """Consume what committed before `lsn`, the end of a transaction or an idle source's `flush_lsn`; never go back.

    A source that crashes may give out again what was consumed shortly before.

    Raises:
        SlotBusy: Somebody else reads the slot for longer than a few seconds.
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
        _patiently(slot, move)
    except (UndefinedObject, UndefinedFile, ObjectNotInPrerequisiteState) as error:
        raise _reason(source, slot, None, error) from error


def _peek(
    source: psycopg.Connection,
    slot: str,
    publication: str,
    limit_changes: int | None,
    within_s: float,
    *,
    converted: bool = True,
) -> tuple[ExitStack, list[tuple[bytes]], Iterator[tuple[bytes]]]:
    """Begin to read. The server decodes everything before it gives a row: errors of decoding are raised here."""
    quoted = publication.replace('"', '""')
    with ExitStack() as opening:
        opening.enter_context(unhurried(source))
        opening.enter_context(source.transaction())
        source.execute("select set_config('statement_timeout', %s, true)", (f"{int(within_s * 1000)}ms",))
        if not converted:
            source.execute("set local client_encoding = 'SQL_ASCII'")
        cursor = opening.enter_context(source.cursor(binary=True))
        stream = cursor.stream(
            "select data from pg_logical_slot_peek_binary_changes(%s, null, %s, 'proto_version', '1',"
            " 'publication_names', %s, 'messages', 'true')",
            (slot, limit_changes, f'"{quoted}"'),
            size=_ROWS_AT_ONCE,
        )
        rows = opening.enter_context(closing(cast(Generator[tuple[bytes], None, None], stream)))
        try:
            first = list(islice(rows, 1))
        except QueryCanceled as error:
            if not within_s:
                raise
            raise SlotSlow(
                f"The source did not look into slot {slot} within {within_s:g} s.",
                detail=str(error),
                hint="It decodes a large part of its log, or waits for a standby that synchronized_standby_slots names.",
            ) from error
        opened = opening.pop_all()
    return opened, first, rows


def _patiently(slot: str, work: Callable[[], Result]) -> Result:
    """Do the work; while somebody else holds the slot, try again for `BUSY_S`."""
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
    source: psycopg.Connection, slot: str, publication: str | None, error: psycopg.Error
) -> MillraceError | psycopg.Error:
    """Return why reading a slot failed; the error itself if it is about neither slot nor publication."""
    state = slot_state(source, slot)
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
