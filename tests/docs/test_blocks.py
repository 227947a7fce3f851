"""Every code block of the README and of docs/ runs, chapter by chapter, and prints the output on its page.

A chapter is the text below a heading of the first or second level. The chapters of a page share a database and a
folder, in order; `tests.support.pages.reader` says how a block is run.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest
from dagster import AssetKey

from millrace.platform_defs.loading import build_defs
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.pages.documents import EXECUTED, PAGES, Block, chapters
from tests.support.pages.printed import assert_printed
from tests.support.pages.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ = [
    (page, chapter)
    for page in PAGES
    # its commands need an incident: tests/incidents
    if page != "docs/incidents.md"
    for chapter, blocks in chapters(page).items()
    if {block.language for block in blocks} & EXECUTED
]
# blocks of text that show a folder or a function
SHOWN = {
    # for the owner of another database: `capture/tables/test_rights.py` tests it
    ("docs/change_capture.md", "Prepare the source"),
    ("docs/contributing.md", "Layout"),
    ("docs/your_own_repository.md", "The repository"),
    ("docs/dbt.md", "Install dbt"),
    # it installs packages: `processes/test_wheel.py` does
    ("docs/your_own_repository.md", "Install Millrace for it"),
}


@pytest.fixture(scope="module")
def readers(
    postgres: EmbeddedPostgres,
    spares: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], Reader]]:
    """Make a reader for a page at its first chapter, with its own database; remove the previous reader."""
    made: dict[str, Reader] = {}

    def spark() -> "SparkSession":
        session: SparkSession = request.getfixturevalue("spark")
        return session

    with ExitStack() as stack:

        def reader(page: str) -> Reader:
            if page not in made:
                # the next page does not have this page's logins
                stack.close()
                made.clear()
                name = spares()
                stack.callback(_drop, postgres, name)
                made[page] = Reader(postgres, postgres.dsn(name), tmp_path_factory.mktemp("page"), spark)
                stack.callback(made[page].close)
            return made[page]

        yield reader


def _drop(postgres: EmbeddedPostgres, name: str) -> None:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"drop database {name} with (force)".encode())


@pytest.mark.parametrize(("page", "chapter"), READ, ids=[f"{page}::{chapter}" for page, chapter in READ])
def test_the_blocks_of_a_chapter_print_what_the_page_says(
    page: str, chapter: str, readers: Callable[[str], Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = readers(page)
    # environment variables that the blocks set end with the test
    for name in ("MILLRACE_DSN", "MILLRACE_HOME", "MILLRACE_DECLARATIONS", "LEGACY_DSN"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in reader.environment().items():
        monkeypatch.setenv(name, value)
    with reader.declaring():
        for before, blocks in chapters(page).items():
            if before == chapter:
                break
            # if only this chapter was selected, run those before it first
            if before not in reader.read:
                follow(reader, before, blocks)
        followed = follow(reader, chapter, chapters(page)[chapter])
        for block, out in followed:
            if block.printed is not None:
                assert_printed(block, out)
            elif block.language == "python":
                assert not out, f"{block} prints something that the page does not show"
        if page == "docs/from_sql.md":
            # a query over the events, then one over the model's rows
            rows = [out for block, out in followed if block.language == "sql"]
            assert rows[::2] == rows[1::2]
        if (page, chapter) == ("docs/dbt.md", "In Dagster"):
            below = build_defs(declarations=reader.declared()).resolve_asset_graph().get(AssetKey("customer_values"))
            assert below.parent_keys == {AssetKey(["read_models", name]) for name in ("customers", "orders")}


def follow(reader: Reader, chapter: str, blocks: list[Block]) -> list[tuple[Block, str]]:
    reader.read.add(chapter)
    return [(block, reader.follow(block)) for block in blocks if block.language in EXECUTED]


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/sql_functions.md"])
def test_a_block_that_does_not_run_is_a_picture_or_a_layout(page: str) -> None:
    for chapter, blocks in chapters(page).items():
        for block in blocks:
            allowed = EXECUTED | ({"text"} if (page, chapter) in SHOWN else set())
            # what the site lists beside each page
            allowed |= {"{toctree}"} if page == "docs/index.md" else set()
            assert block.language in allowed, f"{block}: {block.language!r}"
