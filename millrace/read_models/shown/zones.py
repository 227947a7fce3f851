"""Zones for which the rules of Spark's Java (buckets of events) and of Postgres (buckets of rollups) differ."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg

from millrace.read_models.declared.declaration import ReadModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEP_S = 6 * 3600
_FIRST, _LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) // _STEP_S for year in (1970, 2038))


def zones_of_rollups(models: Iterable[ReadModel]) -> list[str]:
    """Return the zones of rollups' buckets, except UTC, which has no rules."""
    keys = (key for model in models for one in model.rollups for key in one.keys.values())
    return sorted({key.zone for key in keys if key.zone} - {"UTC"})


def zones_apart(
    connection: psycopg.Connection, spark: "SparkSession", zones: Iterable[str]
) -> Mapping[str, datetime | None]:
    """Return the zones with other times in Spark than in Postgres, from 1970 to 2037, each with the first such moment.

    A zone that Postgres does not know has no moment. The times are compared every six hours.
    """
    from pyspark.sql import functions as f

    moments = [datetime.fromtimestamp(n * _STEP_S, UTC) for n in range(_FIRST, _LAST)]
    apart: dict[str, datetime | None] = {}
    for zone in zones:
        if connection.execute("select from pg_timezone_names where name = %s", (zone,)).fetchone() is None:
            apart[zone] = None
            continue
        local = f.from_utc_timestamp(f.timestamp_seconds(f.col("id") * _STEP_S), zone)
        in_spark = spark.range(_FIRST, _LAST, 1, 1).select(f.unix_seconds(local).alias("local")).toArrow()
        in_postgres = connection.execute(
            "select extract(epoch from to_timestamp(n::bigint * %(step)s) at time zone %(zone)s)::bigint"
            " from generate_series(%(first)s, %(last)s - 1) n order by n",
            {"step": _STEP_S, "zone": zone, "first": _FIRST, "last": _LAST},
        )
        sides = zip(moments, in_spark["local"].to_pylist(), in_postgres, strict=True)
        found = next((moment for moment, spark_time, (postgres_time,) in sides if spark_time != postgres_time), None)
        if found is not None:
            apart[zone] = found
    return apart
