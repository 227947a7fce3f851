"""docs/who_may_do_what.md says what each login may do, as trying it shows."""

import re
from difflib import unified_diff

import pytest

from millrace.resources.postgres.embedded import EmbeddedPostgres
from tests.support.permissions_page import COMMAND, LOGINS, NO, PAGE, page


def table_rows() -> list[list[str]]:
    """Return the cells of the page's tables of functions and tables, without their headings."""
    lines = PAGE.read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if len(row) == len(LOGINS) + 1 and not re.fullmatch("functions?|table|-*", row[0])]


# somebody else made the roles: the migrator is a member of none, and operates all the same
@pytest.mark.usefixtures("template")
def test_the_page_is_what_each_login_is_allowed_and_refused(postgres: EmbeddedPostgres) -> None:
    difference = list(unified_diff(PAGE.read_text().splitlines(), page(postgres).splitlines(), PAGE.name, "tried now"))
    if difference:
        pytest.fail(f"docs/{PAGE.name} is not what was tried. Run: {COMMAND}\n" + "\n".join(difference[:50]))


def test_a_login_without_a_role_may_do_nothing() -> None:
    nobody = 1 + list(LOGINS).index("nobody")
    assert len(table_rows()) > 100
    assert {row[nobody] for row in table_rows()} == {NO}


def test_a_drain_may_do_what_an_owner_may_and_nothing_else() -> None:
    owner, drain = (1 + list(LOGINS).index(login) for login in ("owner", "drain"))
    assert {row[0]: row[drain] for row in table_rows()} == {row[0]: row[owner] for row in table_rows()}


def test_internal_functions_are_for_the_migrator_only() -> None:
    (internal,) = [row for row in table_rows() if "event_store_private" in row[0]]
    assert internal[1:-1] == [NO] * (len(LOGINS) - 1)
