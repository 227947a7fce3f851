"""The command that compares declarations with a store, for CI: `millrace check`."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from millrace.assets.declarations import NAME_IT
from millrace.errors import MillraceError
from millrace.platform_defs.cli.options import DsnOption, chosen_store, declared_beside, loadable_beside
from millrace.platform_defs.cli.output import JsonOption, print_json, table
from millrace.platform_defs.screen import Screen

if TYPE_CHECKING:
    from millrace.assets.declarations import Declarations

app = typer.Typer()


@app.command("check")
def check_command(
    history: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Judge the stored events by what is declared of this event.", metavar="DECIDER EVENT"),
    ] = None,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """Compare declarations with a store; exit code 1 for a fault.

    Nothing is changed. Each event is registered, new, differs from the store's schema, or is refused. A column whose
    field is in no schema of its events is reported, and is a fault where these schemas forbid the field. So is a state
    of a process that its class cannot read. Also reported: read models that would be built anew, and zones of rollups
    with other clocks in Spark than in Postgres.
    """
    from millrace.event_schemas.registering import schemas_by_event, states_in_store
    from millrace.read_models.shown.known_names import unknown_properties
    from millrace.read_models.stored.versions import built_anew

    if history is not None:
        _judge(declared_beside(dsn, ["events"]), *history, dsn)
        return
    declarations = loadable_beside(dsn)
    if declarations.package is None:
        raise MillraceError("Nothing is declared here that could be compared with the store.", hint=NAME_IT)
    with chosen_store(dsn) as store:
        found = states_in_store(store, declarations.events, keep=False)
        schemas = schemas_by_event(store, declarations.events)
        rebuilt = built_anew(store.connection, declarations.models.values())
    wrong = [
        *(f"A declaration fails to load: {fault}" for fault in declarations.faults),
        *(each.error for each in found if each.is_wrong),
    ]
    warnings: list[str] = []
    for model in declarations.models.values():
        for message, forbidden in unknown_properties(model, schemas):
            (wrong if forbidden else warnings).append(f"read model {model.name}, {message}")
    warnings += _zone_warnings(declarations, dsn)
    wrong += _unfit_states(declarations, dsn)
    rows = [(each.event.decider, each.event.event, each.event.version, each.state) for each in found]
    if as_json:
        names = ("decider", "event", "event_version", "state")
        events = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"events": events, "errors": wrong, "warnings": warnings, "built_anew": rebuilt})
    else:
        if rows:
            Screen().print(table("Events", ("decider", "event", "version", "state"), rows))
        _print_all([f"read model {name} would be built anew, beside the rows that serve" for name in rebuilt], "cyan")
        _print_all(warnings, "yellow")
        _print_all(wrong, "red")
        if not wrong:
            Screen().print("Nothing is wrong.")
    if wrong:
        raise typer.Exit(1)


def _unfit_states(declarations: "Declarations", dsn: str | None) -> list[str]:
    """Say which of the newest living instances of processes have a state that the declared class cannot read."""
    from millrace.commands.processes import Process

    processes = [each for each in declarations.subscriptions.values() if isinstance(each, Process)]
    with chosen_store(dsn) as store:
        return [unfit for each in processes for unfit in each.unfit_states(store)]


def _zone_warnings(declarations: "Declarations", dsn: str | None) -> list[str]:
    """Say which zones of rollups have other clocks in Spark than in Postgres; without such zones no Spark starts."""
    from millrace.read_models.shown.zones import zones_apart, zones_of_rollups
    from millrace.spark import spark_session

    zones = zones_of_rollups(declarations.models.values())
    if not zones:
        return []
    with chosen_store(dsn) as store, spark_session() as spark:
        apart = zones_apart(store.connection, spark, zones)
    return [
        f"zone {zone} of a rollup: Postgres does not know it"
        if moment is None
        else f"zone {zone} of a rollup: about {moment:%Y-%m-%d}, Spark's Java and Postgres have other clocks for it. Postgres"
        " counts the buckets of rollups, Spark those of events: give both the newest zone rules"
        for zone, moment in apart.items()
    ]


def _judge(declarations: "Declarations", decider: str, event: str, dsn: str | None) -> None:
    """Report for each declared version of an event which stored events its schema refuses."""
    from millrace.event_schemas.registering import unfit_history

    versions = [each for each in declarations.events if (each.decider, each.event) == (decider, event)]
    if not versions:
        raise MillraceError(
            f"No event {event!r} of decider {decider!r} is declared.",
            detail="\n".join(f"A declaration fails to load: {fault}" for fault in declarations.faults) or None,
            hint=f"Declared are: {', '.join(map(str, declarations.events)) or 'none'}.",
        )
    refused = 0
    with chosen_store(dsn) as store:
        for each in versions:
            found = unfit_history(store, each)
            refused += found.events
            verdict = f"{found.events:,} events of {found.streams:,} streams do not fit" if found.events else "all fit"
            Screen().print(Text(f"{each}: {verdict}"), soft_wrap=True)
            if found.first:
                rows = [(stream.decider_id, stream.events, stream.version) for stream in found.first]
                Screen().print(table(f"The first {len(rows)} streams", ("stream", "events", "first version"), rows))
    if refused:
        raise typer.Exit(1)


def _print_all(sentences: list[str], style: str) -> None:
    for sentence in sentences:
        Screen().print(Text(sentence, style=style), soft_wrap=True)
