"""The event log, its archive and reports in Spark; importing this imports PySpark."""

from millrace.resources.archive.history import day_history, history_frame, read_history
from millrace.resources.event_log_source import EventLogSource
from millrace.resources.read_models.declared.recompute import recompute
from millrace.resources.reports import replace_day
from millrace.resources.spark import spark_session

__all__ = [
    "EventLogSource", "day_history", "history_frame", "read_history", "recompute", "replace_day", "spark_session",
]  # fmt: skip
