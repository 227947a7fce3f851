"""The server that answers `GET /metrics`."""

import ipaddress
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from millrace.errors import MillraceError
from millrace.operations.metrics.store import StoreMetrics
from millrace.settings import Settings

logger = logging.getLogger(__name__)
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@contextmanager
def serving_metrics(dsn: str, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the metrics of an event store, and of the Dagster instance that DAGSTER_HOME names, if it is set.

    Args:
        dsn: The event store.
        port: Where to listen; 0 for any free port.
        host: The address to listen at. Its clients can read the names of views, captures and sensors. The Host of a
            request must be an address, `localhost`, or a name in MILLRACE_UI_HOSTS.

    Yields:
        The port.

    Raises:
        MillraceError: The port is taken, or the address is not of this machine.
    """
    with _collecting(dsn) as registry:
        try:
            names = {"localhost", host.lower(), *(each.lower() for each in Settings().listed_ui_hosts)}
            server, thread = start_http_server(port, host, registry)
            server.set_app(_for_names(names, make_wsgi_app(registry)))
        except OSError as error:
            raise MillraceError(
                f"Metrics cannot be served at {host}:{port}: {error.strerror or error}.",
                hint="State another port, or an address of this machine.",
            ) from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def _collecting(dsn: str) -> Iterator[CollectorRegistry]:
    """Yield the metrics of an event store, and of the Dagster instance that DAGSTER_HOME names, if it is set."""
    registry = CollectorRegistry()
    with ExitStack() as opened:
        store = StoreMetrics(dsn)
        opened.callback(store.close)
        registry.register(store)
        if os.environ.get("DAGSTER_HOME"):
            # do not import Dagster to watch a store without it
            from millrace.platform_defs.metrics.dagster import DagsterMetrics

            dagster = DagsterMetrics()
            opened.callback(dagster.close)
            registry.register(dagster)
        yield registry


def _for_names(names: Collection[str], app: App) -> App:
    """Refuse requests that name neither an address nor one of these names: a foreign name may resolve to us."""

    def answered(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        sent_to = environ.get("HTTP_HOST", "").lower()
        if sent_to in names or _is_local(sent_to, names):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"This is no name of these metrics. If it should be one, list it in MILLRACE_UI_HOSTS.\n"]

    return answered


def _is_local(host: str, names: Collection[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in names or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


@contextmanager
def metrics_beside(dsn: str, port: int | None) -> Iterator[None]:
    """Serve metrics beside other work, if there is a port; a failure to serve them is only logged."""
    with ExitStack() as opened:
        try:
            if port is not None:
                bound_port = opened.enter_context(serving_metrics(dsn, port))
                logger.info("metrics are at http://127.0.0.1:%s/metrics", bound_port)
        except MillraceError as error:
            logger.warning("%s", error)
        yield
