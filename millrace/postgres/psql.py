"""The command that opens psql on a database: the program, its arguments and its environment.

The command line replaces its own process by psql, so that psql has the terminal.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millrace.errors import MillraceError, Unreachable
from millrace.patience import BUSY_S
from millrace.postgres.connecting import connect
from millrace.postgres.embedded import PROGRAMS
from millrace.redact import masked

# Folders with descriptions of terminals. The wheel's psql was built on a system that knows fewer of them; without a
# description psql cannot edit a line.
TERMINALS = "/etc/terminfo:/lib/terminfo:/usr/share/terminfo:/usr/lib/terminfo"


class PsqlMissing(MillraceError):
    """There is no psql that runs here."""


@dataclass(frozen=True)
class PsqlCommand:
    """A program to execute: `os.execve(command.argv[0], command.argv, command.env)`.

    Attributes:
        argv: The program's path, then its arguments. They hold no password: every user of the machine may see them.
        env: Its whole environment; a password of the DSN is `PGPASSWORD` in it.
    """

    argv: list[str]
    env: dict[str, str] = field(repr=False)


def psql_command(dsn: str, arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> PsqlCommand:
    """Return the command that opens psql on the database of a DSN; it connects once, to ask for the server's version.

    Args:
        dsn: The database.
        arguments: More arguments for psql, such as `-c` and a statement.
        environ: The environment to start from.

    Raises:
        Unreachable: The server does not answer.
        PsqlMissing: Neither the embedded Postgres nor PATH has a psql that runs.
    """
    try:
        with connect(dsn) as connection:
            server = connection.info.server_version // 10000
        parts = conninfo_to_dict(dsn)
    except psycopg.OperationalError as error:
        raise Unreachable(
            "The database does not answer.", detail=masked(str(error).strip(), dsn), hint="Check MILLRACE_DSN."
        ) from error
    except psycopg.ProgrammingError:
        # an unreadable DSN may be a password: do not quote it
        raise Unreachable("The DSN is unreadable.", hint="Set MILLRACE_DSN to postgresql://… or key=value …") from None
    password = parts.pop("password", None)
    env = {"TERMINFO_DIRS": TERMINALS, **environ}
    if password:
        env["PGPASSWORD"] = str(password)
    program = find_psql(server, environ)
    return PsqlCommand([str(program), f"--dbname={make_conninfo('', **parts)}", *arguments], env)


def find_psql(server: int, environ: Mapping[str, str] = os.environ, programs: Path = PROGRAMS) -> Path:
    """Find the psql of the embedded Postgres, or the one on PATH if only that is as new as the server.

    psql knows older servers, but not the catalogs of newer ones. If both programs are older than the server, the newer
    one is returned; psql itself then prints a warning.

    Args:
        server: The server's major version, such as 18.
        environ: The environment with PATH.
        programs: The folder of the embedded server's programs.

    Raises:
        PsqlMissing: Neither place has a psql that runs.
    """
    on_path = shutil.which("psql", path=environ.get("PATH", os.defpath))
    candidates = [programs / "psql", *([Path(on_path)] if on_path else [])]
    versions = {}
    for psql in candidates:
        # skip a psql that does not start, or fails
        with suppress(OSError, subprocess.TimeoutExpired):
            completed = subprocess.run(  # noqa: S603  Postgres' own program
                [str(psql), "--version"], capture_output=True, text=True, timeout=BUSY_S, check=False
            )
            version = re.search(r"\(PostgreSQL\) (\d+)", completed.stdout)
            if completed.returncode == 0 and version:
                versions[psql] = int(version[1])
    if not versions:
        raise PsqlMissing(
            "There is no psql that runs here.",
            detail=f"looked for {programs / 'psql'}, and in PATH",
            hint="Install PostgreSQL's client programs, such as Debian's package postgresql-client.",
        )
    return next(
        (psql for psql, version in versions.items() if version >= server), max(versions, key=lambda p: versions[p])
    )
