"""Writes the asynchronous clients from the source of the synchronous ones: one set of methods, and no twin by hand.

    .venv/bin/python scripts/write_async_client.py    # after every change of a client; a test says when

Belongs here: how the one source becomes the other. Not here: what a client does.

The classes and functions that `TARGETS` names are copied, comments included. Their methods become coroutines, and each
call of one gets an `await`. Only the called name decides, so no other callee there may have such a name. Generators
become asynchronous ones, and names change to those of psycopg's asynchronous half. Everything else is imported from
its own module.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
# names with another name in the asynchronous half
NAMES = {
    "psycopg.Connection": "psycopg.AsyncConnection",
    "psycopg.Cursor": "psycopg.AsyncCursor",
    "ConnectionPool": "AsyncConnectionPool",
    "contextmanager": "asynccontextmanager",
    "time.sleep": "asyncio.sleep",
}
# calls that are asynchronous in psycopg or asyncio
AWAITED = {"execute", "fetchall", "set_autocommit", "sleep"}
ENTERED = {"connection", "cursor", "transaction"}
# functions that stay synchronous
PLAIN = {"__init__"}


@dataclass(frozen=True)
class Target:
    """A file to write: its docstring, and the classes and functions of each source file in it, with their new names."""

    path: str
    docstring: str
    contents: Mapping[str, Mapping[str, str]]
    # further asynchronous callees, which are in other files
    called: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


CLIENT = {
    "millrace/event_store/sql_functions.py": {"SqlFunctions": "AsyncSqlFunctions"},
    "millrace/event_store/waiting.py": {"Waiting": "AsyncWaiting"},
    "millrace/event_store/sealing.py": {"Sealing": "AsyncSealing"},
    "millrace/event_store/scheduling.py": {"Scheduling": "AsyncScheduling"},
    "millrace/event_store/client.py": {"EventStore": "UngatheredEventStore"},
    "millrace/event_store/views.py": {"RowsViews": "AsyncViews"},
}
TARGETS = [
    Target(
        "millrace/event_store/async_client.py",
        """The event store's client on psycopg's asynchronous connections.

Written by `scripts/write_async_client.py` from `sql_functions`, `waiting`, `sealing`, `scheduling`, `client` and
`views`: change those.
""",
        CLIENT,
    ),
    Target(
        "millrace/commands/async_handling.py",
        """Handling a command on psycopg's asynchronous connections: `handle_sync` as a coroutine.

Written by `scripts/write_async_client.py` from `handling`: change that.
""",
        {
            "millrace/commands/handling.py": {
                "handle_sync": "handle_async",
                "_first_loaded": "_first_loaded",
                "_loaded": "_loaded",
                "_decided_before": "_decided_before",
                "_is_stored": "_is_stored",
            }
        },
        {**CLIENT, "millrace/event_store/client.py": {"EventStore": "AsyncEventStore"}},
    ),
]


@dataclass(frozen=True)
class Edit:
    """A replacement for the characters [start, end) of a source."""

    start: int
    end: int
    text: str


class Source:
    """A module, and the places of its nodes in its text."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = (PROJECT / path).read_text()
        self.tree = ast.parse(self.text)
        self._lines = [0]
        for line in self.text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    @property
    def module(self) -> str:
        """The name for imports of the module."""
        return self.path.removesuffix(".py").replace("/", ".")

    def at(self, line: int, column: int) -> int:
        """Return the place of a node's begin or end; its columns count bytes."""
        begin = self._lines[line - 1]
        whole = self.text[begin : self._lines[line]]
        return begin + len(whole.encode()[:column].decode())

    def start(self, node: ast.stmt | ast.expr) -> int:
        """Return where a node begins."""
        return self.at(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | ast.expr) -> int:
        """Return where a node ends."""
        return self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def definitions(self, names: Sequence[str]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
        """Yield the classes and functions of these names, unchanged."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
                yield node

    def edited(self, node: ast.ClassDef | ast.FunctionDef, edits: Sequence[Edit]) -> str:
        """Return the text of a definition with its edits."""
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        begin, end = self.at(first, 0), self.end(node)
        text, place = "", begin
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            text += self.text[place : edit.start] + edit.text
            place = edit.end
        return text + self.text[place:end]


def written(target: Target) -> str:
    """Return the text of a file, before it is formatted."""
    names_by_path = {**target.called, **target.contents}
    sources = {path: Source(path) for path in names_by_path}
    renamed = {old: new for names in names_by_path.values() for old, new in names.items()}
    # functions and methods that become coroutines, and those that become generators and contexts
    coroutines, generators = set[str](), set[str]()
    for path, names in names_by_path.items():
        for node in sources[path].definitions([*names]):
            for function in _functions(node):
                (generators if _yields(function) else coroutines).add(function.name)
    parts, imports = [], ["import asyncio"]
    for path, names in target.contents.items():
        source = sources[path]
        imports.extend(_imports(source, names))
        for node in source.definitions([*names]):
            edits = [*_edits(source, node, coroutines, generators)]
            parts.append(_renamed(source.edited(node, edits), {**NAMES, **renamed}))
    of_others = {old: new for names in target.called.values() for old, new in names.items()}
    imports.sort(key=lambda text: text.startswith("if "))
    return (
        f'"""{target.docstring}"""\n\n'
        + _renamed("\n".join(imports), {**NAMES, **of_others})
        + "\n\n\n"
        + "\n\n\n".join(parts)
        + "\n"
    )


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions or methods that have an asynchronous form."""
    found = node.body if isinstance(node, ast.ClassDef) else [node]
    for function in found:
        if isinstance(function, ast.FunctionDef) and function.name not in PLAIN:
            decorators = {ast.unparse(each) for each in function.decorator_list}
            if not decorators & {"property", "staticmethod"}:
                yield function


def _yields(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


def _edits(source: Source, node: ast.AST, coroutines: set[str], generators: set[str]) -> Iterator[Edit]:
    for function in _functions(node):
        yield Edit(source.start(function), source.start(function), "async ")
        if _yields(function) and function.returns is not None:
            begin = source.start(function.returns)
            yield Edit(begin, begin, "Async")
        for inner in ast.walk(function):
            if isinstance(inner, ast.With):
                calls = [item.context_expr for item in inner.items]
                if any(_callee(call) in ENTERED | generators for call in calls):
                    yield Edit(source.start(inner), source.start(inner), "async ")
            elif isinstance(inner, ast.For) and _callee(inner.iter) in generators:
                yield Edit(source.start(inner), source.start(inner), "async ")
            elif isinstance(inner, ast.YieldFrom):
                # an asynchronous generator has no such statement
                begin, value = source.start(inner), ast.unparse(inner.value)
                yield Edit(begin, source.end(inner), f"for each in {value}:\n{' ' * (inner.col_offset + 4)}yield each")
            elif isinstance(inner, ast.Call) and _callee(inner) in coroutines | AWAITED:
                yield Edit(source.start(inner), source.start(inner), "await ")


def _callee(node: ast.AST) -> str | None:
    """Return the name of the function or the method that an expression calls."""
    if not isinstance(node, ast.Call):
        return None
    target = node.func
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else None


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        text = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, text)
    return text


def _imports(source: Source, classes: Mapping[str, str]) -> Iterator[str]:
    """Yield a module's imports, and an import of its names that are not taken; unused imports are removed later."""
    for node in source.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.If):
            yield source.text[source.start(node) : source.end(node)]
    yield "from collections.abc import AsyncIterator"
    names = []
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in classes:
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names.extend(name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))
    if names:
        yield f"from {source.module} import {', '.join(names)}"


def formatted(target: Target) -> str:
    """Return the formatted text of a file."""
    name = str(PROJECT / target.path)
    text = written(target)
    for command in (
        ["check", "--quiet", "--exit-zero", "--fix", "--select", "F401,F811,I001,TC004"],
        ["format"],
        ["check", "--quiet", "--exit-zero", "--fix", "--select", "I001"],
        ["format"],
    ):
        text = subprocess.run(  # noqa: S603 - our own formatter
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", name, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=PROJECT,
        ).stdout
    return text


def main() -> None:
    """Write the files."""
    for target in TARGETS:
        (PROJECT / target.path).write_text(formatted(target))
        print(f"wrote {target.path}")


if __name__ == "__main__":
    main()
