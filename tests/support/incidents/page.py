"""An operator in an incident, following a chapter of docs/incidents.md."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millrace.settings import EXAMPLE
from tests.support.pages.documents import Block, chapters
from tests.support.pages.printed import assert_printed
from tests.support.running.programs import ran

PAGE = "docs/incidents.md"
PACKAGE = "my_platform"
PROGRAMS = Path(sys.executable).parent


@dataclass
class Operator:
    """An operator that follows a chapter in a folder, with the page's variables and the folder of `millrace`."""

    folder: Path
    variables: dict[str, str]
    left: list[Block]
    programs: Path = PROGRAMS
    followed: list[Block] = field(default_factory=list)

    def follow(self, *, refused: bool = False) -> str:
        """Run the next block in bash and return its output or error, which the page shows below it."""
        block = self.left.pop(0)
        self.followed.append(block)
        assert block.language == "sh", f"{block}: no command"
        env = {**os.environ, **self._environment()}
        bash = ("bash", "-euo", "pipefail", "-c", block.text)
        done = ran(*bash, code=None, cwd=self.folder, env=env, stdin=subprocess.DEVNULL)
        assert (done.returncode != 0) == refused, f"{block}:\n{done.stdout}{done.stderr}"
        said = done.stderr if refused else done.stdout
        if block.printed is not None:
            assert_printed(block, said)
        return said

    def _environment(self) -> dict[str, str]:
        package = PACKAGE if (self.folder / PACKAGE).exists() else EXAMPLE
        path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        ours = {"MILLRACE_HOME": str(self.folder / ".millrace"), "MILLRACE_DECLARATIONS": package}
        return {**ours, "COLUMNS": "120", "PATH": path, **self.variables}


@contextmanager
def incident(chapter: str, folder: Path, **variables: str) -> Iterator[Operator]:
    """Open the page at a chapter; assert at the end that each of its commands was run."""
    operator = Operator(folder, variables, list(chapters(PAGE)[chapter]))
    yield operator
    assert not operator.left, f"{operator.left[0]} was not followed"


def declare(folder: Path, kind: str = "read_models", name: str = "", text: str = "") -> None:
    """Make a package of declarations in a folder, with one file of this kind (`read_models`, `captures`) if named."""
    room = folder / PACKAGE / kind
    room.mkdir(parents=True, exist_ok=True)
    for package in {folder / PACKAGE, room}:
        (package / "__init__.py").touch()
    if name:
        (room / f"{name}.py").write_text(text)
