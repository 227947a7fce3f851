"""Which captured tables of a source still have a person."""

from collections.abc import Iterator

import psycopg
from psycopg import sql

from millrace.capture.declaration import Capture


def rows_of_person(source: psycopg.Connection, capture: Capture, kind: str, identity: str) -> Iterator[str]:
    """Return for each captured table with rows of a person the statement that deletes them there.

    Rows that `where` leaves out count, too.
    """
    for table in capture.tables:
        for of in sorted({each.of for each in table.people.values() if each.kind == kind}):
            place = sql.Identifier(table.schema, table.table)
            where = sql.SQL("from {} where {} = {}").format(place, sql.Identifier(of), sql.Literal(identity))
            try:
                found = source.execute(sql.SQL("select exists (select {})").format(where)).fetchone()
            except psycopg.DataError:
                continue  # the column is of a type that cannot hold this id
            if found == (True,):
                yield sql.SQL("delete {}").format(where).as_string(source)
