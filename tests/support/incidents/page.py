"""An operator in an incident, who has docs/incidents.md before them and does what its chapter says."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millrace.resources.settings import EXAMPLE
from tests.support.pages.documents import Block, chapters
from tests.support.pages.printed import assert_printed
from tests.support.patience import patience

PAGE = "docs/incidents.md"
PACKAGE = "my_platform"
PROGRAMS = Path(sys.executable).parent


@dataclass
class Operator:
    """Somebody who follows a chapter.

    Attributes:
        folder: Where commands run.
        variables: What the page's variables are, MILLRACE_DSN among them.
        left: The blocks that are not followed yet.
        programs: Where `millrace` is.
    """

    folder: Path
    variables: dict[str, str]
    left: list[Block]
    programs: Path = PROGRAMS
    followed: list[Block] = field(default_factory=list)

    def follow(self, *, refused: bool = False) -> str:
        """Run the next block in bash and return what it printed, which must be what the page shows below it.

        Args:
            refused: The command ends with an error, and the page shows the error's words.
        """
        block = self.left.pop(0)
        self.followed.append(block)
        assert block.language == "sh", f"{block}: no command"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self.folder,
            env={**os.environ, **self._environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience(),
            check=False,
        )
        assert (done.returncode != 0) == refused, f"{block}:\n{done.stdout}{done.stderr}"
        said = done.stderr if refused else done.stdout
        if block.printed is not None:
            assert_printed(block, said)
        return said

    def _environment(self) -> dict[str, str]:
        package = PACKAGE if (self.folder / PACKAGE).exists() else EXAMPLE
        path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        return {
            "MILLRACE_HOME": str(self.folder / ".millrace"),
            "MILLRACE_DECLARATIONS": package,
            "COLUMNS": "120",
            "PATH": path,
            **self.variables,
        }


@contextmanager
def incident(chapter: str, folder: Path, **variables: str) -> Iterator[Operator]:
    """Open the page at a chapter; in the end each of its commands must have been run."""
    operator = Operator(folder, variables, list(chapters(PAGE)[chapter]))
    yield operator
    assert not operator.left, f"{operator.left[0]} was not followed"


def declare(folder: Path, kind: str = "read_models", name: str = "", text: str = "") -> None:
    """Make a package of declarations there, with one file of this kind (`read_models`, `captures`) if it is named."""
    room = folder / PACKAGE / kind
    room.mkdir(parents=True, exist_ok=True)
    for package in {folder / PACKAGE, room}:
        (package / "__init__.py").touch()
    if name:
        (room / f"{name}.py").write_text(text)
