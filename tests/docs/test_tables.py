"""The tables and links of the documents name only existing things."""

import re
from pathlib import Path

import millrace
from millrace import read_models
from millrace.event_store.refusals import BY_SQLSTATE
from millrace.examples.shop.commands import app as commands_of_the_shop
from millrace.platform_defs.cli import app
from millrace.read_models.declared import words
from millrace.settings import Settings
from tests.support.pages.commands import commands
from tests.support.pages.documents import PAGES, anchors, chapters, links, parsed, quoted, table
from tests.support.project import PROJECT

DOCS = PROJECT / "docs"
MODELS = {"read_model", "fold", "recompute"}
# kinds of columns that store no state
READ_ONLY = {"computed", "lookup"}


def test_the_table_of_commands_has_every_command() -> None:
    told = " ".join(quoted(row[0])[0] for row in table("docs/operating.md", "command"))
    of_the_shop = {f"dev {command}" for command in commands(commands_of_the_shop)}
    assert set(re.findall(r"millrace ([a-z-]+(?: (?!millrace)[a-z][a-z-]*){0,2})", told)) == commands(app) | of_the_shop


def test_the_table_of_settings_has_every_setting_with_its_default() -> None:
    told = {quoted(row[0])[0]: row[1] for row in table("docs/operating.md", "variable")}
    for name, field in Settings.model_fields.items():
        default = told[f"MILLRACE_{name.upper()}"]
        expected = field.default.name if isinstance(field.default, Path) else field.default
        assert default == "none" if expected is None else quoted(default) == [str(expected)]


def test_the_tables_of_columns_and_of_functions_have_every_kind() -> None:
    columns = {name.split("(")[0] for row in table("docs/read_models.md", "column") for name in quoted(row[0])}
    models = {quoted(row[0])[0] for row in table("docs/read_models.md", "declared by")}
    declaring = {*millrace.__all__, *read_models.__all__}
    assert columns | models == {name for name in declaring if name in {*vars(words), *READ_ONLY, *MODELS}}


def test_what_the_layout_names_is_there() -> None:
    block, _ = chapters("docs/contributing.md")["Layout"]
    for line in block.text.splitlines():
        assert (PROJECT / line.split()[0]).exists(), line


def test_the_index_names_every_page_and_so_does_the_list_beside_each_page() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"index.md"}
    assert pages <= {link.partition("#")[0] for link in links("docs/index.md")}
    listed = "".join(token.content for token in parsed("docs/index.md") if token.info == "{toctree}").splitlines()
    assert pages == {f"{name}.md" for name in listed if name and not name.startswith(":")}


def test_each_error_of_the_store_has_a_remedy() -> None:
    told = {code: quoted(name)[0] for code, name, _ in table("docs/reference/errors.md", "SQLSTATE")}
    assert told == {code: error.__name__ for code, error in BY_SQLSTATE.items()}


def test_the_links_of_the_pages_lead_somewhere() -> None:
    own = [(page, link) for page in PAGES for link in links(page) if "://" not in link]
    assert [each for each in own if not leads(*each)] == []


def leads(page: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = ((PROJECT / page).parent / path).resolve() if path else PROJECT / page
    return target.exists() and (not anchor or anchor in anchors(str(target.relative_to(PROJECT))))


def test_the_lines_of_a_page_end_where_others_do() -> None:
    long = []
    for page in PAGES:
        if page == "docs/sql_functions.md":
            continue
        fenced = False
        for number, line in enumerate((PROJECT / page).read_text().splitlines(), 1):
            fenced ^= line.startswith("```")
            if not fenced and not line.startswith("|") and len(line) > 120:
                long.append(f"{page}, line {number}")
    assert long == []


def test_the_files_that_a_page_names_are_there() -> None:
    named = re.compile(r"`((?:sql|resources|assets|platform_defs|examples|tests)/[\w/]+(?:\.\w+)?)`")
    prose = {page: " ".join(each.content for each in parsed(page) if each.type == "inline") for page in PAGES}
    paths = [(page, path) for page in PAGES for path in named.findall(prose[page])]
    assert [each for each in paths if not (PROJECT / each[1]).exists()] == []
