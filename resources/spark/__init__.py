"""Spark: sessions with the source `event_log`, wherever Spark runs."""

from millrace.resources.spark.session import (
    spark_session,
    spark_when_needed,
)

__all__ = [
    "spark_session",
    "spark_when_needed",
]
