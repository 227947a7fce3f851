"""Find words and commit subjects that are hard to read; part of `make lint`.

Looked at is all text of the project: code, comments, docstrings, messages, SQL, pages. A sentence about people may say
*who*: it stands in `ABOUT_PEOPLE`.
"""

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
TEXTS = ("*.py", "*.sql", "*.md", "*.template", "Makefile")
# generated, or the history of what was said
PAST = {"CHANGELOG.md", "sql/install.sql", "scripts/lint_words.py"}
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
# parts of lines that speak of people
ABOUT_PEOPLE: tuple[str, ...] = ()


def words() -> list[str]:
    """Return each line with such a word: where, the word, what to say instead."""
    listed = ["git", "ls-files", *TEXTS]
    files = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603 - our own files
    return [
        f"{file}:{number}: {found[0].strip()!r}: {instead}"
        for file in files
        if file not in PAST and not (PROJECT / file).is_symlink()
        for number, line in enumerate((PROJECT / file).read_text().splitlines(), 1)
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
