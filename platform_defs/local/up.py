"""`millrace up`: every server on this machine, started in order, watched, and stopped together."""

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
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.assets.declarations import find_package
from millrace.errors import MillraceError
from millrace.event_store.key_rotation import KeyStore
from millrace.operations.alerts.receiver import alert_summary
from millrace.operations.privacy import init
from millrace.patience import AWAY_S, BUSY_S, LOOK_S, PAUSE_S, WATCH_S
from millrace.platform_defs.local.answers import postgres_answers, why_none_load
from millrace.platform_defs.local.asking import Asking
from millrace.platform_defs.local.services import Endpoints, find_endpoints, prepare_home, services, silent_postgres
from millrace.platform_defs.local.supervisor import Service, ServiceState, Supervisor, end_leftovers
from millrace.platform_defs.screen import Screen
from millrace.postgres.connecting import connect
from millrace.postgres.dsn import DATABASE
from millrace.postgres.embedded import LOOPBACK, READER, EmbeddedPostgres
from millrace.postgres.logins import let_readers_in, prepare_store, too_mighty
from millrace.processes import only_one, private_files
from millrace.redact import masked
from millrace.settings import EXAMPLE, KEYS, NOTE, Settings


class CannotStart(MillraceError):
    """Something on this machine prevents `millrace up`."""


class _Stop(BaseException):
    """A request to stop: Ctrl-C, SIGTERM or a closed terminal."""


def up(
    settings: Settings,
    *,
    status: Callable[[], list[str]] | None = None,
    started: Callable[[], bool] | None = None,
    make_services: Callable[[Settings, Endpoints], Sequence[Service]] = services,
    console: Console | None = None,
) -> None:
    """Run Millrace until Ctrl-C or SIGTERM, then stop everything that was started; data stay in `settings.home`.

    Args:
        settings: Where, on which port, and on which Postgres; none means the embedded one.
        status: Returns lines to show below the services; it may raise errors of psycopg.
        started: Called in a thread when everything was started, and again until it returns True.
        make_services: Returns the services in the order of their start.
        console: Where to write; a terminal gets a live view, anything else a line now and then.

    Raises:
        MillraceError: It cannot start; the text says why: it already runs in this home, the port is taken, Java or
            the program of a service is missing, the database does not fit. Everything is stopped again.
    """
    out = console or Screen()
    # Dagster wants an absolute path, and services have other working directories.
    settings = settings.model_copy(update={"home": settings.home.expanduser().resolve()})
    try:
        with private_files(), _stop_on_signals() as stop, ExitStack() as stack:
            stack.enter_context(_only_one(settings))
            _print_line(out, f"Millrace starts in {settings.home}; Ctrl-C stops it.")
            if ended := end_leftovers(settings.home):
                _print_line(out, f"Ended what a killed run had left: {', '.join(ended)}.")
            _require_free_port(settings.port, "MILLRACE_PORT")
            settings = _with_package(settings)
            postgres = keeper = None
            if settings.dsn is None:
                postgres = EmbeddedPostgres(settings.home / "postgres", tcp_port=settings.postgres_port)
                keeper = _PostgresKeeper(postgres)
                if postgres.pid() is None and settings.postgres_port is not None:
                    _require_free_port(settings.postgres_port, "MILLRACE_POSTGRES_PORT")
                # callbacks run in reverse order
                stack.callback(keeper.stop)
                stack.callback(_print_line, out, "Stopping postgres ...")
                _print_line(out, "Starting postgres ...")
                postgres.start()
            endpoints = find_endpoints(settings, postgres)
            _migrate(endpoints.operator_dsn, settings.log_partitions)
            if postgres is not None:
                prepare_store(postgres, DATABASE)
                settings = _with_keys(settings, endpoints.operator_dsn)
                if settings.postgres_port is not None:
                    let_readers_in(postgres, DATABASE, settings.postgres_port, password_file(settings))
            elif warning := too_mighty(endpoints.dsn):
                _print_line(out, warning)
            for file in prepare_home(settings, endpoints):
                _print_line(out, f"{file} was changed and stays as it is; remove it to get ours back.")
            supervisor = Supervisor(settings.home, make_services(settings, endpoints))
            stack.callback(supervisor.stop, partial(_print_line, out))
            supervisor.start(partial(_print_line, out))
            for line in [*address_lines(settings, endpoints), *open_to_others(settings)]:
                _print_line(out, line)
            lines: list[str] = []
            if started is not None:
                _beside(started, AWAY_S, stop)
            if status is not None:
                _beside(partial(_bring, status, endpoints.code_socket, lines), 2 * PAUSE_S, stop)
            _watch(out, supervisor, keeper, lines, stop)
    except _Stop:
        _print_line(out, "Everything is stopped. `make run` goes on where this was.")


def address_lines(settings: Settings, endpoints: Endpoints) -> list[str]:
    """Return lines that tell a newcomer where things are."""
    # do not show the token to readers of the screen or the log
    opened_by = "/?token=<the value of MILLRACE_UI_TOKEN>" if settings.ui_token else ""
    reading = []
    if endpoints.postgres is not None and settings.postgres_port is not None:
        where = f"postgresql://{READER}@{LOOPBACK}:{settings.postgres_port}/{DATABASE}"
        reading = [f"  Reading   {where}?passfile={quote(str(password_file(settings)))}"]
    return [
        "",
        f"  Dagster   {_url(settings)}{opened_by}",
        f"  Postgres  {masked(endpoints.operator_dsn)}",
        *reading,
        f"  Spark     {endpoints.spark_remote or 'as set by SPARK_MASTER'}",
        f"  Logs      {settings.home / 'logs'}",
        f"  Alerts    {alert_summary(settings)}",
        f"  Declared  {settings.declared_package or 'nothing; set MILLRACE_DECLARATIONS'}",
        "",
    ]


def password_file(settings: Settings) -> Path:
    """Return the file with the password of the login that reads read models."""
    return settings.home / "reader.pgpass"


def open_to_others(settings: Settings) -> list[str]:
    """Warn that other accounts can use the UI, unless it requires a token."""
    if settings.ui_token:
        return []
    return ["  Other accounts of this machine can use the UI. On a shared machine set MILLRACE_UI_TOKEN.", ""]


def _url(settings: Settings) -> str:
    return f"http://127.0.0.1:{settings.port}"


def _print_line(out: Console, line: str) -> None:
    # A closed terminal or pipe, which rich turns into SystemExit, must not leave servers half stopped.
    with suppress(OSError, SystemExit):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Turn the first request to stop into `_Stop` and ignore the next ones: stopping must complete.

    The event records the request. Python only prints an exception that a signal raises at some places, such as while an
    object is freed. So long work also checks the event.
    """
    requested = threading.Event()
    # `nohup` ignores SIGHUP on purpose. A shell's `&` ignores SIGINT by accident.
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)

    def stop(_signum: int, _frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, lambda *_: None)
        requested.set()
        raise _Stop

    before = [signal.signal(one, stop) for one in signals]
    try:
        yield requested
    finally:
        requested.set()
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


@contextmanager
def _only_one(settings: Settings) -> Iterator[None]:
    """Hold the home's lock; the kernel releases the lock of a killed process."""
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


def _with_package(settings: Settings) -> Settings:
    """Settle which package is declared, and note it for commands of other terminals in this home.

    Raises:
        CannotStart: The home has a store, and nothing names its package.
        InvalidDeclarations: There is no such package.
    """
    package = settings.declared_package
    if package is None and settings.dsn is None:
        if (settings.home / "postgres").exists():
            raise CannotStart(
                f"Nothing names the package of the store in {settings.home}.",
                hint=f"Set MILLRACE_DECLARATIONS to it; if that store is of the example: {EXAMPLE}.",
            )
        package = EXAMPLE
    if package is None:
        return settings
    find_package(package)
    if settings.dsn is None:
        (settings.home / NOTE).write_text(f"{package}\n")
    return settings.model_copy(update={"declarations": package})


def _require_free_port(port: int, variable: str) -> None:
    with socket.socket() as probe:
        # As servers do, so that closing connections of the last run do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CannotStart(
                f"Port {port} on 127.0.0.1 cannot be used ({error.strerror}).",
                hint=f"Set {variable} to a free port.",
            ) from error


def _migrate(dsn: str, log_partitions: int) -> None:
    from millrace.event_store.migrations import migrate

    try:
        migrate(dsn, log_partitions=log_partitions)
    except psycopg.OperationalError as error:
        raise silent_postgres(error, dsn) from None


def _with_keys(settings: Settings, dsn: str) -> Settings:
    """Make the first keys of people in the home, unless another folder is named or the store has keys."""
    folder = settings.home / KEYS
    if settings.keys is not None and settings.keys.resolve() != folder:
        return settings
    with connect(dsn) as connection:
        store = KeyStore(connection)
        if store.key_counts():
            return settings
        init(store, folder)
    return settings.model_copy(update={"keys": folder})


class _PostgresKeeper:
    """The embedded Postgres; it is restarted when it is gone or does not answer."""

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self._postgres = postgres
        self._asking = Asking(partial(postgres_answers, postgres.dsn(DATABASE)))
        self._reviving: threading.Thread | None = None
        self._revive_at = 0.0
        self._failure = ""

    def poll(self) -> list[str]:
        """Check and restart the server without waiting for it; return a sentence for each change."""
        if self._reviving is not None:
            if self._reviving.is_alive():
                return []
            self._reviving = None
            self._asking.begin()
            return [self._failure or "postgres is ready again."]
        self._asking.poll()
        gone = self._postgres.pid() is None
        if not (gone or self._asking.lost) or time.monotonic() < self._revive_at:
            return []
        # On a full disk it cannot start now; retry until there is room.
        self._revive_at = time.monotonic() + BUSY_S
        self._reviving = threading.Thread(target=self._revive, args=(gone,), name="reviving postgres", daemon=True)
        self._reviving.start()
        wrong = "is gone" if gone else f"did not answer {self._asking.misses} times in a row"
        return [f"postgres {wrong}; starting it again. Its log: {self._postgres.log}"]

    def stop(self) -> None:
        """Stop the server, and restart it no more."""
        if self._reviving is not None:
            self._reviving.join()
        self._postgres.stop()

    def _revive(self, gone: bool) -> None:
        self._failure = ""
        try:
            if not gone:
                self._postgres.stop()
            self._postgres.start()
        except (OSError, MillraceError) as error:
            self._failure = str(error)


def _watch(
    out: Console,
    supervisor: Supervisor,
    postgres: _PostgresKeeper | None,
    lines: Sequence[str],
    stop: threading.Event,
) -> None:
    """Keep everything running and shown, until `_Stop` comes, or `stop` is set and `_Stop` was lost.

    Nothing here waits for a service or for Postgres: another thread updates the lines below the services.
    """
    view = Live(console=out, refresh_per_second=2, transient=True) if out.is_terminal else None
    shown: list[str] = []
    plain_at = 0.0
    with view or ExitStack():
        while True:
            if stop.is_set():
                raise _Stop
            for sentence in [*supervisor.poll(), *(postgres.poll() if postgres else [])]:
                _print_line(out, sentence)
            states = supervisor.states()
            if view:
                view.update(_table(states, lines))
            elif time.monotonic() - plain_at >= WATCH_S:
                plain = [", ".join(f"{s.name} {s.state}" for s in states), *lines]
                # Print only lines that changed: the output may be a log file.
                for line in plain:
                    if line not in shown:
                        _print_line(out, line)
                shown, plain_at = plain, time.monotonic()
            time.sleep(LOOK_S)


def _beside(work: Callable[[], bool], pause_s: float, stop: threading.Event) -> None:
    """Call a function repeatedly in a thread until it returns True."""

    def run() -> None:
        while not (stop.is_set() or work()):
            stop.wait(pause_s)

    threading.Thread(target=run, name="beside the services", daemon=True).start()


def _bring(status: Callable[[], list[str]], code: Path, lines: list[str]) -> bool:
    """Replace the lines by the current status; never done, so return False."""
    try:
        lines[:] = [*why_none_load(code), *status()]
    except (psycopg.Error, MillraceError) as error:
        lines[:] = [f"The event store does not answer: {str(error).strip()}"]
    return False


def _table(states: Sequence[ServiceState], lines: Sequence[str]) -> Group:
    table = Table.grid(padding=(0, 2))
    colours = {"ready": "green", "starting": "yellow", "ending": "red", "waiting": "red"}
    for state in states:
        restarts = f"started again {state.restarts} times" if state.restarts else ""
        table.add_row(state.name, Text(state.state, style=colours.get(state.state, "")), Text(state.cause or restarts))
    return Group(table, *map(Text, lines))
