"""Find words and commit subjects that are hard to read; part of `make lint`.

All text of the project counts: names of the field in code, comments, docstrings, messages, SQL, pages. In tests only
comments and docstrings count, for their texts are data. A sentence about people may say *who*: see `ABOUT_PEOPLE`.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
TEXTS = ("*.py", "*.sql", "*.md", "*.template", "Makefile")
# generated, or the history of what was written
LEFT_OUT = {"CHANGELOG.md", "sql/install.sql", "scripts/lint_words.py"}
LONGEST_SUBJECT = 72
SUBJECTS = 20
INSTEAD = {
    r"\b[Ww]ho(ever|m)?\b|\b([Nn]obody|[Ss]omebody)\b": "name the actor: a process, a session, a writer, an operator",
    r"\b(is|are) no more\b": "say that it is gone, or does not exist",
    r"\b[Bb]esides\b": "say: also, beside, apart from",
    r"\botherwise than\b": "say: differently from",
    r"\bso many\b": "say the number, or: that many",
    r"\b[Nn]or (does|do|is|are|has|have)\b": "begin a sentence with its subject",
    r"\bheed(s|ed)?\b": "say what is done",
    r"(#|--)\s*([Oo]f which|[Oo]f that|[Oo]f these|[Tt]o whom)\b": "begin a comment with its subject",
}
# parts of lines that speak of people, or quote what is named so
ABOUT_PEOPLE = (
    "ho may do what", "ho-may-do-what", "nobody | writer", "| nobody | no role", "until somebody changes it", "Who came back",
    "a user who asked", "Somebody paid", "nobody pays", "who handles it",
)  # fmt: skip


def lines_of(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that count, with their numbers."""
    if not file.startswith("tests/") or not file.endswith(".py"):
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        # the docstring of a declared event is its description: data
        if isinstance(node, ast.Module | ast.FunctionDef) or (
            isinstance(node, ast.ClassDef) and not node.decorator_list
        ):
            yield from enumerate((ast.get_docstring(node) or "").splitlines(), node.body[0].lineno if node.body else 1)


def words() -> list[str]:
    """Return each line with such a word: where, the word, what to say instead."""
    listed = ["git", "ls-files", *TEXTS]
    files = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603 - our own files
    return [
        f"{file}:{number}: {found[0].strip()!r}: {instead}"
        for file in files
        if file not in LEFT_OUT and not (PROJECT / file).is_symlink()
        for number, line in lines_of(file, (PROJECT / file).read_text())
        for pattern, instead in INSTEAD.items()
        if (found := re.search(pattern, line)) and not any(part in line for part in ABOUT_PEOPLE)
    ]


def subjects() -> list[str]:
    """Return the subjects of the newest commits that are too long."""
    log = ["git", "log", f"-{SUBJECTS}", "--no-merges", "--format=%h %s"]
    lines = subprocess.run(log, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603 - our own commits
    named = [line.partition(" ") for line in lines]
    return [f"commit {name}: {len(subject)} characters" for name, _, subject in named if len(subject) > LONGEST_SUBJECT]


if __name__ == "__main__":
    found = words() + subjects()
    sys.exit("\n".join(found) or None)
