"""The tables of a capture that are declared by patterns: which there are now.

Belongs here: from names to tables. Not here: whether a table can be captured (`source.readiness`).
"""

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

import psycopg

from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.source.readiness import OWN_SCHEMAS, NotReady
from millrace.resources.capture.source.tables import logged_tables


def with_tables(source: psycopg.Connection, capture: Capture) -> Capture:
    """Return the capture with the tables that fit its patterns now, behind those that it declares.

    Raises:
        NotReady: It declares no table, and none fits.
    """
    if not capture.patterns:
        return capture
    there = [CapturedTable(table, schema) for schema, table in logged_tables(source) if schema not in OWN_SCHEMAS]
    found = fitting(capture, there)
    if not found.tables:
        said = f"no table fits {', '.join(capture.patterns)}" + (
            f" without {', '.join(capture.exclude)}" if capture.exclude else ""
        )
        known = ", ".join(table.name for table in there) or "none"
        raise NotReady(capture.name, [f"{said}; in database {source.info.dbname} there are {known}"])
    return found


def fitting(capture: Capture, tables: Iterable[CapturedTable]) -> Capture:
    """Return the capture with those of these tables that fit its patterns, behind those that it declares."""
    declared = {table.name for table in capture.tables}
    more = [table for table in tables if table.name not in declared and _fits(capture, table.name)]
    return replace(capture, tables=(*capture.tables, *more))


def _fits(capture: Capture, name: str) -> bool:
    def one_of(patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return one_of(capture.patterns) and not one_of(capture.exclude)
