"""The pages of the project's documents, as tests read them: their code blocks by chapter, and their tables."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.project import PROJECT

EXECUTED = {"sh", "sql", "python"}
PAGES = ("README.md", *sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "docs").glob("*.md")))


@dataclass
class Block:
    """A fenced block, its first line, and its output on the page, if any."""

    page: str
    language: str
    text: str
    line: int
    printed: str | None = None

    def __str__(self) -> str:
        return f"{self.page}, block at line {self.line}"


@cache
def parsed(page: str) -> tuple[Token, ...]:
    return tuple(MarkdownIt("commonmark").enable("table").parse((PROJECT / page).read_text()))


def chapters(page: str) -> dict[str, list[Block]]:
    """Return the blocks below each heading of the first two levels; text below an executed one is its output."""
    found: dict[str, list[Block]] = {}
    blocks: list[Block] = []
    before: Token | None = None
    tokens = parsed(page)
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag in {"h1", "h2"}:
            blocks = found.setdefault(tokens[index + 1].content, [])
        if token.type == "fence":
            if token.info == "text" and before is not None and before.type == "fence" and before.info in EXECUTED:
                blocks[-1].printed = token.content
            else:
                blocks.append(Block(page, token.info, token.content, (token.map or [0])[0] + 1))
        before = token
    return {chapter: blocks for chapter, blocks in found.items() if blocks}


def table(page: str, first_heading: str) -> list[list[str]]:
    """Return the rows of a page's only table with this heading in the first column."""
    tables: list[list[list[str]]] = []
    for token, following in pairwise(parsed(page)):
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


def links(page: str) -> list[str]:
    return [
        str(child.attrGet("href"))
        for token in parsed(page)
        for child in token.children or ()
        if child.type == "link_open"
    ]


def anchors(page: str) -> set[str]:
    headings = [following.content for token, following in pairwise(parsed(page)) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pictures(page: str) -> list[str]:
    return [str(c.attrGet("src")) for token in parsed(page) for c in token.children or () if c.type == "image"]
