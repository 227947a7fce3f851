"""`millrace up`: every server on this machine, started in order, watched, and stopped together.

Belongs here: the order of starting, what one sees meanwhile, and stopping. Not here: how a process is kept alive
(`supervisor`), which services there are (`services`), and the command line (`millrace.platform_defs.cli`).
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import psycopg
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.assets.declarations import find_package
from millrace.platform_defs.alerts.beside import said_of_alerts
from millrace.platform_defs.local.services import Endpoints, find_endpoints, prepare_home, services, silent_postgres
from millrace.platform_defs.local.supervisor import Service, ServiceState, Supervisor, end_leftovers
from millrace.platform_defs.screen import Screen
from millrace.resources.errors import MillraceError
from millrace.resources.postgres.dsn import DATABASE
from millrace.resources.postgres.embedded import LOOPBACK, READER, EmbeddedPostgres, PostgresFailed
from millrace.resources.postgres.logins import let_readers_in, prepare_store, too_mighty
from millrace.resources.processes import only_one, private_files
from millrace.resources.settings import Settings
from millrace.resources.showing import masked

# times in seconds
LOOK_S = 0.5
STATUS_S = 2.0
PLAIN_S = 10.0
REVIVE_S = 10.0


class CannotStart(MillraceError):
    """Something here is in the way of `millrace up`."""


class _Stop(BaseException):
    """Somebody asked us to stop, by Ctrl-C, SIGTERM or by closing the terminal."""


def up(
    settings: Settings,
    *,
    status: Callable[[], list[str]] | None = None,
    started: Callable[[], None] | None = None,
    make_services: Callable[[Settings, Endpoints], Sequence[Service]] = services,
    console: Console | None = None,
) -> None:
    """Run Millrace until Ctrl-C or SIGTERM, then stop everything that was started; data stay in `settings.home`.

    Args:
        settings: Where, on which port, and on which Postgres; none means the embedded one.
        status: Gives lines to show below the services; it may raise what psycopg raises.
        started: Called once when everything is ready.
        make_services: Gives the services in the order of their start.
        console: Where to write; a terminal gets a live view, anything else a line now and then.

    Raises:
        MillraceError: It cannot start, and why: it already runs in this home, the port is taken, there is no
            Java, a service does not come up, the database does not fit. Everything is stopped again.
    """
    out = console or Screen()
    # Dagster wants an absolute path, and services have other working directories.
    settings = settings.model_copy(update={"home": settings.home.expanduser().resolve()})
    try:
        with private_files(), _stop_on_signals() as asked, ExitStack() as stack:
            stack.enter_context(_only_one(settings))
            _say(out, f"Millrace starts in {settings.home}; Ctrl-C stops it.")
            if ended := end_leftovers(settings.home):
                _say(out, f"Ended what a killed run had left: {', '.join(ended)}.")
            _require_free_port(settings.port, "MILLRACE_PORT")
            if settings.declared_package is not None:
                find_package(settings.declared_package)
            postgres = None
            if settings.dsn is None:
                postgres = EmbeddedPostgres(settings.home / "postgres", tcp_port=settings.postgres_port)
                if postgres.pid() is None and settings.postgres_port is not None:
                    _require_free_port(settings.postgres_port, "MILLRACE_POSTGRES_PORT")
                stack.callback(partial(_stopping, out, "postgres", postgres.stop))
                _say(out, "Starting postgres ...")
                postgres.start()
            endpoints = find_endpoints(settings, postgres)
            _migrate(endpoints.operator_dsn, settings.log_partitions)
            if postgres is not None:
                prepare_store(postgres, DATABASE)
                if settings.postgres_port is not None:
                    let_readers_in(postgres, DATABASE, settings.postgres_port, password_file(settings))
            elif warning := too_mighty(endpoints.dsn):
                _say(out, warning)
            prepare_home(settings, endpoints)
            supervisor = Supervisor(settings.home, make_services(settings, endpoints))
            stack.callback(supervisor.stop, partial(_say, out))
            supervisor.start(partial(_say, out))
            for line in [*where_to_look(settings, endpoints), *open_to_others(settings)]:
                _say(out, line)
            if started is not None:
                started()
            _watch(out, supervisor, postgres, status, asked)
    except _Stop:
        _say(out, "Everything is stopped. `make run` goes on where this was.")


def where_to_look(settings: Settings, endpoints: Endpoints) -> list[str]:
    """Return lines that tell a newcomer where things are."""
    # whoever reads this on a screen or in a log need not see the token
    opened_by = "/?token=<the value of MILLRACE_UI_TOKEN>" if settings.ui_token else ""
    return [
        "",
        f"  Dagster   {_url(settings)}{opened_by}",
        f"  Postgres  {masked(endpoints.operator_dsn)}",
        *_for_readers(settings, endpoints),
        f"  Spark     {endpoints.spark_remote or 'as set by SPARK_MASTER'}",
        f"  Logs      {settings.home / 'logs'}",
        f"  Alerts    {said_of_alerts(settings)}",
        f"  Declared  {settings.declared_package or 'nothing; set MILLRACE_DECLARATIONS'}",
        "",
    ]


def password_file(settings: Settings) -> Path:
    """Return where the password of the login that reads read models is."""
    return settings.home / "reader.pgpass"


def _for_readers(settings: Settings, endpoints: Endpoints) -> list[str]:
    if endpoints.postgres is None or settings.postgres_port is None:
        return []
    where = f"postgresql://{READER}@{LOOPBACK}:{settings.postgres_port}/{DATABASE}"
    return [f"  Reading   {where}?passfile={quote(str(password_file(settings)))}"]


def open_to_others(settings: Settings) -> list[str]:
    """Say who else can use the UI."""
    if settings.ui_token:
        return []
    return ["  Other accounts of this machine can use the UI. On a shared machine set MILLRACE_UI_TOKEN.", ""]


def _url(settings: Settings) -> str:
    return f"http://127.0.0.1:{settings.port}"


def _say(out: Console, line: str) -> None:
    # A closed terminal or pipe, which rich turns into SystemExit, is no reason to leave servers half stopped.
    with suppress(OSError, SystemExit):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _stopping(out: Console, name: str, stop: Callable[[], None]) -> None:
    _say(out, f"Stopping {name} ...")
    stop()


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Turn the first request to stop into `_Stop` and ignore the next ones: stopping must come to its end.

    The event says that somebody asked. An exception of a signal may come where Python only prints it, as when an object
    is freed; who works for long looks at the event, too.
    """
    asked = threading.Event()
    # `nohup` ignores SIGHUP, and means it. A shell's `&` ignores SIGINT, and nobody means that.
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)

    def stop(_signum: int, _frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, lambda *_: None)
        asked.set()
        raise _Stop

    before = [signal.signal(one, stop) for one in signals]
    try:
        yield asked
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


@contextmanager
def _only_one(settings: Settings) -> Iterator[None]:
    """Hold the home's lock; the kernel frees that of a killed process."""
    settings.home.mkdir(parents=True, exist_ok=True)
    with only_one(
        settings.home / "up.lock",
        held=lambda note: CannotStart(
            f"Millrace already runs in {settings.home}: {note or 'it is just starting'}.",
            hint="Stop it with Ctrl-C where it runs, or set MILLRACE_HOME and MILLRACE_PORT for a second one.",
        ),
        note=f"process {os.getpid()}, {_url(settings)}",
    ):
        yield


def _require_free_port(port: int, variable: str) -> None:
    with socket.socket() as probe:
        # As servers do, so that connections of the last run that are still closing are not in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CannotStart(
                f"Port {port} on 127.0.0.1 cannot be used ({error.strerror}).",
                hint=f"Set {variable} to a free port.",
            ) from error


def _migrate(dsn: str, log_partitions: int) -> None:
    from millrace.resources.event_store.migrations import migrate

    try:
        migrate(dsn, log_partitions=log_partitions)
    except psycopg.OperationalError as error:
        raise silent_postgres(error, dsn) from None


def _watch(
    out: Console,
    supervisor: Supervisor,
    postgres: EmbeddedPostgres | None,
    status: Callable[[], list[str]] | None,
    asked: threading.Event,
) -> None:
    """Keep everything running and shown, until `_Stop` comes, or somebody asked and it was lost."""
    view = Live(console=out, refresh_per_second=2, transient=True) if out.is_terminal else None
    lines: list[str] = []
    shown: list[str] = []
    status_at = plain_at = revive_at = 0.0
    with view or ExitStack():
        while True:
            if asked.is_set():
                raise _Stop
            for sentence in supervisor.poll():
                _say(out, sentence)
            if postgres is not None and postgres.pid() is None and time.monotonic() >= revive_at:
                _say(out, f"postgres is gone; starting it again. Its log: {postgres.log}")
                # On a full disk it cannot start now, and can once there is room.
                revive_at = time.monotonic() + REVIVE_S
                try:
                    postgres.start()
                except PostgresFailed as error:
                    _say(out, str(error))
            if status is not None and time.monotonic() - status_at >= STATUS_S:
                lines, status_at = _ask(status), time.monotonic()
            states = supervisor.states()
            if view:
                view.update(_table(states, lines))
            elif time.monotonic() - plain_at >= PLAIN_S:
                plain = [", ".join(f"{s.name} {s.state}" for s in states), *lines]
                # What did not change is not said again: this is somebody's log file.
                for line in plain if plain != shown else []:
                    _say(out, line)
                shown, plain_at = plain, time.monotonic()
            time.sleep(LOOK_S)


def _ask(status: Callable[[], list[str]]) -> list[str]:
    try:
        return status()
    except (psycopg.Error, MillraceError) as error:
        return [f"The event store does not answer: {str(error).strip()}"]


def _table(states: Sequence[ServiceState], lines: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 2))
    colours = {"ready": "green", "starting": "yellow", "waiting": "red"}
    for state in states:
        restarts = f"started again {state.restarts} times" if state.restarts else ""
        table.add_row(state.name, Text(state.state, style=colours.get(state.state, "")), restarts)
    whole = Table.grid()
    whole.add_row(table)
    for line in lines:
        whole.add_row(Text(line))
    return whole
