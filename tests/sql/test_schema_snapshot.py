"""sql/schema/tables.sql says what a new database has, sql/install.sql which files make it."""

from difflib import unified_diff

import pytest

from millrace.resources.postgres.embedded import PROGRAMS, EmbeddedPostgres
from tests.support.schema_snapshot import INSTALL, TABLES, install, tables


def test_the_snapshot_is_the_schema_of_a_new_database(dsn: str, postgres: EmbeddedPostgres) -> None:
    if postgres.programs != PROGRAMS:
        pytest.skip("the snapshot is what the server of the wheel prints; others print views in other words")
    written = TABLES.read_text() if TABLES.exists() else ""
    difference = list(unified_diff(written.splitlines(), tables(dsn).splitlines(), "tables.sql", "new database"))
    if difference:
        pytest.fail(
            "sql/schema/tables.sql is not the schema of a new database. Run: .venv/bin/python -m tests.support.schema_snapshot\n"
            + "\n".join(difference[:50])
        )


def test_the_script_for_psql_lists_every_file_in_the_order_of_the_migrator_and_writes_its_books() -> None:
    assert INSTALL.read_text() == install(), "Run: .venv/bin/python -m tests.support.schema_snapshot"
