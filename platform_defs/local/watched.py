"""One service of `millrace up` below systemd, such as `millrace run service code`.

systemd restarts this process if it ends, or sends no sign of work for `WatchdogSec`.
"""

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace

from millrace.errors import MillraceError
from millrace.patience import LOOK_S
from millrace.platform_defs.local.services import find_endpoints, prepare_home, services
from millrace.platform_defs.local.supervisor import WATCHED, Supervisor
from millrace.processes import private_files
from millrace.settings import Settings


def watch(name: str, settings: Settings, stop: threading.Event, report: Callable[[str], None]) -> None:
    """Run a service until `stop` is set, then end it.

    Args:
        name: The service's name in `millrace up`.
        settings: They name the event store; the service's files are in `<home>/watched/<name>`.
        stop: Ends it from another thread.
        report: Called with a sentence for each change.

    Raises:
        MillraceError: There is no such service, or no event store.
    """
    if settings.dsn is None:
        raise MillraceError(
            "MILLRACE_DSN is not set.", hint="Set it, or run `millrace up`, which has an embedded Postgres."
        )
    endpoints = find_endpoints(settings, None)
    if endpoints.spark_port is not None:
        # only this process could use a Connect server of its own; so each run starts a Spark
        endpoints = replace(endpoints, spark_remote=None, spark_port=None, spark_token=None)
    by_name = {service.name: service for service in services(settings, endpoints)}
    if name not in by_name:
        raise MillraceError(f"There is no service {name!r}.", hint=f"There are: {', '.join(by_name)}.")
    supervisor = Supervisor(settings.home / WATCHED / name, [by_name[name]])
    with private_files():
        prepare_home(settings, endpoints)
        try:
            supervisor.start(report, stop)
            _notify_systemd("READY=1")
            while not stop.wait(LOOK_S):
                for sentence in supervisor.poll():
                    report(sentence)
                _notify_systemd("WATCHDOG=1")
        finally:
            supervisor.stop(report)


def _notify_systemd(message: str) -> None:
    """Notify systemd, if it listens: see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            # a name that begins with @ is an abstract socket, not a file
            notifier.sendto(message.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)
