"""Every code block of the README runs, chapter by chapter, and prints what the README says; its tables name what is there.

A chapter is what stands below a heading of the second level; its blocks share a database, in order. What is done with a
block follows from its language:

    sh       runs in bash in an empty folder, with the installed `millrace`; `make` only has to be a verb of the Makefile
    sql      runs statement by statement; results are printed as psql prints them
    python   runs; one that begins with `# assets/read_models/…` is that file, and its model is built by Spark
    text     right below one of these: what that printed, `...` for anything; elsewhere: the layout
    mermaid  a picture
"""

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import typer
from markdown_it import MarkdownIt
from markdown_it.token import Token

from millrace.assets import read_models
from millrace.assets.read_models import declared
from millrace.examples.shop import read_models as shop_models
from millrace.platform_defs.cli import app
from millrace.platform_defs.definitions import build_defs
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store.refusals import BY_SQLSTATE
from millrace.resources.settings import PROJECT, Settings
from tests.support.factories import Connect, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTED = {"sh", "sql", "python"}
PICTURES = {"mermaid"}
EXAMPLE_DSN = "postgresql://millrace@db.example.com/events"
FILE_MARK = "# assets/read_models/"
# the types that psql aligns to the right: int8, int2, int4, oid, float4, float8, numeric
NUMBERS = {20, 21, 23, 26, 700, 701, 1700}


@dataclass
class Block:
    """A fenced block, the line it begins at, and what the README says it prints, if it does."""

    language: str
    text: str
    line: int
    printed: str | None = None


def parse() -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse((PROJECT / "README.md").read_text())


def chapters() -> dict[str, list[Block]]:
    found: dict[str, list[Block]] = {}
    blocks: list[Block] = []
    before: Token | None = None
    for token, following in pairwise(parse()):
        if token.type == "heading_open" and token.tag == "h2":
            blocks = found.setdefault(following.content, [])
        if token.type == "fence":
            if token.info == "text" and before is not None and before.type == "fence" and before.info in EXECUTED:
                blocks[-1].printed = token.content
            else:
                blocks.append(Block(token.info, token.content, (token.map or [0])[0] + 1))
        before = token
    return {chapter: blocks for chapter, blocks in found.items() if blocks}


def table(first_heading: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading."""
    tables: list[list[list[str]]] = []
    for token, following in pairwise(parse()):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in {"th_open", "td_open"}:
            tables[-1][-1].append(following.content)
    (wanted,) = [rows for rows in tables if rows[0][0] == first_heading]
    return wanted[1:]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


CHAPTERS = chapters()


@dataclass
class Reader:
    """Somebody who follows a chapter."""

    dsn: str
    folder: Path
    spark: "Callable[[], SparkSession]"

    def follow(self, block: Block) -> str:
        """Do what a block says and return what it printed."""
        if block.text.startswith(FILE_MARK):
            return self.save(block.text)
        return {"sh": self.sh, "sql": self.sql, "python": self.python}[block.language](block.text)

    def sh(self, text: str) -> str:
        verbs = set(re.findall(r"^([a-z]+):.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE))
        assert set(re.findall(r"^make (.*)$", text, re.MULTILINE)) <= verbs
        make = self.folder / "bin" / "make"
        make.parent.mkdir(exist_ok=True)
        make.write_text("#!/bin/sh\n")
        make.chmod(0o755)
        path = os.pathsep.join([str(make.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text.replace(EXAMPLE_DSN, self.dsn)],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "MILLRACE_DSN": self.dsn},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sql(self, text: str) -> str:
        if "read_models." in text:
            self.build()
        statements = [statement for statement in re.split(r";\s*(?:\n\s*\n|$)", text) if statement.strip()]
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return "\n\n".join(printed(connection, statement) for statement in statements)

    def python(self, text: str) -> str:
        if "spark_session" in text:
            self.spark()  # the tests' server, so that the block needs none of its own
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(text, "README.md", "exec"), {})
        return out.getvalue()

    def save(self, text: str) -> str:
        (self.folder / text.splitlines()[0].rpartition("/")[2]).write_text(text)
        importlib.invalidate_caches()
        return ""

    def build(self) -> None:
        """What loading the definitions and the sensor of each saved read model do."""
        models = [model for name, model in declared().items() if (self.folder / f"{name}.py").exists()]
        assert models
        sensors = {sensor.name for sensor in build_defs().sensors or ()}
        for model in models:
            assert f"poll_{model.view}" in sensors
            with Consumer(self.dsn, model, self.spark, "reader") as consumer:
                consumer.drain(budget_s=60, idle_s=0)


def printed(connection: psycopg.Connection, statement: str) -> str:
    """What psql prints for a statement."""
    try:
        result = connection.execute(statement.encode()).pgresult
    except psycopg.Error as error:
        said = error.diag
        lines = [
            f"ERROR:  {error.sqlstate}: {said.message_primary}",
            f"DETAIL:  {said.message_detail}",
            f"HINT:  {said.message_hint}",
        ]
        return "\n".join(lines)
    assert result is not None
    columns = range(result.nfields)
    names = [(result.fname(c) or b"").decode() for c in columns]
    cells = [[(result.get_value(r, c) or b"").decode() for c in columns] for r in range(result.ntuples)]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [" | ".join(centred(name, width) for name, width in zip(names, widths, strict=True))]
    for row in cells:
        padded = [
            cell.rjust(width) if result.ftype(c) in NUMBERS else cell.ljust(width)
            for c, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(" | ".join(padded))
    rule = "-+-".join("-" * width for width in widths)
    count = f"({len(cells)} row{'' if len(cells) == 1 else 's'})"
    return "\n".join([f" {lines[0]}", f"-{rule}-", *(f" {line}" for line in lines[1:]), count])


def centred(text: str, width: int) -> str:
    left = (width - len(text)) // 2
    return " " * left + text + " " * (width - len(text) - left)


def assert_printed(block: Block, printed: str) -> None:
    """Compare line by line; frames are as wide as what is in them, so their lines do not count."""

    def plain(text: str) -> list[str]:
        lines = (re.sub(r"\s+", " ", re.sub("[─-╿]", " ", line)).strip() for line in text.splitlines())
        return [line for line in lines if line]

    promised, found = plain(block.printed or ""), plain(printed)
    assert len(promised) == len(found), printed
    for line, other in zip(promised, found, strict=True):
        pattern = re.escape(line).replace(re.escape("..."), ".+")
        assert re.fullmatch(pattern, other), f"README.md, block at line {block.line}:\n{printed}"


@pytest.fixture
def reader(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Reader]:
    monkeypatch.setenv("MILLRACE_DSN", dsn)
    monkeypatch.setattr(shop_models, "__path__", [*shop_models.__path__, str(tmp_path)])
    yield Reader(dsn, tmp_path, lambda: request.getfixturevalue("spark"))
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(f"{shop_models.__name__}.{file.stem}", None)


@pytest.mark.parametrize(
    "chapter", [name for name, blocks in CHAPTERS.items() if {b.language for b in blocks} & EXECUTED]
)
def test_the_blocks_of_a_chapter_run_in_order_and_print_what_the_readme_says(chapter: str, reader: Reader) -> None:
    for block in CHAPTERS[chapter]:
        if block.language not in EXECUTED:
            continue
        out = reader.follow(block)
        if block.printed is not None:
            assert_printed(block, out)
        elif block.language == "python":
            assert not out, f"README.md, block at line {block.line} prints something that the README does not show"


def test_a_block_that_does_not_run_is_a_picture_or_the_layout() -> None:
    assert {"sh", "sql", "python", "mermaid"} <= {block.language for blocks in CHAPTERS.values() for block in blocks}
    for chapter, blocks in CHAPTERS.items():
        for block in blocks:
            allowed = EXECUTED | PICTURES | ({"text"} if chapter == "Layout" else set())
            assert block.language in allowed, f"README.md, line {block.line}: {block.language!r}"


def test_what_the_layout_names_is_there() -> None:
    (block,) = CHAPTERS["Layout"]
    for line in block.text.splitlines():
        assert (PROJECT / line.split()[0]).is_dir(), line


def test_the_table_of_functions_has_every_function_with_its_arguments_and_its_errors(connect: Connect) -> None:
    known = {}
    for name, arguments, comment in rows(
        connect(),
        """
        select p.proname, pg_get_function_arguments(p.oid), obj_description(p.oid, 'pg_proc')
        from pg_proc p
        where p.pronamespace = 'event_store'::regnamespace
          and pg_get_function_arguments(p.oid) !~ 'v_decider_id uuid'
          -- the interface runs with the store's rights; the rest is what it calls
          and (p.prosecdef and p.prorettype <> 'trigger'::regtype or p.proname = 'stream_partition')
        """,
    ):
        given = [argument for argument in arguments.split(", ") if argument.startswith("v_")]
        names = [f"[`{a.split()[0]}`]" if " DEFAULT " in a else f"`{a.split()[0]}`" for a in given]
        known[name] = (", ".join(names), errors_in(comment))
    told = {quoted(row[0])[0]: (row[1], errors_in(row[3])) for row in table("function")}
    assert told == known


def errors_in(text: str) -> set[str]:
    """The SQLSTATEs that a text names, those of a range too."""
    spans = re.findall(r"MR(\d{3})(?: to MR(\d{3}))?", text)
    return {f"MR{code:03}" for first, last in spans for code in range(int(first), int(last or first) + 1)}


def test_the_table_of_errors_is_that_of_the_client() -> None:
    assert {row[0]: quoted(row[1]) for row in table("SQLSTATE")} == {
        state: [refusal.__name__] for state, refusal in BY_SQLSTATE.items()
    }


def test_the_table_of_commands_has_every_command() -> None:
    told = {quoted(row[0])[0].split()[1] for row in table("command")}
    commands = typer.main.get_command(app)
    assert told == set(getattr(commands, "commands", {}))


def test_the_table_of_settings_has_every_setting_with_its_default() -> None:
    told = {quoted(row[0])[0]: row[1] for row in table("variable")}
    for name, field in Settings.model_fields.items():
        default = told[f"MILLRACE_{name.upper()}"]
        expected = field.default.name if isinstance(field.default, Path) else field.default
        assert default == "none" if expected is None else quoted(default) == [str(expected)]


def test_the_table_of_columns_has_every_kind() -> None:
    told = {name.split("(")[0] for row in table("column") for name in quoted(row[0])}
    assert told | told_of_models() == set(read_models.__all__) - {"Event", "ReadModel", "State", "declared"}


def told_of_models() -> set[str]:
    return {quoted(row[0])[0] for row in table("declared by")}
