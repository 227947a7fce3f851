"""docs/sql_functions.md says what a new database says of its functions."""

from difflib import unified_diff

import pytest

from millrace.resources.postgres.embedded import PROGRAMS, EmbeddedPostgres
from tests.support.sql_functions_page import COMMAND, PAGE, page


def test_the_page_is_what_a_new_database_says_of_its_functions(dsn: str, postgres: EmbeddedPostgres) -> None:
    if postgres.programs != PROGRAMS:
        pytest.skip("the page is what the server of the wheel prints; others quote other words")
    written = PAGE.read_text() if PAGE.exists() else ""
    difference = list(unified_diff(written.splitlines(), page(dsn).splitlines(), "sql_functions.md", "new database"))
    if difference:
        pytest.fail(
            f"docs/sql_functions.md is not what the functions' comments say. Run: {COMMAND}\n"
            + "\n".join(difference[:50])
        )
