"""The sources of alerts outside the event store: the services of `millrace up`, and Dagster."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from millrace.operations.alerts.findings import Finding, Source
from millrace.patience import PATIENCE_S, WATCH_S
from millrace.platform_defs.local.supervisor import MARK, sentence_on_service, services_down
from millrace.settings import Settings


class ServicesSource:
    """Finds the services of the `millrace up` in a home that are not ready."""

    def __init__(self, home: Path) -> None:
        self._home = home
        # two homes on one store are two sources
        self.name = f"services of {home}"

    def found(self) -> Sequence[Finding]:
        """Return each service that is not ready."""
        remedy = (
            "`millrace up` starts it again and again, and gives it longer each time. Its log says why it is not up."
        )
        return [
            Finding(
                "service", "service", each.name, None, "page", f"The service {each.name} is not up", sentence_on_service(each), remedy
            )
            for each in services_down(self._home)
        ]  # fmt: skip


class DagsterSource:
    """Asks the Dagster instance that DAGSTER_HOME names, repeatedly and in a separate thread."""

    name = "dagster"

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._answer: Sequence[Finding] | Exception = []
        self._answered_at = -float("inf")
        self._thread: threading.Thread | None = None

    def found(self) -> Sequence[Finding]:
        """Return Dagster's last findings; raise the error that its storage answered with.

        Raises:
            TimeoutError: Dagster has not answered yet, or its last answer is too old.
        """
        if self._thread is None:
            # a daemon thread: the process can end while the storage hangs
            self._thread = threading.Thread(target=self._refresh, name="dagster-alerts", daemon=True)
            self._thread.start()
        if time.monotonic() > self._answered_at + self._patience_s:
            raise TimeoutError(f"Dagster's storage has not answered for {self._patience_s:.0f} s.")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def _refresh(self) -> None:
        standing = None
        while True:
            try:
                from dagster import DagsterInstance

                from millrace.platform_defs.standing import DagsterStanding

                standing = standing or DagsterStanding(DagsterInstance.get())
                self._answer = standing.found()
            except Exception as error:  # noqa: BLE001  any storage, any error; `found` raises it
                self._answer = error
            self._answered_at = time.monotonic()
            time.sleep(WATCH_S)


def sources_of_alerts(settings: Settings) -> list[Source]:
    """Return the sources of this process, beside the store."""
    # only a service of `millrace up` has the mark
    services = [ServicesSource(settings.home)] if MARK in os.environ else []
    return [*services, *([DagsterSource()] if os.environ.get("DAGSTER_HOME") else [])]
