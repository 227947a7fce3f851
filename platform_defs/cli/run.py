"""The commands that run until they are stopped, `millrace run …`."""

import logging
import shlex
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from math import inf
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer
from rich.text import Text

from millrace.errors import MillraceError, Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.patience import ASK_S
from millrace.platform_defs.cli.capture import CaptureName, capture_store, declared_capture
from millrace.platform_defs.cli.options import DsnOption, Model, chosen_dsn, chosen_store, declared_model, rows_dsn
from millrace.platform_defs.cli.signals import stop_on_signals
from millrace.platform_defs.screen import Screen
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.handlers.declaration import Subscription

app = typer.Typer(no_args_is_help=True)


@app.command("sequencer")
def sequencer_command(
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Answer GET /metrics there, on 127.0.0.1; by default MILLRACE_METRICS_PORT."
        ),
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Give committed events their positions, append scheduled ones, send alerts; until Ctrl-C or SIGTERM."""
    from millrace.operations.alerts.alerter import alerting
    from millrace.platform_defs.beside_store import sources_of_alerts
    from millrace.platform_defs.metrics.serve import metrics_beside
    from millrace.scheduled_events import firing
    from millrace.sequencer import run_sequencer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings, store = Settings(), chosen_dsn(dsn)
    port = settings.metrics_port if metrics_port is None else metrics_port
    sources = sources_of_alerts(settings)
    with stop_on_signals() as stop, metrics_beside(store, port), alerting(store, settings, sources), firing(store):
        run_sequencer(store, stop)


@app.command("drain")
def drain_command(
    model: Model,
    once: Annotated[bool, typer.Option("--once", help="End when the read model has all events.")] = False,
    dsn: DsnOption = None,
) -> None:
    """Keep a read model fresh without Dagster, until stopped with Ctrl-C or SIGTERM.

    It waits for a restart of Postgres, and, without --once, for one of Spark. With --once it exits with 1 if it cannot
    have all events, and says why.
    """
    from millrace.drain.limits import Limits
    from millrace.drain.report import DrainReport
    from millrace.drain.view_drain import ViewDrain
    from millrace.read_models.stored.versions import current_version
    from millrace.spark import spark_when_needed

    declared, builder, settings = declared_model(model, dsn), rows_dsn(dsn), Settings()
    report, archive, limits = DrainReport(), settings.archive_folder, Limits.of(settings)
    with stop_on_signals() as stop:
        while True:
            try:
                with spark_when_needed() as spark:
                    owner = f"drain {uuid4()}"
                    with ViewDrain(builder, declared, spark, owner, archive=archive, limits=limits) as consumer:
                        consumer.drain(budget_s=inf, idle_s=0 if once else inf, on_commit=report.add, stop=stop)
                # the consumer also ends when an event's schema changed: then build with the new model
                with chosen_store(builder) as store:
                    if stop.is_set() or (once and current_version(store.connection, declared) == consumer.model):
                        break
            except Unreachable as error:
                # before the first commit Spark may never have been reachable: do not wait for it
                if once or not report.moved:
                    raise
                Screen(stderr=True).print(Text(f"Waiting, and trying again: {error}"), soft_wrap=True)
                stop.wait(ASK_S)
    Screen().print(f"Read model {model}: {report.events:,} positions, {report.rows:,} changes of rows.")
    if once and not stop.is_set():
        with chosen_store(builder) as store:
            _require_all(store, model, consumer.model.view)


def _require_all(store: PlatformStore, model: str, view: str) -> None:
    """Raise the reason for which a drain ended before its view had all events that it wants."""
    (info,), owners = store.view_info(view), store.lease_owners(view)
    if not info.enabled:
        why, hint = "the view is disabled", f"Enable it: millrace view enable {shlex.quote(view)}"
    elif owners:
        why = f"others hold leases of {info.leased_partitions} log partitions: {', '.join(owners)}"
        hint = "A lease ends a minute after its owner died at the latest. Run this again then."
    else:
        why, hint = f"{info.waiting:,} streams failed and wait for a retry", "Run this again in a minute."
    if info.lag and (owners or info.waiting or not info.enabled):
        least = "" if info.exact else "at least "
        raise MillraceError(
            f"Read model {model} has not all events, {least}{info.lag:,} are to come: {why}.", hint=hint
        )


@app.command("handlers")
def handlers_command(
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

    With MILLRACE_KEYS they get personal values opened. A stop waits for the running handlers, and gives back the events
    that no handler has begun.
    """
    from millrace.handlers.consumer import consume
    from millrace.personal.sealer import Sealer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # one subscription may be named twice, by its module and by itself
    subscriptions = list({id(each): each for module in modules for each in subscriptions_of(module)}.values())
    keys = Settings().keys
    with stop_on_signals() as stop:
        consume(chosen_dsn(dsn), subscriptions, stop=stop, sealer=Sealer.from_folder(keys) if keys else None)


@app.command("capture")
def capture_command(name: CaptureName, dsn: DsnOption = None) -> None:
    """Capture without Dagster, until stopped with Ctrl-C or SIGTERM. A second process for the same capture waits.

    It waits for a restart of the source or of the event store.
    """
    from millrace.capture.follow import follow

    capture = declared_capture(name, dsn)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with stop_on_signals() as stop:
        with capture_store(dsn):
            pass  # of this version
        follow(chosen_dsn(dsn), capture, stop)


@app.command("metrics")
def metrics_command(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 for any free port.")] = 9918,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    dsn: DsnOption = None,
) -> None:
    """Answer GET /metrics for Prometheus, until stopped with Ctrl-C or SIGTERM."""
    from millrace.platform_defs.metrics.serve import serving_metrics

    with stop_on_signals() as stop, serving_metrics(chosen_dsn(dsn), port, host) as bound_port:
        Screen().print(f"Metrics are at http://{host}:{bound_port}/metrics; Ctrl-C ends this.", soft_wrap=True)
        stop.wait()


@app.command("streams")
def streams_command(dsn: DsnOption = None) -> None:
    """Let browsers and programs read streams and read models over HTTP, until Ctrl-C or SIGTERM.

    MILLRACE_STREAMS_HOST and MILLRACE_STREAMS_PORT say where; `millrace streams token add` lets a login read.
    """
    from millrace.streams.app import serving_streams
    from millrace.streams.followers import Followers
    from millrace.streams.reading import StreamStore

    settings, followers = Settings(), Followers(chosen_dsn(dsn))
    with chosen_store(dsn) as store:
        StreamStore(store.connection).log_place()  # the login may
    where = (settings.streams_host, settings.streams_port)
    with stop_on_signals() as stop, serving_streams(followers, *where, settings.listed_ui_hosts) as port:
        Screen().print(f"Streams are at http://{settings.streams_host}:{port}/; Ctrl-C ends this.", soft_wrap=True)
        stop.wait()


@app.command("service")
def service_command(service: Annotated[str, typer.Argument(help="Its name, as `millrace up` says it.")]) -> None:
    """Run one service of `millrace up` by itself and watch it, until stopped with Ctrl-C or SIGTERM."""
    from millrace.platform_defs.local.watched import watch

    with stop_on_signals() as stop:
        watch(service, Settings(), stop, partial(Screen().print, markup=False, highlight=False, soft_wrap=True))


def subscriptions_of(place: str) -> "Sequence[Subscription]":
    """Return the subscriptions of a module or of all modules of a package, or the one named after a colon.

    Raises:
        MillraceError: There is no subscription, or the module fails to load; the text says why.
    """
    from millrace.handlers.declaration import Subscription

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
