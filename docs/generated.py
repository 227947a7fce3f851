"""What the pages of docs/reference say of the code, as Markdown: made anew by each `make docs`.

Belongs here: how names, commands, functions and errors become text. Not here: settings of Sphinx, in `conf.py`.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import groupby
from typing import Generic

import typer
from typer.core import TyperCommand, TyperGroup

from millrace.event_store.migrations import SQL, function_files
from millrace.event_store.refusals import BY_SQLSTATE
from millrace.platform_defs.cli import app

MODULES = (
    "millrace", "millrace.errors", "millrace.rows", "millrace.tracing", "millrace.reports", "millrace.ops",
    "millrace.testing", "millrace.capture", "millrace.event_schemas", "millrace.producers", "millrace.archive",
    "millrace.personal", "millrace.read_models", "millrace.spark",
)  # fmt: skip
# types that the public names take, return or raise, and that no module exports
UNEXPORTED = (
    "archive.history.LogHistory", "archive.listing.ArchivedFile", "archive.listing.ArchivedPartition", "drain.report.PartitionsFailed", "event_schemas.model.DeclaredEvent",
    "event_schemas.moves.Move", "event_store.lease_rows.Lease", "event_store.lease_rows.StreamFailure",
    "event_store.migrations.MigrationReport", "event_store.platform.PlatformStore", "event_store.rows.EventPosition",
    "event_store.rows.LogPosition",
    "event_store.rows.StreamState", "event_store.waiting.InStream",
    "personal.declaration.PersonalField", "personal.folder.KeyFolder", "personal.values.Key", "personal.values.StoredKey", "postgres.embedded.EmbeddedPostgres", "read_models.declared.carried.Carried",
    "read_models.declared.columns.Column", "read_models.declared.columns.KeyColumn",
    "read_models.declared.columns.StateColumn", "read_models.declared.computed.Computed",
    "read_models.declared.conditions.Conditions", "read_models.declared.fold.Fold", "read_models.declared.indexes.Index", "read_models.declared.items.Items",
    "read_models.declared.lookups.Lookup", "read_models.declared.recompute.Recompute",
    "read_models.declared.rollups.Rollup", "read_models.declared.upcasts.Upcast",
    "spark.java.JavaNotFound", "spark.shipped_code.PackageMissing", "spark.log_source.batch.EventLogReader", "spark.log_source.options.EventLogOptions", "spark.log_source.ranges.LogRange", "spark.log_source.stream.EventLogStreamReader",
)  # fmt: skip
COMMENT = re.compile(
    r"comment on function (event_store(?:_platform)?)\.(\w+)\(([^;]*?)\) is\s+((?:'(?:[^']|'')*'\s*)+);"
)
REMEDY = re.compile(r"^\| (MR\d{3}) \| `(\w+)` \| (.*) \|$", re.MULTILINE)


def python(text: str) -> str:
    """Describe each public name where it comes first; a module that exports it again links there."""
    first: dict[int, str] = {}
    for module in MODULES:
        text += f"\n## {module}\n\n{paragraph(import_module(module))}\n"
        for name in public(module):
            value = getattr(import_module(module), name)
            path = first.setdefault(id(value), f"{module}.{name}")
            again = f"\n`{name}` is {{py:obj}}`{path}`.\n"
            text += described(path, value, "members") if path == f"{module}.{name}" else again
    text += "\n## Types that are not exported\n\nThe names above take, return or raise them; no code imports them.\n"
    for path in UNEXPORTED:
        module, _, name = path.rpartition(".")
        text += described(f"millrace.{path}", getattr(import_module(f"millrace.{module}"), name), "no-undoc-members")
    return text


def public(module: str) -> list[str]:
    """Return the names that a module exports: those of `__all__`, or its classes."""
    found = import_module(module)
    classes = [name for name, value in vars(found).items() if inspect.isclass(value) and value.__module__ == module]
    return list(getattr(found, "__all__", classes))


def described(path: str, value: object, option: str) -> str:
    """Return the directive that describes a name, by what it is."""
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, BaseException) else "class"
        # methods of a base class of ours are the class's own
        above = {base for base in value.__mro__ if not base.__module__.startswith("millrace")}
        option += "" if option != "members" or above - {object, Generic} else ":\n   :inherited-members"
        directive = f".. auto{kind}:: {path}\n   :{option}:"
    elif inspect.isroutine(value):
        directive = f".. autofunction:: {path}"
    else:
        directive = f".. py:data:: {path}\n   :value: {value!r}"
    return f"\n```{{eval-rst}}\n{directive}\n```\n"


def paragraph(of: object) -> str:
    """Return the first paragraph of a docstring."""
    return (inspect.getdoc(of) or "").split("\n\n")[0]


def commands(text: str) -> str:
    """Show usage, help, arguments and options of each command."""
    for path, command in leaves("millrace", typer.main.get_group(app)):
        context = command.make_context(path, [], resilient_parsing=True)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        text += f"\n## {path}\n\n```text\n{usage}\n```\n\n{escaped(command.help or '')}\n"
        records = [record for each in command.params if (record := each.get_help_record(context))]
        if records:
            text += "\n| option | what it says |\n|---|---|\n"
        for name, told in records:
            option = name.replace("|", r"\|")
            text += f"| `{option}` | {escaped(told)} |\n"
    return text


def leaves(path: str, group: TyperGroup) -> Iterator[tuple[str, TyperCommand]]:
    """Give the commands of a group and of the groups in it, each with all that is typed for it."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from leaves(f"{path} {name}", command)
        elif isinstance(command, TyperCommand):
            yield f"{path} {name}", command


def sql(text: str) -> str:
    """Show the comment of each function that is not private, by room."""
    for room, files in groupby(function_files(), lambda path: path.relative_to(SQL / "functions").parts[0]):
        found = [match.groups() for file in files for match in COMMENT.finditer(file.read_text())]
        text += f"\n## {room}\n" if found else ""
        for schema, name, types, literal in sorted(found, key=lambda each: each[1]):
            comment = "".join(re.findall(r"'((?:[^']|'')*)'", literal)).replace("''", "'")
            text += f"\n### {name}\n\n```text\n{schema}.{name}({types})\n```\n\n{refusals(escaped(comment))}\n"
    return text


def refusals(text: str) -> str:
    """Return a comment with its refusals as a list."""
    return re.sub(r"[.;] (?=MR\d{3} )", ".\n- ", text)


def escaped(text: str) -> str:
    """Return a text as Markdown: names are code, and what is code stays it."""

    def part(match: re.Match[str]) -> str:
        found = match[0]
        return found if found[0] == "`" else f"`{found}`" if "_" in found else f"\\{found}"

    return re.sub(r"`[^`]*`|\w*_\w*|[*<>|\[\]]", part, text)


def errors(text: str) -> str:
    """Put the cause, which is the exception's docstring, before each remedy."""

    def row(match: re.Match[str]) -> str:
        code, name, remedy = match.groups()
        cause = " ".join(paragraph(BY_SQLSTATE[code]).split())
        return f"| {code} | {{py:exc}}`~millrace.errors.{name}` | {cause} | {remedy} |"

    heading = "| SQLSTATE | Python | what to do |\n|---|"
    return REMEDY.sub(row, text.replace(heading, "| SQLSTATE | Python | cause | what to do |\n|---|---|"))


PAGES: dict[str, Callable[[str], str]] = {
    "reference/python": python,
    "reference/commands": commands,
    "reference/sql": sql,
    "reference/errors": errors,
}
