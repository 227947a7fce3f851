"""The event store's tables as assets: materializing them applies `sql/` and reports their rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg
import psycopg

from millrace.assets import OWNERS, Group
from millrace.event_schemas.model import DeclaredEvent
from millrace.event_schemas.registering import states_in_store
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore
from millrace.read_models.stored.past import remove_expired
from millrace.resources.postgres import PostgresResource

# table -> (the tables that it depends on, its description)
TABLES: dict[str, tuple[list[str], str]] = {
    "deciders": ([], "The kinds of event that each decider may append."),
    "producers": ([], "The producers whose messages have their effect once, with what became of these."),
    "events": (
        ["deciders", "producers"],
        "Every event, once, never changed; its version is the optimistic lock of its stream.",
    ),
    "scheduled_events": (["events"], "Events that are appended when they are due, unless something came first."),
    "purged_streams": (["events"], "The last purged event of each stream that lost events."),
    "partitions": ([], "The log partitions and their high-water marks."),
    "event_log": (["events", "partitions"], "The dense order of events within each log partition."),
    "views": ([], "The named consumers of the log."),
    "checkpoints": (["views", "event_log"], "The progress of each view in each log partition, and its leases."),
    "stream_locks": (["views", "events"], "The streams of a view that are in flight, wait for a retry or are parked."),
    "archive_files": (["event_log"], "The files of the archive: which positions of the log each one holds."),
    "audit_log": (["views", "partitions"], "What operators did to views and to history: the login, and why."),
}


def event_store_assets(
    log_partitions: int, sources: Sequence[dg.AssetKey] = (), events: Iterable[DeclaredEvent] = ()
) -> dg.AssetsDefinition:
    """Make the multi-asset of the event store's tables.

    Args:
        log_partitions: The number of log partitions of a new store.
        sources: Assets that append events.
        events: Events to register. One that the store refuses does not stop the others; `deciders` shows it.
    """
    declared = [*events]

    @dg.multi_asset(
        name="event_store",
        specs=[
            dg.AssetSpec(
                ["event_store", table],
                deps=[
                    *(dg.AssetKey(["event_store", upstream]) for upstream in upstreams),
                    *(sources if table == "events" else ()),
                ],
                description=description,
                group_name=Group.EVENT_STORE,
                kinds={"postgres", "table"},
                owners=OWNERS,
            )
            for table, (upstreams, description) in TABLES.items()
        ],
    )
    def event_store(
        context: dg.AssetExecutionContext, postgres: PostgresResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        report = migrate(postgres.current_dsn(), log_partitions=log_partitions)
        with postgres.connect() as connection:
            refused = {
                str(each.event): each.error
                for each in states_in_store(PlatformStore(connection), declared, keep=True)
                if each.is_wrong
            }
            for message in refused.values():
                context.log.warning(message)
            for past in remove_expired(connection):
                context.log.info("removed %s: its time is over", past)
            for table in TABLES:
                yield dg.MaterializeResult(
                    asset_key=["event_store", table],
                    metadata={
                        "dagster/row_count": table_rows(connection, table),
                        "dagster/column_schema": table_schema(connection, "event_store", table),
                        "schema_version": report.version,
                        **({"refused": refused} if refused and table == "deciders" else {}),
                        **(asdict(ProducerStore(connection).producer_totals()) if table == "producers" else {}),
                        **(scheduled_figures(PlatformStore(connection)) if table == "scheduled_events" else {}),
                    },
                )

    return event_store


def scheduled_figures(store: PlatformStore) -> dict[str, Any]:
    """Return how many scheduled events wait and were refused, when the next is due, and how late they come."""
    found = store.scheduled_statistics()
    due = found.next_at and dg.MetadataValue.timestamp(found.next_at)
    return {"waiting": found.waiting, "refused": found.refused, "next_due": due, "late_seconds_p99": found.late_s}


def table_rows(connection: psycopg.Connection, table: str) -> int:
    """Return the number of a table's rows from Postgres' statistics: no scan, and exact unless the server crashed."""
    row = connection.execute(
        "select n_live_tup from pg_stat_user_tables where schemaname = 'event_store' and relname = %s", (table,)
    ).fetchone()
    return int(row[0]) if row else 0


def table_schema(connection: psycopg.Connection, schema: str, table: str) -> dg.TableSchema:
    """Return the columns of a table with their types and comments."""
    rows = connection.execute(
        """
        select a.attname, format_type(a.atttypid, a.atttypmod), coalesce(col_description(a.attrelid, a.attnum), '')
        from pg_attribute a
        where a.attrelid = format('%%I.%%I', %s::text, %s::text)::regclass and a.attnum > 0 and not a.attisdropped
        order by a.attnum
        """,
        (schema, table),
    ).fetchall()
    return dg.TableSchema([dg.TableColumn(name, type_, description) for name, type_, description in rows])
