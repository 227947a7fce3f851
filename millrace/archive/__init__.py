"""The archive: the log as Parquet files outside of Postgres, reading them, and purging archived events."""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

if TYPE_CHECKING:
    from millrace.archive.history import day_history, history_frame, read_history
else:
    # purging needs no Spark
    __getattr__ = imported_late(__name__, {"archive.history": "day_history history_frame read_history"})

__all__ = ["day_history", "history_frame", "read_history"]
