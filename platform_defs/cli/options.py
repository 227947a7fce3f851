"""The arguments that several commands take: the event store, a view, a reason, a read model."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.assets.declarations import NAME_IT, ROOMS, Declarations, declared
from millrace.errors import InvalidSetting, MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.postgres.connecting import connect
from millrace.postgres.dsn import current_dsn, drain_dsn
from millrace.postgres.logins import too_mighty
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.read_models.declared.declaration import ReadModel

DsnOption = Annotated[
    str | None, typer.Option(help="The event store; by default MILLRACE_DSN, or the running `millrace up`.")
]
View = Annotated[str, typer.Argument(help="The view.", metavar="VIEW")]
Model = Annotated[str, typer.Argument(help="The read model.", metavar="MODEL")]
Reason = Annotated[str | None, typer.Option(help="Why, for the audit log.")]


def chosen_dsn(dsn: str | None) -> str:
    """Return the stated DSN, or that of the deployment at hand."""
    return dsn or current_dsn(Settings())


def rows_dsn(dsn: str | None) -> str:
    """Return the DSN of a command that reads or changes rows of read models: in the embedded store the drains' login.

    Refuses a login with more rights than the roles that may put a trigger on these rows.
    """
    chosen = dsn or drain_dsn(Settings())
    if why := too_mighty(chosen, beside_others=True):
        raise MillraceError(why)
    return chosen


def key_folder() -> Path:
    """Return the folder of the keys of personal data.

    Raises:
        InvalidSetting: MILLRACE_KEYS is not set.
    """
    folder = Settings().keys
    if folder is None:
        raise InvalidSetting("MILLRACE_KEYS is not set.", hint="Name the folder of the keys of personal data in it.")
    return folder


@contextmanager
def chosen_store(dsn: str | None) -> Iterator[PlatformStore]:
    """Connect to that store for a command; each call is a transaction of its own."""
    with connect(chosen_dsn(dsn)) as connection:
        yield PlatformStore(connection)


def declared_beside(dsn: str | None, rooms: Collection[str] | None = None) -> Declarations:
    """Return the declarations for that store; for a stated one without those that `millrace up` noted in the home.

    Raises:
        MillraceError: Nothing names a package for the embedded store.
    """
    settings = Settings() if dsn is None else Settings().model_copy(update={"dsn": dsn})
    if settings.declared_package is None and settings.dsn is None:
        raise MillraceError("Nothing names a package of declarations here.", hint=NAME_IT)
    return declared(settings.declared_package, ROOMS if rooms is None else rooms)


def loadable_beside(dsn: str | None) -> Declarations:
    """Return the declarations for that store; those that Dagster refuses are faults.

    Raises:
        MillraceError: Nothing names a package, or Dagster refuses all of it.
    """
    from millrace.platform_defs.loading import loadable

    return loadable(declared_beside(dsn), Settings())[0]


def agreed(question: str) -> bool:
    """Ask a question; False if no answer can come."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        return False


def declared_model(name: str, dsn: str | None) -> "ReadModel":
    """Return a read model that is declared for that store.

    Raises:
        MillraceError: No read model has this name; the text lists the declared ones.
    """
    return declared_beside(dsn, ["read_models"]).model(name)
