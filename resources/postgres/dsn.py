"""Where the event store of this deployment is.

Belongs here: choosing between the user's Postgres and the embedded one. Not here: starting the embedded one
(`embedded`).
"""

from millrace.resources.errors import Unreachable
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import Settings

DATABASE = "millrace"


def embedded_dsn(database: str) -> str | None:
    """Return the DSN of another database of the embedded server that `millrace up` runs in this home.

    Return None where the event store is the user's own, or nothing runs.
    """
    settings = Settings()
    postgres = EmbeddedPostgres(settings.home / "postgres")
    return None if settings.dsn is not None or postgres.pid() is None else postgres.dsn(database)


def current_dsn(settings: Settings) -> str:
    """Return the event store's DSN: `MILLRACE_DSN`, else that of the embedded Postgres, which `millrace up` runs.

    Raises:
        Unreachable: `MILLRACE_DSN` is not set, and the embedded Postgres does not run.
    """
    if settings.dsn is not None:
        return settings.dsn
    postgres = EmbeddedPostgres(settings.home / "postgres")
    if postgres.pid() is None:
        raise Unreachable(
            "There is no event store to talk to.",
            detail=f"MILLRACE_DSN is not set, and no Postgres runs in {settings.home / 'postgres'}.",
            hint="Start it with `make run` in another terminal, or set MILLRACE_DSN.",
        )
    return postgres.dsn(DATABASE)
