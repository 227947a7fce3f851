"""Reports: classical daily batches in Spark, one partition per day, for what is asked about a day and not about now.

Belongs here: the group `reports`, each report's plan and table. Not here: what follows the log within seconds (`read_models/`).

A report of a day is a function of the day's events alone, and writing it replaces what was written before: any day may be
materialized again, in any order, as often as one likes.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import psycopg
from psycopg import sql

from millrace.assets.event_store import OWNERS
from millrace.resources.archive.history import day_history, history_frame
from millrace.resources.postgres.resource import PostgresResource
from millrace.resources.settings import Settings
from millrace.resources.spark.resource import SparkResource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

DAYS = dg.DailyPartitionsDefinition(start_date="2026-11-01", timezone="UTC")
# An event's time is that of its append, its place in the log that of its commit: a transaction that is open over midnight puts
# events of the old day behind those of the new one. How long after midnight such events are still found.
LATEST_COMMIT = timedelta(hours=1)

# column -> Postgres type, what it says
DAILY_ORDERS = {
    "day": ("date", "The day, in UTC."),
    "channel": ("text", "Where the orders were placed."),
    "orders": ("bigint", "Orders placed on this day."),
    "lines": ("bigint", "Products that were put on them on this day."),
    "worth": ("numeric", "The sum of these lines' amounts."),
    "cancelled": ("bigint", "Of these orders, those that were cancelled on this day."),
}


@dg.asset(
    key=["reports", "daily_orders"],
    partitions_def=DAYS,
    deps=[["event_store", "event_log"]],
    group_name="reports",
    kinds={"spark", "postgres", "table"},
    owners=OWNERS,
    description="The orders placed on a day by channel: how many, what they are worth, how many were cancelled the same day.",
    metadata={
        "dagster/table_name": "reports.daily_orders",
        "dagster/column_schema": dg.TableSchema(
            [dg.TableColumn(name, type_, description) for name, (type_, description) in DAILY_ORDERS.items()]
        ),
        "partition_expr": "day",
    },
)
def daily_orders(
    context: dg.AssetExecutionContext, postgres: PostgresResource, spark: SparkResource
) -> dg.MaterializeResult[None]:
    """Build one day and put it into its table."""
    day = date.fromisoformat(context.partition_key)
    with postgres.store() as store:
        store.sequence_events()
    events = read_day(spark.spark_session, postgres.current_dsn(), Settings().archive_folder, day)
    rows = orders_by_channel(events).collect()
    with postgres.connect() as connection:
        total = replace_day(connection, day, rows)
    return dg.MaterializeResult(metadata={"dagster/row_count": total, "dagster/partition_row_count": len(rows)})


def read_day(spark: "SparkSession", dsn: str, archive: Path, day: date) -> "DataFrame":
    """The events of orders that were appended on a day in UTC: from the archive, and from Postgres what is not archived.

    Raises:
        LogIncomplete: Events that may be of the day are nowhere.
        ForeignArchive: They are to be read from a folder that is not this store's archive.
        ArchiveDamaged: They are to be read from a file that is not there.
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
    """One row per channel of the orders that were placed among these events."""
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


def replace_day(connection: psycopg.Connection, day: date, rows: "Sequence[Row]") -> int:
    """Put the rows of a day in place of what was there, in one transaction; return how many rows the table has now."""
    columns = [name for name in DAILY_ORDERS if name != "day"]
    with connection.transaction():
        # two runs of one day: the later one wins, and both are whole
        connection.execute("select pg_advisory_xact_lock(hashtextextended('reports.daily_orders', 0))")
        _ensure_table(connection)
        connection.execute("delete from reports.daily_orders where day = %s", (day,))
        with connection.cursor() as cursor:
            cursor.executemany(
                sql.SQL("insert into reports.daily_orders (day, {}) values (%s, {})").format(
                    sql.SQL(", ").join(map(sql.Identifier, columns)),
                    sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
                ),
                [(day, *(row[name] for name in columns)) for row in rows],
            )
        ((total,),) = connection.execute("select count(*) from reports.daily_orders").fetchall()
    return int(total)


def _ensure_table(connection: psycopg.Connection) -> None:
    ((known,),) = connection.execute("select to_regclass('reports.daily_orders') is not null").fetchall()
    if known:
        return  # and nobody needs the right to make schemas any more
    connection.execute("create schema if not exists reports")
    connection.execute(
        sql.SQL("create table reports.daily_orders ({}, primary key (day, channel))").format(
            sql.SQL(", ").join(
                sql.SQL("{} {} not null").format(sql.Identifier(name), sql.SQL(type_))
                for name, (type_, _) in DAILY_ORDERS.items()
            )
        )
    )
    for name, (_, description) in DAILY_ORDERS.items():
        comment = sql.SQL("comment on column reports.daily_orders.{} is {}")
        connection.execute(comment.format(sql.Identifier(name), sql.Literal(description)))
    connection.execute("grant usage on schema reports to event_store_reader")
    connection.execute("grant select on reports.daily_orders to event_store_reader")
