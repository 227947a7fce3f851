"""The server that answers `GET /metrics`.

Belongs here: one HTTP server over the collectors. Not here: what they collect.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from millrace.resources.errors import MillraceError
from millrace.resources.metrics.store import StoreMetrics


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
    registry = CollectorRegistry()
    with ExitStack() as opened:
        store = StoreMetrics(dsn)
        opened.callback(store.close)
        registry.register(store)
        if os.environ.get("DAGSTER_HOME"):
            # whoever watches a store without Dagster does not import it
            import dagster as dg

            from millrace.platform_defs.metrics.dagster import DagsterMetrics

            dagster = DagsterMetrics(opened.enter_context(dg.DagsterInstance.get()))
            opened.callback(dagster.close)
            registry.register(dagster)
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise MillraceError(
                f"Nothing can listen at {host}:{port}: {error.strerror or error}.",
                hint="State another --port, or an address of this machine as --host.",
            ) from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
