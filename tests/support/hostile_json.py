"""JSON that Postgres takes, and that somebody who reads it may stumble over.

Belongs here: the texts, how an event gets one. Not here: who reads them.
"""

from uuid import UUID, uuid4

from psycopg import sql

from millrace.resources.event_store import EventStore

# what Python's parser refuses: a number of more than 4,300 digits, more levels than it may call itself
UNREADABLE = {
    "digits": '{"amount": 1e5000}',
    "negative digits": '[-1e100000, {"n": 1}]',
    "arrays": "[" * 5000 + "]" * 5000,
    "objects": '{"a": ' * 4000 + "1" + "}" * 4000,
}


def append_text(
    store: EventStore,
    decider_id: str,
    data: str,
    previous_id: UUID | None = None,
    *,
    event: str = "placed",
    decider: str = "order",
) -> None:
    """Append an event with a JSON text as its data, which Python need not be able to read, to the end of its stream.

    Past every limit of the store: what reads events must cope by itself.
    """
    stored = store.append_event(event, uuid4(), decider, decider_id, {}, uuid4(), previous_id)
    change_behind_the_stores_back(store, stored.offset, data)


def change_behind_the_stores_back(store: EventStore, offset: int, data: str) -> None:
    """Change the data of an event although the store never does and whatever limits it has."""
    connection = store.connection
    limits = connection.execute(
        "select conname from pg_constraint where conrelid = 'event_store.events'::regclass and contype = 'c'"
    ).fetchall()
    for (limit,) in limits:
        connection.execute(sql.SQL("alter table event_store.events drop constraint {}").format(sql.Identifier(limit)))
    connection.execute("alter table event_store.events disable trigger user")
    connection.execute('update event_store.events set data = %s where "offset" = %s', (data, offset))
    connection.execute("alter table event_store.events enable trigger user")
