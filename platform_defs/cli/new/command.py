"""The command `millrace new`: a repository for one's own declarations."""

import json
import keyword
import re
import shlex
import sys
from importlib.metadata import distribution
from pathlib import Path
from string import Template
from typing import Annotated

import typer
from rich.text import Text

from millrace.errors import MillraceError
from millrace.platform_defs.screen import Screen

app = typer.Typer()

TEMPLATE = Path(__file__).parent / "template"
SUFFIX = ".template"
# names that the package cannot have: the folder of its tests, and the library that it imports
RESERVED = {"tests", "millrace"}


@app.command("new")
def new_command(
    folder: Annotated[Path, typer.Argument(help="The folder; the package is named after it.", metavar="DIR")],
) -> None:
    """Make a repository for your own declarations, with tested examples."""
    package = make_repository(folder)
    there = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    Screen().print(Text(f"Made the package {package} in {folder}; next: {there}make run"), soft_wrap=True)


def make_repository(folder: Path) -> str:
    """Make the repository in a folder that is empty or missing, and return the name of its package.

    Resumes a call that was stopped midway.

    Raises:
        MillraceError: The folder has other content, or its name makes no name of a package.
    """
    package = package_name(folder.resolve().name)
    names, values = {"package": package, "gitignore": ".gitignore"}, {"package": package, "millrace": _requirement()}
    texts = {}
    for source in sorted(TEMPLATE.rglob(f"*{SUFFIX}")):
        parts = Path(str(source.relative_to(TEMPLATE)).removesuffix(SUFFIX)).parts
        path = folder.joinpath(*(names.get(part, part) for part in parts))
        texts[path] = Template(source.read_text()).substitute(values)
    # the folder has only beginnings of these files, and no link: a link may lead elsewhere
    is_begun = all(
        path in texts
        and path.is_file()
        and not path.is_symlink()
        and texts[path].encode().startswith(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )
    if folder.exists() and not (folder.is_dir() and is_begun):
        raise MillraceError(
            f"{folder} is not an empty folder.", hint="State another one, or empty it: nothing there is written over."
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def _requirement() -> str:
    """Return the requirement that installs this Millrace again, from where this one was installed.

    A name alone would install another project: the public index has a package of this name that is not ours. For the
    file, see https://packaging.python.org/specifications/direct-url.
    """
    found = distribution("millrace")
    origin = json.loads(found.read_text("direct_url.json") or "null")
    if origin is None:
        return f"millrace=={found.version}"
    if commit := origin.get("vcs_info"):
        return f"millrace @ {commit['vcs']}+{origin['url']}@{commit['commit_id']}"
    return f"millrace @ {origin['url']}"


def package_name(folder: str) -> str:
    """Return the name of the package in a folder of this name: in small letters, `_` for illegal characters.

    Raises:
        MillraceError: Python does not allow that name, or has another module of this name.
    """
    name = re.sub(r"\W", "_", folder, flags=re.ASCII).lower()
    reason = None
    if not name.isidentifier() or not name.strip("_"):
        reason = "A name begins with a letter, and has letters, digits and _."
    elif keyword.iskeyword(name) or keyword.issoftkeyword(name):
        reason = f"{name!r} is a word of Python itself."
    elif name in sys.stdlib_module_names | RESERVED:
        reason = f"There is a module {name!r} already."
    if reason:
        raise MillraceError(
            f"The folder's name {folder!r} gives no name for a package.",
            detail=reason,
            hint="Name the folder as the package shall be named, such as my_platform.",
        )
    return name
