"""The tables and links of the documents name what is there."""

import re
from pathlib import Path

import pytest
import typer

import millrace
from millrace.examples.shop.commands import app as commands_of_the_shop
from millrace.platform_defs.cli import app
from millrace.resources.read_models import columns as words
from millrace.resources.settings import PROJECT, Settings
from tests.support.pages.documents import PAGES, anchors, chapters, links, parsed, quoted, table

MODELS = {"read_model", "fold", "recompute"}


def test_the_table_of_commands_has_every_command() -> None:
    told = {quoted(row[0])[0].split()[1] for row in table("docs/operating.md", "command")}
    commands = [typer.main.get_command(each) for each in (app, commands_of_the_shop)]
    assert told == {name for each in commands for name in getattr(each, "commands", {})}


def test_the_table_of_settings_has_every_setting_with_its_default() -> None:
    told = {quoted(row[0])[0]: row[1] for row in table("docs/operating.md", "variable")}
    for name, field in Settings.model_fields.items():
        default = told[f"MILLRACE_{name.upper()}"]
        expected = field.default.name if isinstance(field.default, Path) else field.default
        assert default == "none" if expected is None else quoted(default) == [str(expected)]


def test_the_tables_of_columns_and_of_functions_have_every_kind() -> None:
    columns = {name.split("(")[0] for row in table("docs/read_models.md", "column") for name in quoted(row[0])}
    models = {quoted(row[0])[0] for row in table("docs/read_models.md", "declared by")}
    assert columns | models == {name for name in millrace.__all__ if name in vars(words) or name in MODELS}


def test_what_the_layout_names_is_there() -> None:
    (block,) = chapters("README.md")["Layout"]
    for line in block.text.splitlines():
        assert (PROJECT / line.split()[0]).exists(), line


def test_the_readme_names_every_page() -> None:
    assert {page for page in PAGES if page.startswith("docs/")} <= set(links("README.md"))


def test_the_readme_is_short_enough_to_be_read_to_its_end() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 250


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = ((PROJECT / page).parent / path).resolve() if path else PROJECT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(str(target.relative_to(PROJECT))), f"{page}: {link}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/sql_functions.md"])
def test_the_lines_of_a_page_end_where_others_do(page: str) -> None:
    fenced = False
    for number, line in enumerate((PROJECT / page).read_text().splitlines(), 1):
        fenced ^= line.startswith("```")
        assert fenced or line.startswith("|") or len(line) <= 120, f"{page}, line {number}"


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    for path in re.findall(r"`((?:sql|resources|assets|platform_defs|examples|tests)/[\w/]+(?:\.\w+)?)`", _prose(page)):
        assert (PROJECT / path).exists(), f"{page}: {path}"


def _prose(page: str) -> str:
    return " ".join(token.content for token in parsed(page) if token.type == "inline")
