"""docs/sql_functions.md and docs/platform_functions.md say what a new database says of its functions."""

from difflib import unified_diff

import pytest

from millrace.resources.postgres.embedded import PROGRAMS, EmbeddedPostgres
from tests.support.sql_functions_page import COMMAND, PAGE, PLATFORM_PAGE, page, platform_page


def test_the_pages_are_what_a_new_database_says_of_its_functions(dsn: str, postgres: EmbeddedPostgres) -> None:
    if postgres.programs != PROGRAMS:
        pytest.skip("the page is what the server of the wheel prints; others quote other words")
    for file, made in (PAGE, page(dsn)), (PLATFORM_PAGE, platform_page(dsn)):
        written = file.read_text() if file.exists() else ""
        difference = list(unified_diff(written.splitlines(), made.splitlines(), file.name, "new database"))
        if difference:
            pytest.fail(
                f"docs/{file.name} is not what the functions' comments say. Run: {COMMAND}\n"
                + "\n".join(difference[:50])
            )
