"""Spark: sessions with the source `event_log`, wherever Spark runs."""

from millrace.resources.spark.session import (
    spark_session,
)

__all__ = [
    "spark_session",
]
