"""A report: a classical daily batch in Spark, one partition per day, for questions about a day and not about now.

A report of a day is a function of the day's events alone, and writing it replaces an earlier report of that day. Any
day may be materialized again, in any order, any number of times.
"""

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import psycopg

from millrace.archive import day_history, history_frame
from millrace.event_schemas import require_as_declared
from millrace.examples.shop.events import OrderCancelled, OrderLineAdded, OrderPlaced
from millrace.ops import PostgresResource, SparkResource
from millrace.reports import replace_day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "reports.daily_orders"

DAYS = dg.DailyPartitionsDefinition(start_date="2026-11-01", timezone="UTC")
# An event has the time of its append, and its place in the log by its commit: a transaction that is open over midnight
# puts events of the old day behind those of the new one. Such events are found up to this long after midnight.
LATEST_COMMIT = timedelta(hours=1)

# column -> Postgres type, meaning
DAILY_ORDERS = {
    "day": ("date", "The day, in UTC."),
    "channel": ("text", "Where the orders were placed."),
    "orders": ("bigint", "Orders placed on this day."),
    "lines": ("bigint", "Products that were put on them on this day."),
    "worth": ("numeric", "The sum of these lines' amounts."),
    "cancelled": ("bigint", "Of these orders, those that were cancelled on this day."),
}
# column -> the event's columns and data fields that it is computed from
SOURCES = {
    "day": ["created_at"],
    "channel": ["data.channel"],
    "orders": ["event"],
    "lines": ["event"],
    "worth": ["data.amount"],
    "cancelled": ["event"],
}
LINEAGE = dg.TableColumnLineage(
    {
        column: [dg.TableColumnDep(dg.AssetKey(["event_store", "events"]), source) for source in sources]
        for column, sources in SOURCES.items()
    }
)


@dg.asset(
    key=["reports", "daily_orders"],
    partitions_def=DAYS,
    deps=[["event_store", "event_log"]],
    group_name="reports",
    kinds={"spark", "postgres", "table"},
    owners=["team:data-platform"],
    # the run of 02:15 UTC, and its later tries
    freshness_policy=dg.FreshnessPolicy.cron("0 4 * * *", lower_bound_delta=timedelta(hours=2)),
    description="The orders placed on a day by channel: how many, their worth, how many were cancelled the same day.",
    metadata={
        "dagster/table_name": TABLE,
        "dagster/column_schema": dg.TableSchema(
            [dg.TableColumn(name, type_, description) for name, (type_, description) in DAILY_ORDERS.items()]
        ),
        "dagster/column_lineage": LINEAGE,
        "partition_expr": "day",
    },
)
def daily_orders(
    context: dg.AssetExecutionContext,
    postgres: PostgresResource,
    spark: SparkResource,
    archive_folder: dg.ResourceParam[Path],
) -> dg.MaterializeResult[None]:
    """Build one day and put it into its table."""
    day = date.fromisoformat(context.partition_key)
    with postgres.store() as store:
        # else the day may count what its events no longer mean
        require_as_declared(store, [OrderPlaced, OrderLineAdded, OrderCancelled])
        store.sequence_events()
    events = read_day(spark.spark_session, postgres.current_dsn(), archive_folder, day)
    rows = orders_by_channel(events).collect()
    with postgres.connect() as connection:
        total = replace_day(connection, TABLE, DAILY_ORDERS, day, rows, key=["channel"])
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": total,
            "dagster/partition_row_count": len(rows),
            # Dagster shows the lineage of the newest materialization
            "dagster/column_lineage": LINEAGE,
        }
    )


@dg.schedule(
    job=dg.define_asset_job(
        "reports",
        selection=[daily_orders],
        description="Builds the report of one day; a backfill builds those of many.",
        op_retry_policy=dg.RetryPolicy(max_retries=2, delay=10),
    ),
    # by then a transaction that was open over midnight has ended
    cron_schedule="15 2 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night at 02:15 UTC: the report of the day before.",
)
def report_days(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """Ask for the day before."""
    day = f"{context.scheduled_execution_time - timedelta(days=1):%Y-%m-%d}"
    # a preview hides Dagster's own tags
    return dg.RunRequest(run_key=day, partition_key=day, tags={"millrace/day": day})


def read_day(spark: "SparkSession", dsn: str, archive: Path, day: date) -> "DataFrame":
    """Read the events of orders that were appended on a day in UTC, each once, from the archive and from Postgres.

    Raises:
        LogIncomplete: Events that may be of the day are missing.
        ForeignArchive: The folder to read events from is not this store's archive.
        ArchiveDamaged: A file to read events from is missing.
    """
    from pyspark.sql import functions as f

    start = datetime.combine(day, time(), UTC)
    end = start + timedelta(days=1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        history = day_history(connection, archive, start, end + LATEST_COMMIT).readable()
    events = history_frame(
        spark,
        dsn,
        history,
        deciders=["order"],
        columns=["decider_id", "event", "created_at"],
        extract={"channel": ["channel"], "amount": ["amount"]},
        between=(start, end),
    )
    return events.where((f.col("created_at") >= f.lit(start)) & (f.col("created_at") < f.lit(end)))


def orders_by_channel(events: "DataFrame") -> "DataFrame":
    """Return one row per channel of the orders that were placed among these events."""
    from pyspark.sql import functions as f

    line = f.col("event") == "order_line_added"
    orders = events.groupBy("decider_id").agg(
        f.max(f.when(f.col("event") == "order_placed", f.coalesce("channel", f.lit("unknown")))).alias("channel"),
        f.count_if(line).alias("lines"),
        f.sum(f.when(line, f.col("amount").cast("decimal(18,2)"))).alias("worth"),
        f.bool_or(f.col("event") == "order_cancelled").alias("cancelled"),
    )
    return (
        orders.where(f.col("channel").isNotNull())
        .groupBy("channel")
        .agg(
            f.count("*").alias("orders"),
            f.sum("lines").alias("lines"),
            f.coalesce(f.sum("worth"), f.lit(0)).alias("worth"),
            f.count_if("cancelled").alias("cancelled"),
        )
    )
