"""What several commands are given: the event store, a view, a reason, a read model.

Belongs here: which store a command means, and the connection to it. Not here: where a running deployment is; that is
`millrace.resources.postgres.dsn`.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.resources.connecting import connect
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore
from millrace.resources.postgres.dsn import current_dsn, drain_dsn
from millrace.resources.postgres.logins import too_mighty
from millrace.resources.settings import Settings

if TYPE_CHECKING:
    from millrace.assets.declarations import Declarations
    from millrace.resources.read_models.declared.declaration import ReadModel

DsnOption = Annotated[
    str | None, typer.Option(help="The event store; by default MILLRACE_DSN, or the running `millrace up`.")
]
View = Annotated[str, typer.Argument(help="The view.", metavar="VIEW")]
Model = Annotated[str, typer.Argument(help="The read model.", metavar="MODEL")]
Reason = Annotated[str | None, typer.Option(help="Why, for the audit log.")]


def chosen_dsn(dsn: str | None) -> str:
    """Return the DSN that was stated, or the one of the deployment at hand."""
    return dsn or current_dsn(Settings())


def rows_dsn(dsn: str | None) -> str:
    """Return the DSN of a command that reads or changes rows of read models: in the embedded store the drains' login.

    Refuses a login with rights that others, who may hang a trigger on these rows, have not.
    """
    chosen = dsn or drain_dsn(Settings())
    if why := too_mighty(chosen, beside_others=True):
        raise MillraceError(why)
    return chosen


@contextmanager
def chosen_store(dsn: str | None) -> Iterator[EventStore]:
    """Connect to that store for a command; each call is a transaction of its own."""
    with connect(chosen_dsn(dsn)) as connection:
        yield EventStore(connection)


def declared_beside(dsn: str | None, rooms: Collection[str] | None = None) -> "Declarations":
    """Return what is declared for that store: no example for one that was stated."""
    from millrace.assets.declarations import ROOMS, declared

    settings = Settings() if dsn is None else Settings().model_copy(update={"dsn": dsn})
    return declared(settings.declared_package, ROOMS if rooms is None else rooms)


def declared_model(name: str) -> "ReadModel":
    """Return a declared read model.

    Raises:
        MillraceError: There is none of this name; the text names those that there are.
    """
    from millrace.assets.declarations import declared

    return declared(Settings().declared_package, ["read_models"]).model(name)
