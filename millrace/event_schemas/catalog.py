"""The catalog of events: per decider, event and version its description and fields, and the views that take it."""

from dataclasses import dataclass

from psycopg.rows import class_row

from millrace.event_schemas.fields import Schema, field_types
from millrace.event_store import EventStore


@dataclass(frozen=True)
class CatalogEntry:
    """A version of an event.

    Attributes:
        decider: The decider that appends it.
        event: Its name.
        event_version: Its version.
        description: What happened.
        schema: The schema that its data fit; None if it has none.
        columns: For an event of a captured table the columns of its row, with their types in the source.
        views: The views that take it.
    """

    decider: str
    event: str
    event_version: int
    description: str
    schema: Schema | None
    columns: dict[str, str]
    views: list[str]

    @property
    def fields(self) -> dict[str, str]:
        """The known fields, with their types."""
        named = {} if self.schema is None else field_types(self.schema)
        return named | {f"record.{name}": type_ for name, type_ in self.columns.items()}


def catalog(store: EventStore, decider: str | None = None) -> list[CatalogEntry]:
    """Return all versions of all events, or of one decider's, in the order of their names."""
    with store.connection.cursor(row_factory=class_row(CatalogEntry)) as cursor:
        return cursor.execute(
            """
            select d.decider, d.event, d.event_version, d.description, s.schema, coalesce(captured.columns, '{}') as columns, array(
              select v.view from event_store.views v
              where (v.deciders is null or d.decider = any (v.deciders)) and (v.events is null or d.event = any (v.events))
              order by v.view
            ) as views
            from event_store.deciders d
            left join event_store.event_schemas s using (decider, event, event_version)
            -- the columns that the source's log told last
            left join lateral (
              select json_object_agg(c.column ->> 'name', c.column ->> 'type' order by c.number) as columns
              from event_store.captured_tables t
              cross join json_array_elements((t.schemas -> -1 -> 'columns')::json) with ordinality c("column", number)
              where t.decider = d.decider and d.event in ('inserted', 'updated', 'deleted', 'backfilled')
            ) captured on true
            where %(decider)s::text is null or d.decider = %(decider)s
            order by d.decider, d.event, d.event_version
            """,
            {"decider": decider},
        ).fetchall()
