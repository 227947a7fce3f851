"""The tables that the patterns of a capture match now."""

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

import psycopg

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.source.readiness import OWN_SCHEMAS, NotReady
from millrace.capture.source.tables import logged_tables


def with_tables(source: psycopg.Connection, capture: Capture) -> Capture:
    """Return the capture with the tables that its patterns match now, after those that it declares.

    Raises:
        NotReady: It declares no table, and its patterns match none.
    """
    if not capture.patterns:
        return capture
    logged = [CapturedTable(table, schema) for schema, table in logged_tables(source) if schema not in OWN_SCHEMAS]
    matched = fitting(capture, logged)
    if not matched.tables:
        problem = f"no table fits {', '.join(capture.patterns)}" + (
            f" without {', '.join(capture.exclude)}" if capture.exclude else ""
        )
        names = ", ".join(table.name for table in logged) or "none"
        raise NotReady(capture.name, [f"{problem}; in database {source.info.dbname} there are {names}"])
    return matched


def fitting(capture: Capture, tables: Iterable[CapturedTable]) -> Capture:
    """Return the capture with those of the tables that match its patterns, after those that it declares."""

    def fits(name: str, patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    declared = {table.name for table in capture.tables}
    matching = [each for each in tables if each.name not in declared and fits(each.name, capture.patterns)]
    chosen = [each for each in matching if not fits(each.name, capture.exclude)]
    return replace(capture, tables=(*capture.tables, *chosen))
