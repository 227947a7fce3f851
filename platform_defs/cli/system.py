"""The commands on a deployment as a whole: `millrace up`, `migrate`, `status`."""

from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from typing import Annotated

import typer
from rich.text import Text

from millrace.drain.decision import due
from millrace.errors import MillraceError
from millrace.platform_defs.cli.options import DsnOption, chosen_dsn, chosen_store, declared_beside, loadable_beside
from millrace.platform_defs.cli.output import JsonOption, print_json, table
from millrace.platform_defs.cli.signals import stop_on_signals
from millrace.platform_defs.screen import Screen
from millrace.settings import Settings

app = typer.Typer()

VIEWS = ("view", "mode", "lag", "oldest", "behind", "flight", "waits", "dead")
# the terminal columns that the fields beside the view's name take
BESIDE_NAMES = 63


@app.command("up")
def up_command() -> None:
    """Start everything on this machine and watch it; Ctrl-C stops it all."""
    from millrace.platform_defs.local.up import up

    settings = Settings()
    up(settings, status=lambda: behind(None), started=partial(_apply_schema, settings))


@app.command("migrate")
def migrate_command(dsn: DsnOption = None) -> None:
    """Bring the store's schema to this version; register declared events."""
    from millrace.event_schemas.registering import State, states_in_store
    from millrace.event_store.migrations import migrate

    report = migrate(chosen_dsn(dsn), log_partitions=Settings().log_partitions)
    applied = [*report.applied, *(["functions"] if report.functions_replaced else [])]
    Screen().print(f"Schema version {report.version}; applied: {', '.join(applied) or 'nothing, it was up to date'}.")
    with chosen_store(dsn) as store:
        found = states_in_store(store, declared_beside(dsn, ["events"]).events, keep=True)
    for each in found:
        if each.state is State.NEW:
            Screen().print(Text(f"Registered: {each.event}."), soft_wrap=True)
    if wrong := [each.error for each in found if each.is_wrong]:
        raise MillraceError("\n".join(wrong))


@app.command("status")
def status_command(
    as_json: JsonOption = False,
    watch: Annotated[float | None, typer.Option(help="Show it again after this many seconds.", min=0.5)] = None,
    dsn: DsnOption = None,
) -> None:
    """Show the lag of each view, the worst first, and what is wrong.

    Wrong is what the SQL function `standing` finds, a service of `millrace up` that is down, a declaration that fails.
    lag: events that the view wants and lacks. oldest: the age of the first of them. behind: positions, wanted or not.
    flight, waits, dead: its streams in flight, its streams that wait, and its dead letters.
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


def behind(dsn: str | None) -> list[str]:
    """Return for each view how many events it would get now; positions ahead would count unwanted events."""
    with chosen_store(dsn) as store:
        return [f"{poll.view}: {due(poll)}" for poll in store.poll_views()]


def _show_status(dsn: str | None, *, as_json: bool) -> None:
    from millrace.assets.declarations import FILES, Fault, load_part
    from millrace.platform_defs.local.supervisor import sentence_on_service, services_down

    with chosen_store(dsn) as store:
        rows, standing = store.view_info(), store.standing()
    rows.sort(key=lambda row: (-row.lag_seconds, -row.dead_letters, -row.lag, -row.behind, row.view))
    problems = [*map(sentence_on_service, services_down(Settings().home))]
    for one, after in zip_longest(standing, standing[1:]):
        # consecutive findings with the same remedy: only the last one shows it
        same = not as_json and after is not None and after.remedy == one.remedy
        problems.append(f"{one.what}. {one.cause}" if same else str(one))
    try:
        declarations = loadable_beside(dsn)
        faults = [*declarations.faults, *(load_part(declarations.package, part) for part in FILES)]
        problems += [f"A declaration fails to load: {fault}" for fault in faults if isinstance(fault, Fault)]
    except MillraceError as error:
        problems.append(str(error))
    if as_json:
        print_json({"views": [asdict(row) for row in rows], "problems": problems})
        return
    screen = Screen()
    room = max(screen.width - BESIDE_NAMES, 12)
    cells = []
    for row in rows:
        name = row.view if len(row.view) <= room else f"{row.view[: room - 1]}…"
        lag = f"{short(row.lag)}{'' if row.exact else '+'}"
        counts = (row.behind, row.in_flight, row.waiting, row.dead_letters)
        oldest = age(row.lag_seconds) if row.lag_seconds else ""
        cells.append((name, row.mode if row.enabled else "off", lag, oldest, *map(short, counts)))
    screen.print(table("Views", VIEWS, cells))
    for problem in problems:
        Screen().print(Text(problem, style="red"), soft_wrap=True)


def short(count: int) -> str:
    """Return a number in five characters: exact below 10,000, then in thousands or millions, rounded down."""
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if count >= 10 * size:
            return f"{count // size}{unit}"
    return str(count)


def age(seconds: float) -> str:
    """Return an age in five characters: in the largest unit in which it is more than 1."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _apply_schema(settings: Settings) -> bool:
    """Ask the running Dagster for a run, and return whether it accepts; a refusal prints a line and is no error."""
    from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

    headers = {"Authorization": f"Bearer {settings.ui_secret}"} if settings.ui_token else None
    try:
        client = DagsterGraphQLClient("127.0.0.1", port_number=settings.port, headers=headers)
        client.submit_job_execution("apply_schema")
    except DagsterGraphQLClientError as error:
        Screen(stderr=True).print(Text(f"Dagster did not take the job apply_schema: {error}", style="yellow"))
        return False
    return True
