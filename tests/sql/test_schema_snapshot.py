"""sql/schema.sql says what a new database has."""

from difflib import unified_diff

import pytest

from millrace.resources.postgres.embedded import PROGRAMS, EmbeddedPostgres
from tests.data.generate import SNAPSHOT, snapshot


def test_the_snapshot_is_the_schema_of_a_new_database(dsn: str, postgres: EmbeddedPostgres) -> None:
    if postgres.programs != PROGRAMS:
        pytest.skip("the snapshot is what the server of the wheel prints; others print views in other words")
    written = SNAPSHOT.read_text() if SNAPSHOT.exists() else ""
    difference = list(unified_diff(written.splitlines(), snapshot(dsn).splitlines(), "sql/schema.sql", "new database"))
    if difference:
        pytest.fail(
            "sql/schema.sql is not the schema of a new database. Run: .venv/bin/python -m tests.data.generate schema\n"
            + "\n".join(difference[:50])
        )
