"""The commands for operators of captures, `millrace capture …`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.text import Text

from millrace.assets.declarations import Declarations
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.changed_rows import TableUnfit
from millrace.capture.facts import with_registered
from millrace.capture.health import capture_health, unread_problems, unread_tables
from millrace.capture.prepare import remove, restart
from millrace.capture.quarantine import requeue
from millrace.capture.source.chunks import TableUnreadable
from millrace.capture.source.connection import connect_source
from millrace.capture.source.patterns import with_tables
from millrace.capture.source.readiness import NotReady, require_ready
from millrace.capture.source.slot import slot_limits, slot_state
from millrace.capture.source.standbys import standby_notes
from millrace.capture.source.tables import heirs
from millrace.capture.source.timelines import read_timelines
from millrace.capture.store import CaptureInfo, CaptureStore, find_capture
from millrace.capture.verify import Verification, verify
from millrace.errors import ChangesWaiting, MillraceError
from millrace.event_store.migrations import migrate
from millrace.patience import ASK_S
from millrace.platform_defs.cli.options import DsnOption, agreed, chosen_dsn, chosen_store, declared_beside
from millrace.platform_defs.cli.output import table
from millrace.platform_defs.screen import Screen

app = typer.Typer(no_args_is_help=True)

MOST_SHOWN = 100

_COLUMNS = ("table", "rows", "unchanged", "changed", "missing", "gone", "held", "quarantined")

CaptureName = Annotated[str, typer.Argument(help="The capture.", metavar="CAPTURE")]
Why = Annotated[str, typer.Option("--reason", help="Why, for the audit log.")]


@app.command("status")
def status_command(dsn: DsnOption = None) -> None:
    """Show each declared capture: its progress, the state of its slot, and the changes that wait."""
    declarations = _declarations(dsn)
    with capture_store(dsn) as store:
        problems = [
            _undeclared(info, declarations)
            for info in store.capture_info()
            if info.capture not in declarations.captures
        ]
    rows, notes = [], list[str]()
    for capture in declarations.captures.values():
        try:
            health = capture_health(chosen_dsn(dsn), capture)
        except MillraceError as error:
            problems.append(f"{capture.name}: {error}")
            continue
        info = health.info
        rows.append(
            (
                capture.name,
                info.stored_lsn if info else "never ran",
                f"{health.lag_bytes:,}",
                f"{health.lag_s:.1f}",
                f"{health.retained_bytes:,}",
                info and f"{info.unemitted:,}",
                health.quarantined,
                info and info.tables_to_backfill,
                info and info.tables_stopped,
            )
        )
        problems += [f"{capture.name}: {problem}" for problem in health.problems(capture)]
        notes += [f"{capture.name}: {note}" for note in health.notes]
    columns = (
        "capture",
        "stored",
        "lag bytes",
        "lag s",
        "retained bytes",
        "not emitted",
        "quarantined",
        "to backfill",
        "stopped",
    )
    console = Screen()
    console.print(table("Captures", columns, rows))
    for problem in problems:
        console.print(Text(problem, style="red"), soft_wrap=True)
    for note in notes:
        console.print(Text(note, style="yellow"), soft_wrap=True)


@app.command("check")
def check_command(name: CaptureName, dsn: DsnOption = None) -> None:
    """List everything that a capture's source lacks; the source is not changed."""
    capture = declared_capture(name, dsn)
    with capture_store(dsn) as store:
        info = find_capture(store, name)
        unread = unread_problems(unread_tables(store.captured_tables(name)))
    with connect_source(capture.source()) as source:
        slot = slot_state(source, info.slot) if info is not None else None
        capture = with_tables(source, capture)
        require_ready(source, capture, has_slot=slot is not None)
        read_timelines(source)
        notes = [*slot_limits(source), *standby_notes(source, slot)]
        captured = {each.name for each in capture.tables}
        for parent, found in heirs(source, capture.tables).items():
            if left_out := [heir for heir in found if heir not in captured]:
                notes.append(
                    f"the rows of {', '.join(left_out)}, which queries of {parent} show, are not captured with it: declare"
                    " each as a table of its own"
                )
    if unread:
        raise NotReady(name, unread)
    console = Screen()
    console.print(f"The source of {name} can be captured.")
    for note in notes:
        console.print(Text(note, style="yellow"), soft_wrap=True)


@app.command("restart")
def restart_command(name: CaptureName, reason: Why, dsn: DsnOption = None) -> None:
    """Restart a capture after changes were lost: with a new slot, and a new read of all rows of its tables."""
    capture = declared_capture(name, dsn)
    with capture_store(dsn):
        generation = restart(chosen_dsn(dsn), capture, reason)
    Screen().print(f"{name} begins anew with generation {generation}; its next run reads all rows of its tables.")


@app.command("verify")
def verify_command(
    name: CaptureName,
    table_name: Annotated[
        str | None,
        typer.Argument(help="One of its tables, with its schema or without; by default all.", metavar="TABLE"),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="What differs becomes events, also in place of quarantined changes. With the reason, for the audit.",
        ),
    ] = False,
    where: Annotated[
        str | None, typer.Option("--where", help="Only these rows of TABLE: a condition of the source's SQL.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why it is repaired.")] = "capture verify --repair",
    dsn: DsnOption = None,
) -> None:
    """Compare tables with their events; exits with 1 if they differ, or if rows wait in the quarantine."""
    if where is not None and table_name is None:
        raise MillraceError("A condition is of one table.", hint="Name the table behind the capture.")
    capture = declared_capture(name, dsn)
    console = Screen()
    with capture_store(dsn) as store:
        tables = _tables(store, capture) if table_name is None else (_table(store, capture, table_name),)
        keyless = [each.name for each in tables if each.keyless] if table_name is None else []
        found, refused = list[Verification](), list[str]()
        for captured in tables:
            if captured.name in keyless:
                continue
            repairs = reason if repair else None
            try:
                found.append(
                    verify(chosen_dsn(dsn), capture, captured, repairs=repairs, where=where, on_step=_printer(console))
                )
            except (ChangesWaiting, TableUnreadable, TableUnfit) as error:
                if table_name is not None:
                    raise
                refused.append(f"{captured.name}: {error}")
    rows = []
    for each in found:
        counts = (each.rows, each.unchanged, each.changed, each.missing, each.gone, each.held, each.quarantined)
        rows.append((each.table, *(f"{count:,}" for count in counts)))
    console.print(table(f"Rows of {name} beside its events", _COLUMNS, rows))
    for each in found:
        if each.examples:
            more = ", …" if each.differing > len(each.examples) else ""
            console.print(Text(f"{each.table}: {', '.join(each.examples)}{more}"), soft_wrap=True)
        if each.nameless:
            message = (
                f"{each.table}: the keys of {each.nameless:,} rows cannot be read, so which rows are gone is not known"
            )
            console.print(Text(message, style="red"), soft_wrap=True)
    if keyless:
        console.print(f"Nothing names the rows of {', '.join(keyless)}: they are not compared.", soft_wrap=True)
    for message in refused:
        console.print(Text(message, style="red"), soft_wrap=True)
    if refused or any(each.held or each.quarantined or (each.differing and not repair) for each in found):
        raise typer.Exit(1)


@app.command("remove")
def remove_command(
    name: CaptureName,
    reason: Why,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dsn: DsnOption = None,
) -> None:
    """Remove a capture with its slot and its publication. Its events stay; remove its file, too, or it comes back."""
    capture = declared_capture(name, dsn)
    with capture_store(dsn) as store:
        store.capture_info(name)  # refuse an unknown name before asking for consent
    if not (yes or agreed(f"Remove capture {name}? What changes from now on is in no slot.")):
        raise MillraceError(f"Capture {name} was not removed.", hint="Answer y, or state --yes.")
    remove(chosen_dsn(dsn), capture, reason)
    Screen().print(f"{name} is removed with its slot and its publication.")


@app.command("quarantined")
def quarantined_command(name: CaptureName, dsn: DsnOption = None) -> None:
    """List the changes that could not become events, each with its error."""
    with capture_store(dsn) as store:
        (info,) = store.capture_info(name)
        found = store.quarantined_changes(name, limit=MOST_SHOWN)
    console, waiting = Screen(), info.quarantined + info.held
    if not waiting:
        console.print(f"{name} has no quarantined changes.")
        return
    title = f"Quarantined changes of {name}: {waiting:,}"
    if waiting > MOST_SHOWN:
        title += f", the first {MOST_SHOWN}"
    rows = [
        (row.quarantine_id, row.decider, row.decider_id, row.action, row.fault or "waits for one before it")
        for row in found
    ]
    console.print(table(title, ("number", "decider", "row", "action", "why"), rows))


@app.command("requeue")
def requeue_command(name: CaptureName, reason: Why, dsn: DsnOption = None) -> None:
    """Retry quarantined changes, those of each row in order, after their cause is repaired."""
    with capture_store(dsn) as store:
        report = requeue(store, declared_capture(name, dsn), reason)
    Screen().print(f"{report.requeued:,} changes are events now; {report.waiting:,} still wait.")


@app.command("discard")
def discard_command(
    number: Annotated[int, typer.Argument(help="The change's number, as `quarantined` shows it.", metavar="NUMBER")],
    reason: Why,
    dsn: DsnOption = None,
) -> None:
    """Give up a quarantined change; the next `requeue` tries the changes that wait behind it."""
    with capture_store(dsn) as store:
        store.discard_change(number, reason)
    Screen().print(f"Change {number} is given up.")


@contextmanager
def capture_store(dsn: str | None) -> Iterator[CaptureStore]:
    """Connect to the store of captures, migrated to this version."""
    with chosen_store(dsn) as store:
        # migrate an older store, as a capture's run does; a role without the right to gets an error
        migrate(chosen_dsn(dsn), log_partitions=None)
        yield CaptureStore(store.connection)


def declared_capture(name: str, dsn: str | None) -> Capture:
    """Return a capture that is declared for that store.

    Raises:
        MillraceError: No capture has this name; the text lists the declared ones.
    """
    declarations = _declarations(dsn)
    if name not in declarations.captures:
        raise MillraceError(
            f"There is no capture {name!r}.",
            detail="\n".join(f"A file of captures fails to load: {fault}" for fault in declarations.faults) or None,
            hint=f"Declared are: {', '.join(declarations.captures) or 'none'}.",
        )
    return declarations.captures[name]


def _tables(store: CaptureStore, capture: Capture) -> tuple[CapturedTable, ...]:
    return with_registered(capture, store.captured_tables(capture.name)).tables


def _table(store: CaptureStore, capture: Capture, name: str) -> CapturedTable:
    tables = _tables(store, capture)
    found = [each for each in tables if name in (each.name, each.table)]
    if len(found) != 1:
        raise MillraceError(
            f"Capture {capture.name} has {'no' if not found else 'more than one'} table {name!r}.",
            hint=f"It has: {', '.join(each.name for each in tables)}.",
        )
    return found[0]


def _printer(console: Screen) -> Callable[[Verification], None]:
    """Return a function that prints the progress of a verification now and then."""
    printed_at = time.monotonic()

    def show(found: Verification) -> None:
        nonlocal printed_at
        if found.waits_for:
            console.print(
                Text(f"{found.table}: waits for the end of {found.waits_for}", style="yellow"), soft_wrap=True
            )
        elif time.monotonic() - printed_at >= ASK_S:
            printed_at = time.monotonic()
            console.print(f"{found.table}: {found.rows:,} rows read, {found.changed + found.missing:,} differ")

    return show


def _declarations(dsn: str | None) -> Declarations:
    return declared_beside(dsn, ["captures"])


def _undeclared(info: CaptureInfo, declarations: Declarations) -> str:
    """Say what an operator can do about a registered capture that no file declares."""
    if declarations.faults:
        files = "; ".join(map(str, declarations.faults))
        return f"{info.capture}: it is registered, and its declaration may be one that fails to load: {files}"
    return (
        f"{info.capture}: it is registered and no longer declared; while slot {info.slot} is there, its source keeps its"
        " log. Declare it again to go on, or to remove it with: millrace capture remove"
    )
