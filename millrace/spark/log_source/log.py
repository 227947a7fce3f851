"""Postgres: the ranges that the log holds now, and the errors of a connection."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .options import InvalidOption
from .ranges import LogRange, LogState

if TYPE_CHECKING:
    import psycopg

# One statement, so one snapshot: the marks of all log partitions name an exact set of events.
_STATE = """
select p.partition, p.earliest_position, p.high_water_mark, times.positions
from event_store.partitions p
left join (
  select o.partition, array_agg(o.position order by u.n) as positions
  from unnest(%(times)s::timestamptz[]) with ordinality u(time, n)
  cross join lateral event_store.offsets_for_timestamp(u.time, %(partitions)s::int[]) o
  group by o.partition
) times using (partition)
"""

_SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret"})


class Unreadable(ConnectionError):
    """Postgres does not answer, or not with an event log; the text names the DSN without its password."""

    def __init__(self, dsn: str, cause: object) -> None:
        super().__init__(f"event_log: option 'dsn' is {without_password(dsn)!r}, and Postgres says: {cause}")


class EventLog:
    """Reads the state of the log, through a connection that the first call opens and later ones reuse."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read_state(self, times: Sequence[datetime] = (), partitions: Sequence[int] | None = None) -> LogState:
        """Return the ranges that the log holds, and the position of each time in the chosen log partitions.

        Raises:
            InvalidOption: The DSN is unreadable.
            Unreadable: Postgres does not answer, or holds no event log that this role may read.
        """
        rows = self._rows(times, partitions)
        return LogState(
            held={p: LogRange(p, first, mark) for p, first, mark, _ in rows},
            at={time: {p: at[n] for p, _, _, at in rows if at} for n, time in enumerate(times)},
        )

    def _rows(self, times: Sequence[datetime], partitions: Sequence[int] | None) -> list[Any]:
        import psycopg

        without_password(self._dsn)  # refuse an unreadable DSN before an error quotes it
        reused = self._connection is not None
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._dsn, autocommit=True)
            arguments = {"times": list(times), "partitions": None if partitions is None else list(partitions)}
            return self._connection.execute(_STATE, arguments).fetchall()
        except psycopg.OperationalError as error:
            self.close()
            if reused:
                return self._rows(times, partitions)  # Postgres was restarted since the last call
            raise Unreadable(self._dsn, error) from error
        except psycopg.Error as error:
            raise Unreadable(self._dsn, error) from error


def in_utf8(dsn: str) -> str:
    """Return a DSN for sessions with texts in UTF-8, as Arrow has them, independent of the login's setting."""
    from psycopg.conninfo import make_conninfo

    return make_conninfo(dsn, client_encoding="utf8")


def without_password(dsn: str) -> str:
    """Return a DSN that may be shown.

    Raises:
        InvalidOption: The text is no DSN.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # an unreadable text may be the password: show neither it nor the error that quotes it
        raise InvalidOption("dsn", "…", "a Postgres connection string, postgresql://… or key=value …") from None
    return make_conninfo("", **{name: value for name, value in parts.items() if name not in _SECRETS})
