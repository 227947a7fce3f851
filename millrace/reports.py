"""The tables of reports: a day's rows, which replace the earlier rows of that day."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any, Protocol

import psycopg
from psycopg import sql
from psycopg.errors import DuplicateObject, DuplicateSchema, DuplicateTable, UniqueViolation

# the column with a row's day
DAY = "day"


class Values(Protocol):
    """A row with values by name: a mapping, or a row as Spark collects it."""

    def __getitem__(self, name: str, /) -> Any:  # noqa: ANN401 - of whatever type
        """Return the value of a column."""


def replace_day(
    connection: psycopg.Connection,
    table: str,
    columns: Mapping[str, tuple[str, str]],
    day: date,
    rows: Sequence[Values],
    *,
    key: Sequence[str] = (),
) -> int:
    """Replace the rows of a day in a table, in one transaction.

    Makes a missing table and schema, readable by `event_store_reader`. Two runs for one table write one after the
    other: the later one wins, and each is complete.

    Args:
        connection: A connection to the table's database.
        table: `schema.table`, each a plain name.
        columns: The columns in their order: name → (Postgres type, description). One of them is `day`, a date. None
            may be null.
        day: The day.
        rows: Its rows: the values of all columns but `day`, by name.
        key: The columns that distinguish rows of one day; the primary key is `day` and these. Used only to make the
            table.

    Returns:
        The number of rows in the table, of all days.

    Raises:
        ValueError: The name has no schema, or there is no column `day`.
    """
    schema, dot, name = table.partition(".")
    if not (dot and schema and name) or DAY not in columns:
        raise ValueError(
            f"A report needs a table named schema.table and a column {DAY!r}; got {table!r}, {list(columns)}."
        )
    whole = sql.Identifier(schema, name)
    others = [column for column in columns if column != DAY]
    with connection.transaction():
        ((exists,),) = connection.execute("select to_regclass(%s) is not null", (whole.as_string(),)).fetchall()
        if not exists:  # an existing table needs no right to make schemas
            # of two concurrent runs the later one waits for the earlier one, and gets an error that the table exists
            with suppress(DuplicateSchema, DuplicateTable, DuplicateObject, UniqueViolation), connection.transaction():
                _make(connection, schema, whole, columns, key)
        # one after the other; a table lock needs a right to the table, while any login could hold an advisory lock
        connection.execute(sql.SQL("lock table {} in share row exclusive mode").format(whole))
        connection.execute(sql.SQL("delete from {} where {} = %s").format(whole, sql.Identifier(DAY)), (day,))
        with connection.cursor() as cursor:
            cursor.executemany(
                sql.SQL("insert into {} ({}) values ({})").format(
                    whole,
                    sql.SQL(", ").join(map(sql.Identifier, [DAY, *others])),
                    sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
                ),
                [(day, *(row[column] for column in others)) for row in rows],
            )
        ((total,),) = connection.execute(sql.SQL("select count(*) from {}").format(whole)).fetchall()
    return int(total)


def _make(
    connection: psycopg.Connection,
    schema: str,
    whole: sql.Identifier,
    columns: Mapping[str, tuple[str, str]],
    key: Sequence[str],
) -> None:
    # an existing schema needs no right to make schemas
    if connection.execute("select from pg_namespace where nspname = %s", (schema,)).fetchone() is None:
        connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
    parts = [
        sql.SQL("{} {} not null").format(sql.Identifier(name), sql.SQL(type_)) for name, (type_, _) in columns.items()
    ]
    if key:
        parts.append(sql.SQL("primary key ({})").format(sql.SQL(", ").join(map(sql.Identifier, [DAY, *key]))))
    connection.execute(sql.SQL("create table {} ({})").format(whole, sql.SQL(", ").join(parts)))
    for name, (_, description) in columns.items():
        comment = sql.SQL("comment on column {}.{} is {}")
        connection.execute(comment.format(whole, sql.Identifier(name), sql.Literal(description)))
    reader = sql.Identifier("event_store_reader")
    connection.execute(sql.SQL("grant usage on schema {} to {}").format(sql.Identifier(schema), reader))
    connection.execute(sql.SQL("grant select on {} to {}").format(whole, reader))
