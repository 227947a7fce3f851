"""The event store as a Dagster resource, which opens connections for assets and sensors.

The resource has no field. A field is run config: the launcher of a run could set the server, also from variables of the
environment that the run's error then quotes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from dagster import ConfigurableResource

from millrace.errors import Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.postgres.connecting import connect
from millrace.postgres.dsn import drain_dsn
from millrace.redact import masked
from millrace.settings import Settings


class PostgresResource(ConfigurableResource["PostgresResource"]):
    """The event store's Postgres: the deployment's own, looked up at each use."""

    def current_dsn(self) -> str:
        """Return the current connection string, that of the drains' login.

        Raises:
            Unreachable: There is no event store: MILLRACE_DSN is not set, and the embedded Postgres does not run.
        """
        return drain_dsn(Settings())

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection]:
        """Open an autocommit connection and close it in the end.

        Raises:
            Unreachable: The server does not answer.
        """
        with self.opened() as connection:
            yield connection

    def opened(self) -> psycopg.Connection:
        """Open an autocommit connection, which the caller closes.

        Raises:
            Unreachable: The server does not answer.
        """
        dsn = self.current_dsn()
        try:
            return connect(dsn)
        except psycopg.OperationalError as error:
            raise Unreachable(
                "The event store does not answer.", detail=masked(str(error).strip(), dsn), hint="Check MILLRACE_DSN."
            ) from None
        except psycopg.ProgrammingError:
            # an unreadable DSN may be a password: do not quote it
            raise Unreachable(
                "The DSN is unreadable.", hint="Set MILLRACE_DSN to postgresql://… or key=value …"
            ) from None

    @contextmanager
    def store(self) -> Iterator[PlatformStore]:
        """Open the event store's client and close its connection in the end."""
        with self.connect() as connection:
            yield PlatformStore(connection)
