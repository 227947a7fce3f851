"""Spark: sessions with the source `event_log`, on one machine or on any cluster."""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

if TYPE_CHECKING:
    from millrace.spark.log_source import EventLogSource
    from millrace.spark.session import spark_session, spark_when_needed
else:
    # Spark's tasks import the source, and open no session
    __getattr__ = imported_late(
        __name__, {"spark.log_source": "EventLogSource", "spark.session": "spark_session spark_when_needed"}
    )

__all__ = ["EventLogSource", "spark_session", "spark_when_needed"]
