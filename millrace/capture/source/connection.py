"""The connections to a captured database, and queries that need no slot: its identity, its log position, its ids."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.conninfo import make_conninfo

from millrace.capture.decoding.pgoutput import Lsn
from millrace.errors import Unreachable
from millrace.patience import BUSY_S, PATIENCE_S, WATCH_S
from millrace.postgres.connecting import Connection, connect
from millrace.postgres.sessions import require_own_session

# The server writes values as text in the forms that the session sets.
_SETTINGS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    # if a policy hides rows, reading is an error instead of giving a part of them
    "row_security": "off",
    # `stream` listens to warnings
    "client_min_messages": "warning",
    "synchronous_commit": "local",
    "lock_timeout": f"{BUSY_S}s",
    "statement_timeout": f"{PATIENCE_S}s",
    "idle_in_transaction_session_timeout": "10min",
    # overrides limits that the role or the database has for applications
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
}
# decoding takes as long as it takes; a limit of the role would end it
_UNLIMITED = ("lock_timeout", "statement_timeout", "transaction_timeout")
WALSENDER_HINT = (
    "Its role needs `replication`, its server a free one of max_wal_senders, and the connection string has to lead to the"
    " server itself: poolers do not pass the replication protocol on."
)
# longer than any statement may take on the source
ANSWER_S = PATIENCE_S + WATCH_S


@dataclass(frozen=True)
class SourceIdentity:
    """Identifies a database. A copy of it has the same system identifier, a promoted copy another timeline."""

    system_identifier: str
    database: str
    timeline: int


def connect_source(dsn: str, stop: threading.Event | None = None) -> psycopg.Connection:
    """Open an autocommit connection; its session has the text forms that all of change capture reads.

    A call that gets no answer ends after `ANSWER_S`, and soon once `stop` is set.

    Raises:
        Unreachable: The server does not answer.
        SessionsShared: The connection goes through a pooler in transaction mode.
    """
    try:
        source = connect(dsn, answer_s=ANSWER_S, stop=stop, client_encoding="utf8")
        try:
            # before any setting, which would otherwise reach another client's session
            require_own_session(source, dsn, "source", "the capture's source")
        except BaseException:
            source.close()
            raise
        _set(source, _SETTINGS)
    except psycopg.OperationalError as error:
        raise Unreachable(
            "The source database does not answer.",
            detail=str(error).strip(),
            hint="Check the source's connection string.",
        ) from error
    return source


def connect_walsender(
    source: psycopg.Connection,
    stop: threading.Event | None = None,
    *,
    client_encoding: str = "utf8",
    application_name: str = "millrace",
) -> Connection:
    """Open a replication connection to the database of another connection of ours, at the same address.

    Args:
        source: The other connection.
        stop: Once set, ends calls that get no answer.
        client_encoding: The encoding that the server writes.
        application_name: The session's name on the server.

    Raises:
        psycopg.OperationalError: The server does not answer, has no free sender, or our role may not replicate.
    """
    info = source.info
    same: dict[str, str | int | None] = {**info.get_parameters(), "host": info.host, "port": info.port}
    same["password"] = info.password or None
    if "hostaddr" in same:
        same["hostaddr"] = info.hostaddr
    dsn = make_conninfo("", **same)
    walsender = connect(
        dsn,
        answer_s=ANSWER_S,
        stop=stop,
        # a replication connection takes no parameters separate from a statement
        cursor_factory=psycopg.ClientCursor,
        client_encoding=client_encoding,
        application_name=application_name,
        replication="database",
    )
    # a plain connection asks whether the server works on its statement
    walsender.dsn = dsn
    return walsender


def set_up_walsender(walsender: psycopg.Connection) -> None:
    """Let a replication connection write values in the forms of `connect_source`, in its own encoding."""
    settings = {name: setting for name, setting in _SETTINGS.items() if name != "client_encoding"}
    settings |= dict.fromkeys(_UNLIMITED, "0")
    # the server's process waits this long for a message of ours
    _set(walsender, settings | {"wal_sender_timeout": f"{PATIENCE_S}s"})


def _set(connection: psycopg.Connection, settings: Mapping[str, str]) -> None:
    # only newer servers know some of them
    connection.execute(
        "select set_config(ours.name, ours.setting, false) from unnest(%s::text[], %s::text[]) as ours (name, setting)"
        " where current_setting(ours.name, true) is not null",
        (list(settings), list(settings.values())),
    )


def source_identity(source: psycopg.Connection) -> SourceIdentity:
    """Return the identity of this database."""
    row = source.execute(
        """
        select system_identifier::text, current_database(), ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int
        from pg_control_system()
        """
    ).fetchone()
    assert row is not None
    return SourceIdentity(*row)


def flush_lsn(source: psycopg.Connection) -> tuple[Lsn, datetime]:
    """Return up to where the source's log is flushed to its disk, and its clock's time just before.

    Every commit that a client had learned of by that time is below the position.
    """
    # the time first: a position that was read before it would not cover all these commits
    row = source.execute("select clock_timestamp(), pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[1]), row[0]


def next_xid(source: psycopg.Connection) -> int:
    """Return the first transaction id, of 64 bits, that the source has not assigned yet."""
    row = source.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
    assert row is not None
    return int(row[0])


def oldest_xid(source: psycopg.Connection) -> int:
    """Return the lowest id, of 64 bits, of a transaction that has not ended."""
    row = source.execute("select pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()
    assert row is not None
    return int(row[0])


def oldest_transaction(source: psycopg.Connection) -> str | None:
    """Describe the server's open transaction with the oldest id; None if our role sees none."""
    row = source.execute(
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
