"""The DSN of this deployment's event store: in the user's Postgres or the embedded one, and with which login."""

from millrace.errors import Unreachable
from millrace.postgres.embedded import SUPERUSER, EmbeddedPostgres
from millrace.postgres.logins import DRAIN, owner_of
from millrace.settings import Settings

DATABASE = "millrace"


def embedded_dsn(database: str) -> str | None:
    """Return the owner's DSN of a database beside the store in the embedded server that `millrace up` runs.

    Return None if the event store is in the user's own Postgres, or the embedded server does not run.
    """
    settings = Settings()
    postgres = EmbeddedPostgres(settings.home / "postgres")
    return None if settings.dsn is not None or postgres.pid() is None else postgres.dsn(database, owner_of(database))


def current_dsn(settings: Settings) -> str:
    """Return an operator's DSN of the event store: `MILLRACE_DSN`, else that of the embedded Postgres' superuser.

    Raises:
        Unreachable: `MILLRACE_DSN` is not set, and the embedded Postgres does not run.
    """
    return _dsn(settings, SUPERUSER)


def drain_dsn(settings: Settings) -> str:
    """Return the event store's DSN for services and runs: `MILLRACE_DSN`, else that of the embedded drains' login.

    Raises:
        Unreachable: `MILLRACE_DSN` is not set, and the embedded Postgres does not run.
    """
    return _dsn(settings, DRAIN)


def _dsn(settings: Settings, user: str) -> str:
    if settings.dsn is not None:
        return settings.dsn
    postgres = EmbeddedPostgres(settings.home / "postgres")
    if postgres.pid() is None:
        raise Unreachable(
            "There is no event store to talk to.",
            detail=f"MILLRACE_DSN is not set, and no Postgres runs in {settings.home / 'postgres'}.",
            hint="Start it with `make run` in another terminal, or set MILLRACE_DSN.",
        )
    return postgres.dsn(DATABASE, user)
