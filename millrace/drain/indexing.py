"""Makes the declared indexes of read models while a drain runs.

A drain checks once, when it takes up a model: if two deployments declare different indexes, the later drain decides.
"""

import logging
import math
import threading
from contextlib import suppress
from queue import SimpleQueue

import psycopg

from millrace.drain.connection import let_work_last
from millrace.errors import MillraceError
from millrace.patience import ASK_S, FAREWELL_S, POLL_S
from millrace.postgres import connecting
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.indexes import are_made, only_one, update_indexes

logger = logging.getLogger(__name__)


class Indexing:
    """Makes indexes in a thread, over connections of its own, one model after the other.

    Args:
        dsn: The event store.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._models: SimpleQueue[ReadModel | None] = SimpleQueue()
        self._begun: set[str] = set()
        self._failed: dict[str, MillraceError] = {}
        self._works, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._at_work: psycopg.Connection | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether it makes indexes: a drain continues until they are made, so that its view does not fall behind."""
        return self._works.is_set()

    def begin(self, connection: psycopg.Connection, model: ReadModel) -> None:
        """Begin to change the indexes of a model's version to the declared ones, at the first call for it."""
        if model.view in self._begun:
            return
        self._begun.add(model.view)
        if are_made(connection, model):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._make_all, name="indexing", daemon=True)
            self._thread.start()
        self._works.set()
        self._models.put(model)

    def end(self) -> dict[str, MillraceError]:
        """Stop, and cancel the index that is being made; return the errors by view."""
        if self._thread is None:
            return {}
        self._stopped.set()
        self._models.put(None)
        while self._thread.is_alive():
            if (connection := self._at_work) is not None:
                with suppress(psycopg.Error):
                    connection.cancel_safe(timeout=FAREWELL_S)
            self._thread.join(POLL_S)
        return self._failed

    def _make_all(self) -> None:
        while (model := self._models.get()) is not None and not self._stopped.is_set():
            try:
                self._make(model)
            except MillraceError as error:
                self._failed[model.view] = error
                logger.warning("%s", error)
            except psycopg.Error as error:
                # the connection was lost, or canceled: the next drain tries again
                logger.warning("The indexes of read model %s were not made: %s", model.name, error)
            if self._models.empty():
                self._works.clear()

    def _make(self, model: ReadModel) -> None:
        while True:
            try:
                with self._connect() as turn, self._connect() as connection, only_one(turn):
                    self._at_work = connection
                    self._works.set()
                    update_indexes(connection, model)
                    return
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                self._works.clear()
                if self._stopped.wait(ASK_S):
                    return
            finally:
                self._at_work = None

    def _connect(self) -> psycopg.Connection:
        connection = connecting.connect(self._dsn, answer_s=connecting.ANSWER_S, long_s=math.inf)
        let_work_last(connection, self._dsn)
        return connection
