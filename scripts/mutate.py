"""Break lines of the product, one at a time, and record which test fails.

    python scripts/mutate.py mutants.jsonl --mutants 300

Samples mutants of the rooms below by a seed, each in turn, runs the room's tests on each, and writes a line of JSON
for each mutant: its place and texts, and the test that failed; null if none did. A second run resumes where the first
one ended; with the file of an earlier commit it shows which mutants that died then survive now. The tree must have no
other change.
"""

import argparse
import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

PROJECT = Path(__file__).parents[1]
SQL = ["tests/sql/properties", "tests/sql/isolation", "tests/sql/access", "tests/sql/test_arguments.py"]
# folder to break -> tests that should fail, the nearest first
ROOMS = {
    "millrace/drain": ["tests/drain"],
    "millrace/read_models": ["tests/read_models", "tests/drain"],
    "sql/functions/event_store/views": ["tests/sql/event_store/views", *SQL],
    "sql/functions/drain": ["tests/sql/drain", "tests/sql/drain/rounds", *SQL],
    "sql/functions/event_store/log": ["tests/sql/event_store/log", "tests/event_store", *SQL],
    "sql/functions/handlers": ["tests/sql/handlers", *SQL],
}
SECONDS = 900
COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", " is not ": " is ", " is ": " is not "}
OF_PYTHON = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
OF_SQL = [
    (r"(?<![<>=!])<(?![<>=])", "<="), (r"<=", "<"), (r"(?<![<>=!-])>(?![<>=])", ">="), (r">=", ">"), (r"\band\b", "or"),
    (r"\bor\b(?! replace)", "and"), (r"\bleast\b", "greatest"), (r"\bgreatest\b", "least"), (r"\bis null\b", "is not null"),
    (r"\bis not null\b", "is null"), (r"\bnot exists\b", "exists"), (r" for update\b", ""), (r" \+ 1\b", ""),
    (r" - 1\b", ""), (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"\bunion all\b", "union"),
]  # fmt: skip

# begin and end of a text in a file, and its replacement
Mutant = tuple[int, int, str]


def of_python(text: str) -> Iterator[Mutant]:
    """Yield the mutants of a module: comparisons, conditions, numbers, omitted calls."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OF_PYTHON:
                word = OF_PYTHON[type(op)]
                begin, end = span(left)[1], span(right)[0]
                yield begin, end, text.encode()[begin:end].decode().replace(word, COMPARED[word], 1)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                begin, end = span(test)
                yield begin, end, f"not ({text.encode()[begin:end].decode()})"
            case ast.BoolOp(op=op, values=[first, second, *_]):
                begin, end = span(first)[1], span(second)[0]
                operators = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield begin, end, text.encode()[begin:end].decode().replace(*operators, 1)
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                yield *span(node), str(number + 1)
            case ast.Expr(value=ast.Call()):
                yield *span(node), "None"


def of_sql(text: str) -> Iterator[Mutant]:
    """Yield the mutants of a function: the words and signs of its body."""
    begin = text.index("$$") if "$$" in text else 0
    body = text[begin : text.rindex("$$")]
    for pattern, instead in OF_SQL:
        for found in re.finditer(pattern, body):
            line = body[body.rfind("\n", 0, found.start()) + 1 : found.start()]
            if "--" not in line:
                at = len(text[: begin + found.start()].encode())
                yield at, at + len(found.group().encode()), instead


def tested(folders: list[str]) -> str | None:
    """Run tests until one fails; return its name, or None."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "-p", "no:cacheprovider", *folders]
    try:
        run = subprocess.run(  # noqa: S603 - our own tests
            command, cwd=PROJECT, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "it did not end"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return None if run.returncode == 0 else failed.group(1) if failed else run.stdout.strip()[-200:]


def all_mutants(room: str) -> list[tuple[Path, Mutant]]:
    """Return each mutant of a room's files."""
    kind, of = ("*.sql", of_sql) if room.startswith("sql") else ("*.py", of_python)
    return [(file, mutant) for file in sorted((PROJECT / room).rglob(kind)) for mutant in of(file.read_text())]


def main() -> None:
    """Try mutants that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    changed = ["git", "diff", "--quiet", "HEAD", "--", *ROOMS]
    if subprocess.run(changed, cwd=PROJECT, check=False).returncode:  # noqa: S603 - our own folders
        parser.error("What is to be broken has other changes, maybe of a run that was killed: git diff shows them.")
    earlier = (
        [json.loads(line) for line in arguments.results.read_text().splitlines()] if arguments.results.exists() else []
    )
    tried = {(one["file"], one["was"], one["became"], one["line"]) for one in earlier}
    chance, each = random.Random(arguments.seed), arguments.mutants // len(ROOMS)  # noqa: S311 - a sample
    samples = [chance.sample(mutants, min(each, len(mutants))) for mutants in map(all_mutants, ROOMS)]
    for turn in zip_longest(*samples):
        for folders, drawn in zip(ROOMS.values(), turn, strict=True):
            if drawn is None:
                continue
            file, (begin, end, instead) = drawn
            text = file.read_bytes()
            one = {
                "file": str(file.relative_to(PROJECT)),
                "line": text[:begin].count(b"\n") + 1,
                "was": text[begin:end].decode(),
                "became": instead,
            }
            if (one["file"], one["was"], one["became"], one["line"]) in tried:
                continue
            try:
                file.write_bytes(text[:begin] + instead.encode() + text[end:])
                one["killed_by"] = tested(folders)
            finally:
                file.write_bytes(text)
            with arguments.results.open("a") as results:
                results.write(json.dumps(one) + "\n")
            print(
                f"{one['file']}:{one['line']}: {one['was']!r} -> {instead!r}: {one['killed_by'] or 'LIVES'}", flush=True
            )


if __name__ == "__main__":
    main()
