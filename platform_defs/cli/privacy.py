"""The commands on personal data, `millrace privacy …`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from millrace.errors import MillraceError
from millrace.platform_defs.cli.options import DsnOption, chosen_dsn, chosen_store, declared_beside, key_folder
from millrace.platform_defs.cli.output import in_utc, progress_bar, table
from millrace.platform_defs.screen import Screen
from millrace.redact import masked
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.operations.privacy import PrivacyStore

app = typer.Typer(no_args_is_help=True)

COLUMNS = ("epoch", "began", "living keys", "forgotten keys", "file destroyed")

Subject = Annotated[str, typer.Argument(help="The person, as <kind>:<id>, such as customer:c-7.", metavar="SUBJECT")]
Why = Annotated[str, typer.Option("--reason", help="Why, for the audit log, which keeps it: no personal data.")]


@app.command("begin")
def begin_command(dsn: DsnOption = None) -> None:
    """Make the keys of the folder MILLRACE_KEYS, where it has none, and let them seal people's keys from now on."""
    from millrace.operations.privacy import begin

    with _store(dsn) as store:
        folder = begin(store, key_folder())
    _say(f"The keys of {folder.path}, epoch {folder.epoch}, are those of the store.")
    _say(
        "Keep a copy of the folder apart from the backups of the database: without it nothing sealed can be read, and beside"
        " a backup from before it brings forgotten data back.",
        style="yellow",
    )


@app.command("forget")
def forget_command(subject: Subject, reason: Why, dsn: DsnOption = None) -> None:
    """Forget a person: destroy the key of what was sealed for the person. What is sealed later has no content."""
    from millrace.operations.privacy import forget
    from millrace.personal.sealer import KEPT_S

    with _store(dsn) as store:
        gone, epoch = forget(store, key_folder(), subject, reason)
    _say(
        f"{subject} is forgotten: its key {gone.key_id} is gone since {in_utc(gone.forgotten_at)} UTC. From then on no program"
        f" can get it here; one that had it in memory keeps it for {KEPT_S / 60:.0f} minutes at most."
    )
    _say(
        f"Copies from before still hold the key, wrapped by epoch-{epoch}.key: backups, files of standbys, the WAL, dead rows."
        " Such a copy and that file together open what was sealed, until `millrace privacy rotate` destroys the file.",
        style="yellow",
    )
    for told in _told_by_sources(subject, dsn):
        _say(told, style="yellow")


@app.command("readmit")
def readmit_command(subject: Subject, reason: Why, dsn: DsnOption = None) -> None:
    """Let a forgotten person, come back, get a new key; what was sealed before stays forgotten."""
    from millrace.operations.privacy import readmit

    with _store(dsn) as store:
        key_id = readmit(store, key_folder(), subject, reason)
    if key_id is None:
        _say(f"{subject} is not forgotten; nothing was changed.")
    else:
        _say(f"{subject} gets a new key with its next event. Key {key_id} stays gone, with all that it sealed.")


@app.command("rotate")
def rotate_command(dsn: DsnOption = None) -> None:
    """Wrap the keys of all living people anew, and destroy the file before: copies of forgotten keys open no more.

    A program with another copy of the folder needs the new file. After a kill the command goes on.
    """
    from millrace.event_store.key_rotation import rotate

    with progress_bar("Wrapping keys") as bar:
        epoch = rotate(
            chosen_dsn(dsn),
            key_folder(),
            progress=lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total),
        )
    _say(
        f"All living keys are wrapped by epoch-{epoch}.key, and the file before is destroyed here: destroy its other copies."
        " Once none is left, no copy of the database opens what was forgotten until now."
    )


@app.command("status")
def status_command(dsn: DsnOption = None) -> None:
    """Show the epochs of keys with their numbers of keys, and whether the folder MILLRACE_KEYS is that of the store."""
    from millrace.operations.privacy import problems

    folder = Settings().keys
    with _store(dsn) as store:
        epochs = store.key_counts()
        found = None if folder is None else problems(store, folder, epochs)
    rows = [
        (
            each.epoch,
            in_utc(each.began_at),
            f"{each.living:,}",
            f"{each.forgotten:,}",
            in_utc(each.destroyed_at) if each.destroyed_at else "",
        )
        for each in epochs
    ]
    Screen().print(table("Keys of people", COLUMNS, rows))
    if found is None:
        _say("MILLRACE_KEYS is not set: no folder was compared.", style="yellow")
    elif not found:
        _say(f"The folder {folder} is that of the store.")
    for problem in found or ():
        _say(problem, style="red")


def _told_by_sources(subject: str, dsn: str | None) -> Iterator[str]:
    """Say which sources of declared captures still have a person; one that cannot be asked is said, too."""
    from millrace.capture.source.connection import connect_source
    from millrace.capture.source.people import rows_of_person

    try:
        declarations = declared_beside(dsn, ["captures"])
    except MillraceError as error:
        yield f"No source of a capture was asked: {error}"
        return
    for fault in declarations.faults:
        yield f"The source of a capture was not asked, because its file does not load: {fault}"
    kind, _, identity = subject.partition(":")
    for capture in declarations.captures.values():
        if not any(table.personal for table in capture.tables):
            continue
        try:
            with connect_source(capture.source()) as source:
                for delete in rows_of_person(source, capture, kind, identity):
                    yield (
                        f"The source of capture {capture.name} still has {subject}; its values come sealed, without content, from"
                        f" now on. To delete them there: {delete};"
                    )
        except Exception as error:  # noqa: BLE001 - the person is forgotten; the user's function may raise anything
            yield f"The source of capture {capture.name} was not asked for {subject}: {masked(str(error))}"


@contextmanager
def _store(dsn: str | None) -> "Iterator[PrivacyStore]":
    from millrace.operations.privacy import PrivacyStore

    with chosen_store(dsn) as store:
        yield PrivacyStore(store.connection)


def _say(text: str, style: str = "") -> None:
    Screen().print(Text(text, style=style), soft_wrap=True)
