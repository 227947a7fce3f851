"""A bare table beside the event store's: the same columns and indexes, without triggers, foreign keys or functions."""

from collections.abc import Mapping, Sequence

from psycopg import sql

from benchmarks.event_store.bench import Database

TABLE = sql.Identifier("bare", "events")


def make_bare(database: Database) -> Sequence[str]:
    """Make the table; return the names of the columns that a row must have."""
    database.run("create schema bare")
    database.run("create table bare.events (like event_store.events including defaults including indexes)")
    return [
        str(name)
        for (name,) in database.run(
            "select attname from pg_attribute where attrelid = 'bare.events'::regclass and attnum > 0 and not atthasdef "
            "order by attnum"
        )
    ]


def insert(columns: Sequence[str], values: Mapping[str, str]) -> sql.Composed:
    """Return an INSERT of one row; `values` has an expression for each possible column."""
    return sql.SQL("insert into {} ({}) values ({})").format(
        TABLE,
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join(sql.SQL(values.get(name, "null")) for name in columns),
    )


def copy_into(columns: Sequence[str]) -> sql.Composed:
    """Return a COPY of rows into the table."""
    return sql.SQL("copy {} ({}) from stdin").format(TABLE, sql.SQL(", ").join(map(sql.Identifier, columns)))
