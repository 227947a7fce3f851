"""The commands on personal data, `millrace privacy …`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from millrace.errors import MillraceError
from millrace.platform_defs.cli.options import DsnOption, chosen_dsn, chosen_store, declared_beside
from millrace.platform_defs.cli.output import in_utc, table
from millrace.platform_defs.screen import Screen
from millrace.redact import masked
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.event_store.key_rotation import KeyStore

app = typer.Typer(no_args_is_help=True)

Subject = Annotated[str, typer.Argument(help="The person, as <kind>:<id>, such as customer:c-7.", metavar="SUBJECT")]
Why = Annotated[str, typer.Option("--reason", help="Why, for the audit log, which keeps it: no personal data.")]


@app.command("init")
def init_command(dsn: DsnOption = None) -> None:
    """Make the keys of the folder MILLRACE_KEYS, where it has none, and let them seal people's keys from now on."""
    from millrace.operations.privacy import init

    with _store(dsn) as store:
        folder = init(store, Settings().keys_folder)
    _say(f"The keys of {folder.path}, epoch {folder.epoch}, are those of the store.")
    _say(
        "Keep a copy of the folder apart from the backups of the database, by `millrace privacy backup-keys`: without it"
        " nothing sealed can be read, and beside a backup from before it brings forgotten data back.",
        style="yellow",
    )


@app.command("forget")
def forget_command(subject: Subject, reason: Why, dsn: DsnOption = None) -> None:
    """Forget a person: destroy the key of what was sealed for the person. What is sealed later has no content."""
    from millrace.operations.privacy import forget, given_values, planned
    from millrace.personal.sealer import KEPT_S

    with _store(dsn) as store:
        gone = forget(store, Settings().keys_folder, subject, reason)
        views = given_values(store)
    _say(
        f"{subject} is forgotten: its key {gone.key_id} is gone since {in_utc(gone.forgotten_at)} UTC. From then on no program"
        f" can get it here; one that had it in memory keeps it for {KEPT_S / 60:.0f} minutes at most."
    )
    _say(
        f"Copies from before still hold the key, wrapped by epoch-{gone.epoch}.key: backups, files of standbys, the WAL, dead rows."
        " Such a copy and that file together open what was sealed, until `millrace privacy rotate` destroys the file:"
        f" planned for {in_utc(planned(gone.forgotten_at))} UTC.",
        style="yellow",
    )
    if views:
        _say(
            "Values may have gone to the handlers or receivers of these views, and into data of their own:"
            f" {', '.join(views)}. Erase the person there.",
            style="yellow",
        )
    for told in _told_by_sources(subject, dsn):
        _say(told, style="yellow")


@app.command("readmit")
def readmit_command(subject: Subject, reason: Why, dsn: DsnOption = None) -> None:
    """Let a forgotten person, come back, get a new key; what was sealed before stays forgotten."""
    from millrace.event_store.key_rotation import folder_of

    with _store(dsn) as store:
        key_id = store.readmit_subject(folder_of(store, Settings().keys_folder).mac(subject), reason)
    if key_id is None:
        _say(f"{subject} is not forgotten; nothing was changed.")
    else:
        _say(f"{subject} gets a new key with its next event. Key {key_id} stays gone, with all that it sealed.")


@app.command("rotate")
def rotate_command(dsn: DsnOption = None) -> None:
    """Wrap the keys of all living people anew, and destroy the file before: copies of forgotten keys open no more.

    A program with another copy of the folder needs the new file before. After a kill the command goes on.
    """
    from millrace.event_store.key_rotation import rotate

    epoch = rotate(chosen_dsn(dsn), Settings().keys_folder)
    _say(
        f"All living keys are wrapped by epoch-{epoch}.key, and the file before is destroyed here. Once no other copy of it"
        " is left, no copy of the database opens what was forgotten until now: `millrace privacy status` says when."
    )


@app.command("show")
def show_command(subject: Subject, dsn: DsnOption = None) -> None:
    """Show the key of a person, and how many events hold what it sealed. It reads all events, which takes a while."""
    from millrace.event_store.key_rotation import folder_of
    from millrace.operations.privacy import confirmed, planned

    with _store(dsn) as store:
        found = store.subject_events(folder_of(store, Settings().keys_folder).mac(subject))
        epochs = store.key_counts()
    if not found:
        _say(f"{subject} has no key: nothing was sealed for it, or it was readmitted and nothing since.")
        return
    key = found[0]
    if key.forgotten_at is None:
        _say(
            f"{subject} has the key {key.key_id} since {in_utc(key.created_at)} UTC, wrapped by epoch-{key.epoch}.key."
        )
    else:
        gone = confirmed(epochs, key.epoch)
        everywhere = "confirmed at" if gone else "planned for"
        _say(
            f"{subject} is forgotten: its key {key.key_id} is gone since {in_utc(key.forgotten_at)} UTC, in all copies:"
            f" {everywhere} {in_utc(gone or planned(key.forgotten_at))} UTC."
        )
    rows = [(each.decider, each.event, f"{each.events:,}") for each in found if each.event]
    Screen().print(table("Events with what it sealed, without purged ones", ("decider", "event", "events"), rows))


@app.command("backup-keys")
def backup_keys_command(
    folder: Annotated[Path, typer.Argument(help="The copy: outside of databases and backups.", metavar="DIR")],
    dsn: DsnOption = None,
) -> None:
    """Copy the folder MILLRACE_KEYS for a custodian, and check the copy. Over an earlier copy it destroys old files."""
    from millrace.operations.privacy import backup_keys

    with _store(dsn) as store:
        copy = backup_keys(store, Settings().keys_folder, folder)
    _say(f"{copy.path} has the keys at epoch {copy.epoch}. After the next rotation copy them anew to the same place.")


@app.command("restore-keys")
def restore_keys_command(dsn: DsnOption = None) -> None:
    """Let a store that was set back to an earlier time, or promoted, have its keys as MILLRACE_KEYS has them."""
    from millrace.event_store.key_rotation import restored_keys

    with _store(dsn) as store:
        forgotten = restored_keys(store.connection, Settings().keys_folder)
    _say(
        f"The keys are those of {Settings().keys_folder}: {forgotten:,} that were forgotten since are forgotten again."
    )


@app.command("retire")
def retire_command(
    host: Annotated[str, typer.Argument(help="The machine, as `status` names it.", metavar="HOST")],
    folder: Annotated[str, typer.Argument(help="The folder on it.", metavar="FOLDER")],
    reason: Why,
    dsn: DsnOption = None,
) -> None:
    """Take a folder of keys off the holders: state that it is gone for good, and its copies are destroyed."""
    with _store(dsn) as store:
        retired = store.retire_holder(host, folder, reason)
    _say(f"{host} {folder} is no holder of keys{' any more' if retired else '; nothing was changed'}.")


@app.command("status")
def status_command(dsn: DsnOption = None) -> None:
    """Show the epochs of keys with their numbers of keys, and whether the folder MILLRACE_KEYS is that of the store."""
    from millrace.operations.privacy import problems, unconfirmed

    folder = Settings().keys
    with _store(dsn) as store:
        found = None if folder is None else problems(store, folder)
        epochs, holders = store.key_counts(), store.key_holders()
    rows = []
    for each in epochs:
        file = f"destroyed {in_utc(each.destroyed_at)}" if each.destroyed_at else None
        file = f"confirmed {in_utc(each.confirmed_at)}" if each.confirmed_at else file
        rows.append((each.epoch, in_utc(each.began_at), f"{each.living:,}", f"{each.forgotten:,}", file))
    Screen().print(table("Keys of people", ("epoch", "began", "living keys", "forgotten keys", "file"), rows))
    for holder in holders:
        _say(f"Holder {holder}: epochs {', '.join(map(str, holder.epochs)) or 'none'}")
    if found is None:
        _say("MILLRACE_KEYS is not set: no folder was compared.", style="yellow")
    elif not found:
        _say(f"The folder {folder} is that of the store.")
    for problem in (*(found or ()), *unconfirmed(epochs, holders)):
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
def _store(dsn: str | None) -> "Iterator[KeyStore]":
    from millrace.event_store.key_rotation import KeyStore

    with chosen_store(dsn) as store:
        yield KeyStore(store.connection)


def _say(text: str, style: str = "") -> None:
    Screen().print(Text(text, style=style), soft_wrap=True)
