"""The commands on a deployment as a whole: `millrace up`, `status`, `migrate`, `sequence`, `reset`, `psql`.

Belongs here: their options and how results look. Not here: what they do (`millrace.platform_defs.local`,
`millrace.resources`).
"""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, chosen_dsn, chosen_store
from millrace.platform_defs.cli.output import JsonOption, print_json, table
from millrace.platform_defs.cli.signals import stop_on_signals
from millrace.platform_defs.polling import due
from millrace.platform_defs.screen import Screen
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import ViewInfo
from millrace.resources.settings import Settings

app = typer.Typer()

VIEWS = ("view", "mode", "lag", "oldest", "behind", "flight", "waits", "dead")
# the columns of a terminal that the others take beside the view's name
BESIDE_NAMES = 63


@app.command("up")
def up_command() -> None:
    """Start everything on this machine and watch it; Ctrl-C stops it all."""
    from millrace.platform_defs.local.up import up

    settings = Settings()
    up(
        settings,
        status=lambda: behind(None),
        started=partial(_submit, "apply_schema", settings),
    )


@app.command("migrate")
def migrate_command(dsn: DsnOption = None) -> None:
    """Bring the event store's schema to this version of the code."""
    from millrace.resources.event_store.migrations import migrate

    report = migrate(chosen_dsn(dsn), log_partitions=Settings().log_partitions)
    done = [*report.applied, *(["functions"] if report.functions_replaced else [])]
    Screen().print(f"Schema version {report.version}; applied: {', '.join(done) or 'nothing, it was up to date'}.")


@app.command("status")
def status_command(
    as_json: JsonOption = False,
    watch: Annotated[float | None, typer.Option(help="Show it anew every so many seconds.", min=0.5)] = None,
    dsn: DsnOption = None,
) -> None:
    """Show the lag of each view, the worst first, and what is wrong.

    That is what `event_store.standing` says, services of `millrace up` that are not up, and declarations that fail.
    lag: events that the view wants and has not. oldest: the age of the first of them. behind: positions, wanted or not.
    flight, waits, dead: its streams in flight, those that wait, and its dead letters.
    """
    if watch is None:
        _show_status(dsn, as_json=as_json)
        return
    with stop_on_signals() as stop:
        while not stop.is_set():
            if not as_json:
                Screen().clear()
            _show_status(dsn, as_json=as_json)
            stop.wait(watch)


@app.command("watch")
def watch_command(service: Annotated[str, typer.Argument(help="Its name, as `millrace up` says it.")]) -> None:
    """Run one service of `millrace up` by itself and watch it, until stopped with Ctrl-C or SIGTERM."""
    from millrace.platform_defs.local.watched import watch

    with stop_on_signals() as stop:
        watch(service, Settings(), stop, partial(Screen().print, markup=False, highlight=False, soft_wrap=True))


@app.command("sequence")
def sequence_command(
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Answer GET /metrics there, on 127.0.0.1; by default MILLRACE_METRICS_PORT."
        ),
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Give committed events their positions, and send alerts, until stopped with Ctrl-C or SIGTERM."""
    from millrace.platform_defs.beside_store import sources_of_alerts
    from millrace.platform_defs.metrics.serve import metrics_beside
    from millrace.resources.alerts.alerter import alerting
    from millrace.resources.sequencer import run_sequencer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings, store = Settings(), chosen_dsn(dsn)
    port = settings.metrics_port if metrics_port is None else metrics_port
    sources = sources_of_alerts(settings)
    with stop_on_signals() as stop, metrics_beside(store, port), alerting(store, settings, sources):
        run_sequencer(store, stop)


@app.command("metrics")
def metrics_command(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 for any free port.")] = 9918,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Send them by OTLP, to OTEL_EXPORTER_OTLP_ENDPOINT, instead of listening.")
    ] = False,
    dsn: DsnOption = None,
) -> None:
    """Answer GET /metrics for Prometheus, or send the same by OTLP, until stopped with Ctrl-C or SIGTERM."""
    from millrace.platform_defs.metrics.serve import serving_metrics

    if otlp:
        from millrace.platform_defs.metrics.otlp import send_metrics

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        with stop_on_signals() as stop:
            send_metrics(chosen_dsn(dsn), stop)
        return
    with stop_on_signals() as stop, serving_metrics(chosen_dsn(dsn), port, host) as taken:
        Screen().print(f"Metrics are at http://{host}:{taken}/metrics; Ctrl-C ends this.", soft_wrap=True)
        stop.wait()


@app.command("reset")
def reset_command(model: str, dsn: DsnOption = None) -> None:
    """Remove a read model's tables and progress; the next drain builds it anew from the first event."""
    from millrace.assets.declarations import declared
    from millrace.resources.read_models.versions import reset_model

    known = declared(Settings().declared_package, ["read_models"])
    if model not in known.models:
        raise MillraceError(
            f"There is no read model {model!r}.",
            detail="\n".join(f"A file of read models fails to load: {fault}" for fault in known.faults) or None,
            hint=f"Declared are: {', '.join(known.models) or 'none'}.",
        )
    with chosen_store(dsn) as store:
        reset_model(store.connection, known.models[model])
    Screen().print(f"Read model {model} is removed; its next drain builds it from the first event.")


@app.command("psql")
def psql_command(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What psql gets, behind --.", metavar="[-- ARGS]")
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Open psql on the event store's database."""
    from millrace.resources.postgres.psql import psql_command as command_of

    command = command_of(chosen_dsn(dsn), arguments or [])
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command.argv[0], command.argv, command.env)  # noqa: S606 - the user's own psql, instead of us


def behind(dsn: str | None) -> list[str]:
    """Say of each view how much it would be given now; positions ahead would count events that it does not want."""
    with chosen_store(dsn) as store:
        return [f"{poll.view}: {due(poll)}" for poll in store.poll_views()]


def _show_status(dsn: str | None, *, as_json: bool) -> None:
    from millrace.platform_defs.local.supervisor import said_of_service, services_down

    with chosen_store(dsn) as store:
        rows, standing = sorted(store.view_info(), key=_badness), store.standing()
    problems = [
        *map(said_of_service, services_down(Settings().home)),
        *map(str, standing),
        *_problems(Settings().declared_package),
    ]
    if as_json:
        print_json({"views": [asdict(row) for row in rows], "problems": problems})
        return
    screen = Screen()
    room = max(screen.width - BESIDE_NAMES, 12)
    screen.print(table("Views", VIEWS, (_cells(row, room) for row in rows)))
    for problem in problems:
        Screen().print(Text(problem, style="red"), soft_wrap=True)


def _badness(row: ViewInfo) -> tuple[object, ...]:
    """Return what sorts the worst view first: the age of its lag, its dead letters, and how much it is behind."""
    return (-row.lag_seconds, -row.dead_letters, -row.lag, -row.behind, row.view)


def _cells(row: ViewInfo, room: int) -> Sequence[object]:
    name = row.view if len(row.view) <= room else f"{row.view[: room - 1]}…"
    lag = f"{short(row.lag)}{'' if row.exact else '+'}"
    counts = (row.behind, row.in_flight, row.waiting, row.dead_letters)
    mode = row.mode if row.enabled else "off"
    return (name, mode, lag, age(row.lag_seconds) if row.lag_seconds else "", *(short(count) for count in counts))


def short(count: int) -> str:
    """Return a number in five characters: exact below 10,000, then in thousands or millions, rounded down."""
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if count >= 10 * size:
            return f"{count // size}{unit}"
    return str(count)


def age(seconds: float) -> str:
    """Return an age in five characters: in the largest unit that says more than 1."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _problems(package: str | None) -> list[str]:
    """Say which files of declarations fail to load, and where."""
    from millrace.assets.declarations import FILES, Fault, declared, load_part

    try:
        faults = [*declared(package).faults, *(load_part(package, part) for part in FILES)]
    except MillraceError as error:
        return [str(error)]
    return [f"A declaration fails to load: {fault}" for fault in faults if isinstance(fault, Fault)]


def _submit(job: str, settings: Settings) -> bool:
    """Ask the running Dagster for a run, and return whether it takes it; a refusal is worth a line, not an end."""
    from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

    headers = {"Authorization": f"Bearer {settings.ui_secret}"} if settings.ui_token else None
    try:
        DagsterGraphQLClient("127.0.0.1", port_number=settings.port, headers=headers).submit_job_execution(job)
    except DagsterGraphQLClientError as error:
        Screen(stderr=True).print(Text(f"Dagster did not take the job {job}: {error}", style="yellow"))
        return False
    return True
