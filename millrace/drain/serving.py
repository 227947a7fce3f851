"""When a version of a read model begins to serve."""

import time

import psycopg

from millrace.drain.report import DrainReport
from millrace.event_store.platform import PlatformStore
from millrace.patience import PATIENCE_S
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.rollup_tables import RollupFailed
from millrace.read_models.stored.tables import DependentObjects, LookupFailed
from millrace.read_models.stored.versions import serve_if_caught_up


class Serving:
    """Whether a version of a model serves, and the time of the next try to let it serve."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._serves = False
        self._not_before = float("-inf")

    def begin(self, store: PlatformStore, report: DrainReport) -> None:
        """Begin to serve this version of the model if it has caught up and does not serve yet."""
        if self._serves or time.monotonic() < self._not_before:
            return
        try:
            self._serves = serve_if_caught_up(store.connection, self._model)
            report.in_the_way = None
        except (DependentObjects, LookupFailed) as error:
            report.in_the_way = error
        except RollupFailed as error:
            # each try groups all rows while commits wait
            report.in_the_way, self._not_before = error, time.monotonic() + PATIENCE_S
        except psycopg.errors.LockNotAvailable:
            # each try keeps other readers waiting for a moment
            self._not_before = time.monotonic() + PATIENCE_S
