"""The code that Spark's tasks import from us, in one file that a session ships to its tasks.

A warm Spark keeps the modules that it imported: a module outside the file would keep its first state for ever.
"""

import ast
import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from millrace.errors import MillraceError
from millrace.processes import folder_of_code

# the oldest date that a zip can hold: the same code makes the same file, independent of the checkout's dates
_DATE = (1980, 1, 1, 0, 0, 0)


class PackageMissing(MillraceError):
    """A package that Spark's tasks need cannot be found here."""


def packages_to_ship(declarations: str | None) -> list[str]:
    """Return the top-level packages that tasks import: ours, and that of the user's declarations if it differs."""
    package = declarations.partition(".")[0] if declarations else "millrace"
    return ["millrace"] if package == "millrace" else ["millrace", package]


def shipped_code(declarations: str | None) -> Path:
    """Return a zip of the packages that Python can import from. It exists until this process ends.

    Its name has a hash of its content: other code has another name.

    Raises:
        PackageMissing: A package cannot be found.
    """
    return _zip_of_packages(tuple(packages_to_ship(declarations)))


@cache
def _zip_of_packages(packages: tuple[str, ...]) -> Path:
    folders = {}
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.submodule_search_locations is None:
            raise PackageMissing(
                f"There is no package {package} to bring to Spark's tasks.",
                detail="it is not on Python's path" if spec is None else f"it is a single file, {spec.origin}",
                hint="Set MILLRACE_DECLARATIONS to a package that can be imported here.",
            )
        folders[package] = [Path(folder) for folder in spec.submodule_search_locations]
    shipped, installed = with_their_helpers(folders)
    content = zip_of(shipped, installed)
    path = folder_of_code() / f"millrace-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    path.write_bytes(content)
    return path


def with_their_helpers(
    packages: Mapping[str, Sequence[Path]],
) -> tuple[dict[str, Sequence[Path]], dict[str, Sequence[Path]]]:
    """Find the user's other, uninstalled source that the user's packages import anywhere in their code.

    Args:
        packages: As `zip_of` takes them; `millrace` itself is not searched.

    Returns:
        The packages with the source to ship; and separately the source that must already be where the tasks run,
        because it is more than modules of Python: compiled modules, or files that modules read.
    """
    found = dict(packages)
    installed: dict[str, Sequence[Path]] = {}
    todo = [places for package, places in packages.items() if package != "millrace"]
    while todo:
        for name in sorted(_imported(todo.pop()) - found.keys() - installed.keys() - sys.stdlib_module_names):
            places = _source(name)
            if places:
                # only source that consists of modules of Python can be shipped
                beside = {".py", ".pyc", ".pyi", ".typed", ".md"}
                names = (file for place in places for _, _, files in _walk(place) for file in files)
                (found if all(Path(file).suffix in beside for file in names) else installed)[name] = places
                todo.append(places)
    return found, installed


def _imported(places: Sequence[Path]) -> set[str]:
    """Return the top-level names of the modules that some code imports."""
    found = set()
    for place in places:
        for path in _modules(place):
            # skip a file that is no Python: importing it will raise the error
            with suppress(SyntaxError, ValueError):
                for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
                    if isinstance(node, ast.Import):
                        found |= {alias.name.partition(".")[0] for alias in node.names}
                    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                        found.add(node.module.partition(".")[0])
    return found


def _source(name: str) -> list[Path]:
    """Return the folders, or the file, of a module that is source; nothing for an installed or missing module."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    places = [*map(Path, spec.submodule_search_locations or ())] or [Path(spec.origin or "")]
    installed = {"site-packages", "dist-packages"}
    return [
        each
        for each in places
        if (each.is_dir() or each.suffix == ".py") and each.exists() and not installed & {*each.parts}
    ]


def zip_of(packages: Mapping[str, Sequence[Path]], left: Mapping[str, Sequence[Path]] | None = None) -> bytes:
    """Write the modules of packages into a zip: the same bytes for the same modules.

    Args:
        packages: The name of each package, and its folders: one, or several for a namespace; or the file of a module
            that is no package.
        left: Packages outside the zip. A change of their files also makes another zip, and so another session.
    """
    modules = {
        f"{package}.py" if place.is_file() else str(Path(package, path.relative_to(place))): path
        for package, places in packages.items()
        for place in places
        for path in _modules(place)
    }
    # Python 3.11 and 3.12 find a folder without `__init__.py` only if the zip says that it is there
    folders = {f"{parent}/" for name in modules for parent in Path(name).parents if parent.name}
    # a line for each package outside the zip, with a hash of the sizes and times of its files
    states = []
    for name, places in sorted((left or {}).items()):
        files = sorted(Path(within, file) for place in places for within, _, names in _walk(place) for file in names)
        state = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.suffix != ".pyc"]
        states.append(f"{name} {hashlib.sha256(repr(state).encode()).hexdigest()}")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.comment = "\n".join(states).encode()
        for name in sorted(folders | modules.keys()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), b"" if name in folders else modules[name].read_bytes())
    return content.getvalue()


def _modules(folder: Path) -> Iterator[Path]:
    for within, _, files in _walk(folder):
        yield from (Path(within, file) for file in files if file.endswith(".py"))


def _walk(place: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through a folder, or to a file, as `os.walk` does, skipping hidden files and folders."""
    if place.is_file():
        yield str(place.parent), [], [place.name]
    # in a checkout the rooms of `millrace` are links
    for within, folders, files in os.walk(place, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield within, folders, [name for name in files if not name.startswith(".")]
