"""The argument of a package's `services` function, which lists further processes for `millrace up` to run."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from millrace.errors import MillraceError
from millrace.platform_defs.local.supervisor import Service
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.postgres.logins import owned_database

PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True)
class Surroundings:
    """Where processes of `millrace up` run.

    The function `services` in `<package>/services.py` gets one, and lists its processes:

        def services(here: Surroundings) -> list[Service]:
            return [here.run("importer", "python", "-m", "my_platform.importer")]

    Attributes:
        dsn: The event store, as the login that drains it: a member of event_store_owner.
        home: Where the local servers keep their data.
        folder: Where `millrace up` was started, which is the current folder of every service.
        env: The environment of every service, the platform's own too; a variable added here is for all of them.
    """

    dsn: str
    home: Path
    folder: Path
    env: dict[str, str]
    postgres: EmbeddedPostgres | None = field(default=None, repr=False)

    @property
    def embedded(self) -> bool:
        """Whether the event store is the one that `millrace up` runs itself, and not the user's own."""
        return self.postgres is not None

    def make_database(self, name: str) -> str:
        """Make a database beside the embedded event store, unless it is there, and return its DSN.

        The DSN has a login of its own, which owns the database, may capture it, and may enter no other database.

        Raises:
            MillraceError: The event store is not the embedded one.
        """
        if self.postgres is None:
            raise MillraceError(
                f"There is no embedded Postgres to make the database {name!r} in.",
                detail="MILLRACE_DSN names an event store of your own.",
                hint="Ask for it only where `embedded` is true.",
            )
        return owned_database(self.postgres, name, captured=True)

    def run(
        self,
        name: str,
        program: str,
        *arguments: str,
        ready: Callable[[], bool] = lambda: True,
        stop_s: float = 15,
    ) -> Service:
        """Describe a process to keep running; it is started again whenever it ends.

        Args:
            name: What its log and the terminal call it; no other service has this name.
            program: A program beside this Python, such as `millrace` or `python`; else one of PATH, or a whole path.
            arguments: Its arguments.
            ready: Returns whether it serves; the next service starts when it does. From then on it is called every ten
                seconds: after three answers of no in a row the process is ended and started again.
            stop_s: Time limit for its end after SIGTERM, in seconds.
        """
        beside = PROGRAMS / program
        argv = (str(beside) if beside.exists() else program, *arguments)
        return Service(name=name, argv=argv, env=self.env, ready=ready, cwd=self.folder, stop_s=stop_s)
