"""Dagster's storage as a source of alerts: asked in a thread of its own, and waited for for some seconds only.

Belongs here: that a storage which hangs holds nobody up, neither the alerter nor the end of its process. Not here: what
it is asked (`dagster`), which is imported only in that thread: it takes seconds.
"""

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.resources.alerts.alerter import Unreadable
from millrace.resources.alerts.incidents import Finding
from millrace.resources.alerts.standing import Keys

if TYPE_CHECKING:
    from millrace.platform_defs.alerts.dagster import DagsterStanding

PATIENCE_S = 10.0
# how long Dagster's modules may take to be imported
IMPORT_S = 60.0


@dataclass
class _Look:
    done: threading.Event = field(default_factory=threading.Event)
    found: list[Finding] | None = None
    error: BaseException | None = None


class DagsterSource:
    """The Dagster instance that DAGSTER_HOME names."""

    name = "dagster"

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._standing: DagsterStanding | None = None
        self._imported = threading.Event()
        self._look: _Look | None = None

    def found(self, known: Keys) -> list[Finding]:
        """Ask the storage; where it does not answer, the next call waits for the same question.

        Raises:
            Unreadable: It did not answer in time, or with an error.
        """
        if self._look is None or self._look.done.is_set():
            self._look = _Look()
            # a daemon: the process ends, whatever the storage does
            threading.Thread(target=self._ask, args=(self._look, known), name="dagster-alerts", daemon=True).start()
        look = self._look
        self._imported.wait(IMPORT_S)
        if not look.done.wait(self._patience_s):
            raise Unreadable(f"Dagster's storage has not answered for {self._patience_s:.0f} s.")
        if look.found is None:
            lines = str(look.error).strip().splitlines() or [""]
            raise Unreadable(f"Dagster's storage does not answer: {type(look.error).__name__}: {lines[0]}")
        return look.found

    def _ask(self, look: _Look, known: Keys) -> None:
        try:
            if self._standing is None:
                from dagster import DagsterInstance

                from millrace.platform_defs.alerts.dagster import DagsterStanding

                self._imported.set()
                self._standing = DagsterStanding(DagsterInstance.get())
            look.found = self._standing.found(known)
        except BaseException as error:  # noqa: BLE001  whatever the storage is and raises; whoever waits is told
            look.error = error
        finally:
            look.done.set()
            self._imported.set()
