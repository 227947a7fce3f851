"""The connection to a captured database, and looks at it: which database it is, how far its log and its ids are.

Belongs here: settings of the session, looks that need no slot. Not here: slots (`slot`), publications (`publication`),
tables (`tables`).
"""

import threading
from dataclasses import dataclass
from datetime import datetime

import psycopg

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.sessions import require_own_session
from millrace.resources.connecting import connect
from millrace.resources.errors import Unreachable

# The server writes values as text in the forms that the session asks for.
_SETTINGS = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    # where a policy hides rows, reading is an error and does not give a part of them
    "row_security": "off",
    # `slot.peek` listens to warnings
    "client_min_messages": "warning",
    "synchronous_commit": "local",
    "lock_timeout": "10s",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "10min",
    # What the role or the database has for applications. Some of these only newer servers know.
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
}
# beyond what the source itself allows a statement
ANSWER_S = 75.0


@dataclass(frozen=True)
class SourceIdentity:
    """A database among all others. A copy of it has the same system identifier, a promoted copy another timeline."""

    system_identifier: str
    database: str
    timeline: int


def connect_source(dsn: str, stop: threading.Event | None = None) -> psycopg.Connection:
    """Open an autocommit connection whose session has the text forms that all of change capture reads.

    A call that no answer comes to ends after `ANSWER_S`, and soon once `stop` is set.

    Raises:
        Unreachable: The server does not answer.
        SessionsShared: It is reached through a pooler in transaction mode.
    """
    try:
        source = connect(dsn, answer_s=ANSWER_S, stop=stop, client_encoding="utf8")
        try:
            # before any setting is made, which another session would have then
            require_own_session(source, dsn, "source", "the capture's source")
        except BaseException:
            source.close()
            raise
        with source.cursor() as cursor:
            cursor.execute(
                "select set_config(ours.name, ours.setting, false)"
                " from unnest(%s::text[], %s::text[]) as ours (name, setting)"
                " where current_setting(ours.name, true) is not null",
                (list(_SETTINGS), list(_SETTINGS.values())),
            )
    except psycopg.OperationalError as error:
        raise Unreachable(
            "The source database does not answer.",
            detail=str(error).strip(),
            hint="Check the source's connection string.",
        ) from error
    return source


def source_identity(source: psycopg.Connection) -> SourceIdentity:
    """Return which database this is."""
    row = source.execute(
        """
        select system_identifier::text, current_database(), ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int
        from pg_control_system()
        """
    ).fetchone()
    assert row is not None
    return SourceIdentity(*row)


def flush_lsn(source: psycopg.Connection) -> tuple[Lsn, datetime]:
    """Return up to where the source's log is safe on its disk, and its clock's time just before.

    Every transaction whose commit a client had learned of by that time is below the position.
    """
    # the time first: a position that was read before it would not cover all of these
    row = source.execute("select clock_timestamp(), pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[1]), row[0]


def next_xid(source: psycopg.Connection) -> int:
    """Return the first transaction id, of 64 bits, that no transaction of the source has yet."""
    row = source.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
    assert row is not None
    return int(row[0])


def oldest_xid(source: psycopg.Connection) -> int:
    """Return the lowest transaction id, of 64 bits, whose transaction has not ended."""
    row = source.execute("select pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()
    assert row is not None
    return int(row[0])


def oldest_transaction(source: psycopg.Connection) -> str | None:
    """Describe the open transaction of the server that took its id first; None if our role sees none."""
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
