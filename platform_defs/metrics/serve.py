"""The server that answers `GET /metrics`.

Belongs here: one HTTP server over the collectors. Not here: what they collect.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from millrace.resources.errors import MillraceError
from millrace.resources.metrics.store import StoreMetrics

logger = logging.getLogger(__name__)


@contextmanager
def collecting(dsn: str) -> Iterator[CollectorRegistry]:
    """Yield the metrics of an event store, and of the Dagster instance that DAGSTER_HOME names, if it names one."""
    registry = CollectorRegistry()
    with ExitStack() as opened:
        store = StoreMetrics(dsn)
        opened.callback(store.close)
        registry.register(store)
        if os.environ.get("DAGSTER_HOME"):
            # whoever watches a store without Dagster does not import it
            from millrace.platform_defs.metrics.dagster import DagsterMetrics

            dagster = DagsterMetrics()
            opened.callback(dagster.close)
            registry.register(dagster)
        yield registry


@contextmanager
def serving_metrics(dsn: str, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the metrics of an event store, and of the Dagster instance that DAGSTER_HOME names, if it names one.

    Args:
        dsn: The event store.
        port: Where to listen; 0 for any free port.
        host: The address to listen at. Whoever reaches it reads the names of views, captures and sensors.

    Yields:
        The port.

    Raises:
        MillraceError: The port is taken, or the address is none of this machine.
    """
    with collecting(dsn) as registry:
        try:
            server, thread = start_http_server(port, host, registry)
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
def metrics_beside(dsn: str, port: int | None) -> Iterator[None]:
    """Serve metrics beside other work, if a port says where; that they cannot be served is logged, and no more."""
    with ExitStack() as opened:
        try:
            if port is not None:
                taken = opened.enter_context(serving_metrics(dsn, port))
                logger.info("metrics are at http://127.0.0.1:%s/metrics", taken)
        except MillraceError as error:
            logger.warning("%s", error)
        yield
