"""Opening a session at the event store, in which texts and times are read as they are written.

Belongs here: the settings that every session has, whatever the DSN, the login or the database say of them. Not here:
sessions at a captured source (`capture.source.connection`); ADBC's sessions (`event_log_source.in_utf8`).
"""

from typing import Any

import psycopg

from millrace.resources.errors import Malformed


def connect(dsn: str, *, autocommit: bool = True, **parameters: Any) -> psycopg.Connection:  # noqa: ANN401  as psycopg
    """Connect with texts in UTF-8 and times in ISO's form.

    Args:
        dsn: The database.
        autocommit: Whether each statement is a transaction.
        parameters: More of psycopg's parameters; they go before those of the DSN.

    Raises:
        psycopg.OperationalError: The server does not answer.
        psycopg.ProgrammingError: The DSN is unreadable.
    """
    connection = psycopg.connect(dsn, autocommit=True, client_encoding="utf8", **parameters)
    if not _reads_iso(connection):
        # not by the option `-c`, which pools refuse
        connection.execute("set datestyle = 'ISO'")
    connection.autocommit = autocommit
    return connection


def require_iso(connection: "psycopg.Connection | psycopg.AsyncConnection") -> None:
    """Refuse a caller's session whose times the driver cannot read, before anything is done in it.

    Raises:
        Malformed: Its DateStyle is not ISO.
    """
    if not _reads_iso(connection):
        raise Malformed(
            "The connection's DateStyle must be ISO: the client cannot read times in another form.",
            detail=f"It is {connection.info.parameter_status('DateStyle')}. Nothing was done.",
            hint="""Run "set datestyle = 'ISO'" on the connection, or alter the login or the database.""",
        )


def _reads_iso(connection: "psycopg.Connection | psycopg.AsyncConnection") -> bool:
    # the server reports it without being asked; a pooler that does not gives nothing to go by
    return (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO")
