"""A reader that follows a page of the documents, block by block, on the page's own database.

    sh       runs in bash in the page's folder, with the installed `millrace`; `make` only has to be a verb of ours
    sql      runs statement by statement, and prints as psql prints; `-- in the database NAME` as its first line names
             another database of the server, made at its first use; its DSN is the environment's NAME_DSN
    python   runs with the names of the blocks before it; `spark` is a session and `dsn` the store if it uses them.
             One that begins with `# my_platform/read_models/NAME.py`, or captures, is that file

Before a block reads a read model, or a block of SQL events of a captured table, its sensor's run is done.
"""

import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from millrace.assets.declarations import Declarations, declared
from millrace.capture.drain import CaptureDrain
from millrace.capture.prepare import remove
from millrace.drain.view_drain import ViewDrain
from millrace.platform_defs.loading import build_defs
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.settings import EXAMPLE
from tests.support.pages.documents import Block
from tests.support.project import PROJECT
from tests.support.running.programs import ran

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE_DSN = re.compile(r"postgresql://\w+@db\.example\.com/events")
PACKAGE = "my_platform"
FILE_MARK = re.compile(rf"# ({PACKAGE}/(?:read_models|captures|defs)/\w+\.py)\n")
ELSEWHERE = re.compile(r"-- in the database (\w+)\n")
# types that psql aligns to the right: int8, int2, int4, oid, float4, float8, numeric
NUMBERS = {20, 21, 23, 26, 700, 701, 1700}


@dataclass
class Reader:
    """A reader of one page: the chapters read, the Python names defined by blocks, and databases made on the server."""

    server: EmbeddedPostgres
    dsn: str
    folder: Path
    spark: "Callable[[], SparkSession]"
    read: set[str] = field(default_factory=set)
    names: dict[str, Any] = field(default_factory=dict)
    databases: set[str] = field(default_factory=set)
    roles: list[str] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        return {
            "MILLRACE_DSN": self.dsn,
            "MILLRACE_HOME": str(self.folder / ".millrace"),
            "MILLRACE_DECLARATIONS": self.package(),
            "MILLRACE_KEYS": str(self.folder / "keys"),
            "DBT_HOST": str(self.server.socket),
            "DBT_DATABASE": str(conninfo_to_dict(self.dsn)["dbname"]),
            **{f"{name.upper()}_DSN": self.server.dsn(name) for name in self.databases},
        }

    def package(self) -> str:
        """Return the package of declarations: the reader's own once the page has made one, else the shop."""
        return PACKAGE if (self.folder / PACKAGE).exists() else EXAMPLE

    def declared(self) -> Declarations:
        return declared(self.package())

    def follow(self, block: Block) -> str:
        if match := FILE_MARK.match(block.text):
            return self.save(match[1], block.text)
        return {"sh": self.sh, "sql": self.sql, "python": self.python}[block.language](block)

    def save(self, path: str, text: str) -> str:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        for package in (file.parent.parent, file.parent):
            (package / "__init__.py").touch()
        file.write_text(text)
        forget_package()
        return ""

    def sh(self, block: Block) -> str:
        verbs = set(re.findall(r"^([a-z]+):.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE))
        asked = re.findall(r"^make (\w+)", block.text, re.MULTILINE)
        assert set(asked) <= verbs, f"{block}: make has no {asked}"
        make = self.folder / "bin" / "make"
        make.parent.mkdir(exist_ok=True)
        make.write_text("#!/bin/sh\n")
        make.chmod(0o755)
        path = os.pathsep.join([str(make.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
        text = EXAMPLE_DSN.sub(lambda _: self.dsn, block.text)
        env = {**os.environ, **self.environment(), "PATH": path}
        done = ran("bash", "-euo", "pipefail", "-c", text, code=None, cwd=self.folder, env=env)
        assert done.returncode == 0, f"{block}:\n{done.stderr}"
        # it may have changed a file of the reader's package
        forget_package()
        return done.stdout

    def sql(self, block: Block) -> str:
        """Run the statements of a block; an empty line separates two of them."""
        text, dsn = block.text, self.dsn
        if match := ELSEWHERE.match(text):
            text, dsn = text[match.end() :], self.database(match[1])
        else:
            self.build(text)
            if "'table:" in text:
                self.capture()
        self.roles += re.findall(r"^create role (\w+)", text, re.MULTILINE)
        statements = [statement for statement in re.split(r";\s*(?:\n\s*\n|$)", text) if statement.strip()]
        with psycopg.connect(dsn, autocommit=True) as connection:
            return "\n\n".join(printed(connection, statement) for statement in statements)

    def python(self, block: Block) -> str:
        """Run a block in the page's Python session."""
        self.build(block.text)
        code = compile(block.text, str(block), "exec")
        if "spark" in code.co_names:
            self.names["spark"] = self.spark()
        self.names.setdefault("dsn", self.dsn)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
            # a session of the tests, where `given` would start one that lasts as long as the process
            patch.setattr("millrace.testing.shared_spark", self.spark)
            exec(code, self.names)
        return out.getvalue()

    def build(self, text: str) -> None:
        """Build the page's read models that a text reads, as the sensors do."""
        names = set(re.findall(r"\bread_models\.(\w+)", text))
        if not names:
            return
        known = self.declared()
        built = {name: model.name for name, model in known.models.items()}
        built |= {name: rollup.of.name for name, rollup in known.rollups.items()}
        models = [known.models[built[name]] for name in sorted(names) if self.has("read_models", name)]
        sensors = {sensor.name for sensor in build_defs(declarations=known).sensors or ()} if models else set()
        for model in models:
            assert f"poll_{model.view}" in sensors
            with ViewDrain(self.dsn, model, self.spark, "reader") as consumer:
                consumer.drain(budget_s=60, idle_s=0)

    def capture(self) -> None:
        for name, capture in self.declared().captures.items():
            if self.has("captures", name):
                with CaptureDrain(self.dsn, capture, "reader") as capturing:
                    capturing.drain(budget_s=60, idle_s=0)

    def has(self, kind: str, name: str) -> bool:
        return (self.folder / PACKAGE / kind / f"{name}.py").exists()

    def database(self, name: str) -> str:
        if name not in self.databases:
            self.server.create_database(name)
            self.databases.add(name)
            os.environ.update(self.environment())
        return self.server.dsn(name)

    @contextlib.contextmanager
    def declaring(self) -> Iterator[None]:
        """Make the reader's package importable like a user's own."""
        sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(str(self.folder))
            forget_package()

    def close(self) -> None:
        with (
            self.declaring(),
            pytest.MonkeyPatch.context() as patch,
            psycopg.connect(self.dsn, autocommit=True) as connection,
        ):
            for name, value in self.environment().items():
                patch.setenv(name, value)
            known = {capture for (capture,) in connection.execute("select capture from event_store.captures")}
            for name, capture in self.declared().captures.items():
                if name in known:
                    remove(self.dsn, capture, "the page is read")
        with psycopg.connect(self.server.dsn("postgres"), autocommit=True) as admin:
            for name in self.databases:
                admin.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", (name,)
                )
                admin.execute(f"drop database {name} with (force)".encode())
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            for name in reversed(self.roles):
                admin.execute(f"drop owned by {name} cascade".encode())
                admin.execute(f"drop role {name}".encode())


def printed(connection: psycopg.Connection, statement: str) -> str:
    try:
        result = connection.execute(statement.encode()).pgresult
    except psycopg.Error as error:
        said = error.diag
        told = (f"ERROR:  {error.sqlstate}: {said.message_primary}", f"DETAIL:  {said.message_detail}")
        return "\n".join([*told, f"HINT:  {said.message_hint}"])
    assert result is not None
    if not result.nfields:
        return ""
    columns = range(result.nfields)
    names = [(result.fname(c) or b"").decode() for c in columns]
    cells = [[(result.get_value(r, c) or b"").decode() for c in columns] for r in range(result.ntuples)]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [" | ".join(f"{name:^{width}}" for name, width in zip(names, widths, strict=True))]
    for row in cells:
        padded = [
            cell.rjust(width) if result.ftype(c) in NUMBERS else cell.ljust(width)
            for c, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(" | ".join(padded))
    rule = "-+-".join("-" * width for width in widths)
    count = f"({len(cells)} row{'' if len(cells) == 1 else 's'})"
    return "\n".join([f" {lines[0]}", f"-{rule}-", *(f" {line}" for line in lines[1:]), count])


def forget_package() -> None:
    """Make the next import read the reader's package from its present files."""
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
