"""The commands for operators of views, `millrace view …`."""

import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.handlers.store import PushStore
from millrace.platform_defs.cli.options import (
    DsnOption,
    Model,
    Reason,
    View,
    agreed,
    chosen_store,
    declared_model,
    rows_dsn,
)
from millrace.platform_defs.cli.output import table
from millrace.platform_defs.screen import Screen
from millrace.read_models.stored.store import ReadModelStore
from millrace.signing import fault_of, made_secret

app = typer.Typer(no_args_is_help=True)


class SeekKind(StrEnum):
    """Where a view is moved to."""

    EXACT_OFFSET = "EXACT_OFFSET"
    RESET_TO_OFFSET = "RESET_TO_OFFSET"
    RESET_TO_EARLIEST = "RESET_TO_EARLIEST"
    RESET_TO_LATEST = "RESET_TO_LATEST"
    RESUME_OR_EARLIEST = "RESUME_OR_EARLIEST"
    RESUME_OR_LATEST = "RESUME_OR_LATEST"
    EXACT_TIMESTAMP = "EXACT_TIMESTAMP"


@app.command("enable")
def enable_command(view: View, reason: Reason = None, dsn: DsnOption = None) -> None:
    """Deliver events to a view again."""
    with chosen_store(dsn) as store:
        changed = sum(_enable(store, each, True, reason) for each in _views_of(store, view))
    Screen().print(Text(f"{view} is given events." if changed else f"{view} was enabled before; nothing was changed."))


@app.command("disable")
def disable_command(view: View, reason: Reason = None, dsn: DsnOption = None) -> None:
    """Deliver no more events to a view; events in flight may still be acknowledged or committed."""
    with chosen_store(dsn) as store:
        changed = sum(_enable(store, each, False, reason) for each in _views_of(store, view))
    message = f"{view} is given no more events, and its lag grows, until: millrace view enable {shlex.quote(view)}"
    Screen().print(Text(message if changed else f"{view} was disabled before; nothing was changed."), soft_wrap=True)


@app.command("secret")
def secret_command(
    view: View,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The file of the secret, for the receiver's setup. If it does not exist, a secret is made.",
            metavar="FILE",
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Sign no more.")] = False,
    keep_s: Annotated[
        int, typer.Option(help="For how many seconds the secret before signs, too.", min=0, max=31_536_000)
    ] = 86_400,
    reason: Reason = None,
    dsn: DsnOption = None,
) -> None:
    """Sign the pushes of a view as Standard Webhooks defines, or rotate their secret. It prints no secret."""
    if remove is (file is not None):
        raise MillraceError(
            "Name a file for the secret, or say --remove.",
            hint=f"For instance: millrace view secret {shlex.quote(view)} {shlex.quote(view)}.secret",
        )
    with chosen_store(dsn) as store:
        pushes = PushStore(store.connection)
        if file is None:
            pushes.drop_push_secret(view, reason)
            message = f"Pushes of {view} are not signed any more."
        else:
            store.view_info(view)  # refuse an unknown view before a file is made
            pushes.set_push_secret(view, _secret_in(file), keep_s, reason)
            message = (
                f"Pushes of {view} are signed with the secret in {file} within a minute, and for {keep_s} s with the one"
                " before, too. Give the file to the receiver alone."
            )
    Screen().print(Text(message), soft_wrap=True)


def _secret_in(file: Path) -> str:
    """Return the secret in a file; make both if the file is missing."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        # a killed call left it, or the user made it
        secret = file.read_text().strip()
        if fault := fault_of(secret):
            raise MillraceError(
                f"What {file} holds {fault}.", hint="Name a file that is not there: a secret is made in it."
            ) from None
        return secret
    except OSError as error:
        raise MillraceError(f"{file} cannot be made: {error.strerror}.") from error
    secret = made_secret()
    with os.fdopen(descriptor, "w") as opened:
        opened.write(secret + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    return secret


@app.command("remove")
def remove_command(
    view: View,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: Reason = None,
    dsn: DsnOption = None,
) -> None:
    """Remove a view; its progress, its locks and its dead letters are lost.

    Refused while one of its leases is held or streams are in flight. Also removes tables of show as-of and show diff.
    """
    from millrace.read_models.stored.past import is_beside, remove_now

    with chosen_store(dsn) as store:
        if is_beside(store.connection, view):
            remove_now(store.connection, view)
            Screen().print(Text(f"{view} is removed with its rows."))
            return
        if not yes:
            # let the store refuse before asking for consent
            with store.connection.transaction(force_rollback=True):
                store.unregister_view(view)
            (info,) = store.view_info(view)
            Screen().print(
                Text(
                    f"{view} is removed with its progress ({info.behind:,} positions behind), {info.waiting:,} streams that wait"
                    f" and {info.dead_letters:,} dead letters. Nothing brings them back: registered again it is a new view."
                )
            )
            if not agreed("Remove it?"):
                raise MillraceError(
                    f"{view} was not removed: the question was not answered with yes.", hint="Answer y, or give --yes."
                )
        store.unregister_view(view, reason)
    Screen().print(Text(f"{view} is removed with its progress."))


@app.command("seek")
def seek_command(
    view: View,
    kind: Annotated[SeekKind, typer.Argument(case_sensitive=False, help="Where to.")],
    position: Annotated[
        int | None, typer.Option(help="For EXACT_OFFSET and RESET_TO_OFFSET; with --partition.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(help="For EXACT_TIMESTAMP; without an offset it is UTC.", metavar="TIME")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="One log partition; by default all.")] = None,
    reason: Reason = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    dsn: DsnOption = None,
) -> None:
    """Move a view to another position. Refused while one of its leases is held or streams are in flight."""
    with chosen_store(dsn) as store:
        seeks = store.seek_view(view, kind.value, position, timestamp, partition, dry_run=dry_run, reason=reason)
    title = f"{view}: {kind.value}" + (" (dry run, nothing was changed)" if dry_run else "")
    columns = ("partition", "from", "to", "locks removed", "of them dead letters", "")
    rows = [
        (each.partition, each.from_position, each.to_position, each.locks_removed, each.dead_letters_removed, each.note)
        for each in seeks
    ]
    Screen().print(table(title, columns, rows))


@app.command("reset")
def reset_command(model: Model, dsn: DsnOption = None) -> None:
    """Remove a read model's tables and progress; the next drain rebuilds it from the first event."""
    from millrace.read_models.stored.versions import reset_model

    declared = declared_model(model, dsn)
    with chosen_store(dsn) as store:
        reset_model(store.connection, declared)
    Screen().print(f"Read model {model} is removed; its next drain builds it from the first event.")


@app.command("approve")
def approve_command(model: Model, reason: Reason = None, dsn: DsnOption = None) -> None:
    """Approve a changed read model that waits for it, as declared in the code at hand, so that it serves."""
    from millrace.read_models.stored.versions import approve_version

    declared = declared_model(model, dsn)
    with chosen_store(rows_dsn(dsn)) as store:
        serves = approve_version(store.connection, declared, reason)
    outcome = "serves" if serves else "is approved, and serves when it has caught up and no consumer holds the view"
    Screen().print(Text(f"Read model {model} {outcome}, as it is declared."), soft_wrap=True)


@app.command("unlock")
def unlock_command(
    view: View,
    decider: Annotated[str | None, typer.Argument(help="The stream's decider.", metavar="[DECIDER]")] = None,
    decider_id: Annotated[str | None, typer.Argument(help="The stream.", metavar="[ID]")] = None,
    reason: Reason = None,
    dsn: DsnOption = None,
) -> None:
    """Redeliver the events in flight of a view or of one stream at once: for a consumer that hangs.

    Late answers are refused. It does not count as a failed attempt. Streams that wait for a retry are due at once.
    """
    with chosen_store(dsn) as store:
        ended = sum(store.end_locks(each, decider, decider_id, reason=reason) for each in _views_of(store, view))
    Screen().print(Text(f"{ended} locks of {view} are ended."))


def _views_of(store: PlatformStore, name: str) -> list[str]:
    """Return the views of all versions of a read model of this name, else the view of this name."""
    views = [version.view for version in ReadModelStore(store.connection).model_versions(name)]
    return views if views and (name in views or not store.is_registered(name)) else [name]


def _enable(store: PlatformStore, view: str, enabled: bool, reason: str | None) -> bool:
    (before,) = store.view_info(view)
    store.enable_view(view, enabled, reason=reason)
    return before.enabled != enabled
