"""What events there are: per decider, event and version what is known of it, and which views take it.

Belongs here: reading it from a store. Not here: how it looks (`millrace.platform_defs.cli.show.catalog`).
"""

from dataclasses import dataclass

from psycopg.rows import class_row

from millrace.resources.event_store import EventStore
from millrace.resources.events.fields import Schema, field_types


@dataclass(frozen=True)
class CatalogEntry:
    """A version of an event.

    Attributes:
        decider: Whose event it is.
        event: Its name.
        event_version: Which of its versions.
        description: What happened.
        schema: The schema that its data fit; None where it has none.
        views: The views that take it.
    """

    decider: str
    event: str
    event_version: int
    description: str
    schema: Schema | None
    views: list[str]

    @property
    def fields(self) -> dict[str, str]:
        """The fields that the schema names, with their types."""
        return {} if self.schema is None else field_types(self.schema)


def catalog(store: EventStore, decider: str | None = None) -> list[CatalogEntry]:
    """Return all versions of all events, or of one decider's, in the order of their names."""
    with store.connection.cursor(row_factory=class_row(CatalogEntry)) as cursor:
        return cursor.execute(
            """
            select d.decider, d.event, d.event_version, d.description, s.schema, array(
              select v.view from event_store.views v
              where (v.deciders is null or d.decider = any (v.deciders)) and (v.events is null or d.event = any (v.events))
              order by v.view
            ) as views
            from event_store.deciders d
            left join event_store.event_schemas s using (decider, event, event_version)
            where %(decider)s::text is null or d.decider = %(decider)s
            order by d.decider, d.event, d.event_version
            """,
            {"decider": decider},
        ).fetchall()
