"""The command `millrace run handlers`: runs declared subscriptions until it is stopped.

Belongs here: which subscriptions are meant. Not here: how they are consumed (`millrace.resources.consumers`).
"""

import logging
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
from millrace.platform_defs.cli.signals import stop_on_signals
from millrace.resources.errors import MillraceError

if TYPE_CHECKING:
    from millrace.resources.consumers.declaration import Subscription

app = typer.Typer()


@app.command("consume")
def consume_command(
    modules: Annotated[
        list[str],
        typer.Argument(
            help="Modules or packages with subscriptions, or one of them: my_platform.mails:send_mail.",
            metavar="MODULE[:NAME]",
        ),
    ],
    dsn: DsnOption = None,
) -> None:
    """Call the handlers of subscriptions for each event, until stopped with Ctrl-C or SIGTERM.

    A stop waits for the handlers that run, and gives back what none has begun.
    """
    from millrace.resources.consumers.consumer import consume

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # one subscription may be named twice, by its module and by itself
    subscriptions = list({id(each): each for module in modules for each in subscriptions_of(module)}.values())
    with stop_on_signals() as stop:
        consume(chosen_dsn(dsn), subscriptions, stop=stop)


def subscriptions_of(place: str) -> "Sequence[Subscription]":
    """Return the subscriptions of a module, with those below a package, or the one that is named behind a colon.

    Raises:
        MillraceError: There are none, or the module fails to load; the text says why.
    """
    from millrace.resources.consumers.declaration import Subscription

    name, _, attribute = place.partition(":")
    module = _loaded(name)
    if attribute:
        found = [getattr(module, attribute, None)]
    else:
        below = iter_modules(getattr(module, "__path__", ()), f"{name}.")
        found = [each for one in (module, *(_loaded(info.name) for info in below)) for each in vars(one).values()]
    subscriptions = list({id(each): each for each in found if isinstance(each, Subscription)}.values())
    if not subscriptions:
        raise MillraceError(
            f"{place} is no subscription." if attribute else f"The module {name} has no subscriptions.",
            hint="Declare one with @subscription(view=…) from millrace.",
        )
    return subscriptions


def _loaded(name: str) -> ModuleType:
    try:
        return import_module(name)
    except MillraceError:
        raise
    except Exception as error:
        raise MillraceError(
            f"The module {name} fails to load.",
            detail=f"{type(error).__name__}: {error}",
            hint="Name it as Python imports it, from the current folder or an installed package.",
        ) from error
