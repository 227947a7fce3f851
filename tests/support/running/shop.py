"""The example shop as a user's own package: a copy in a test's folder; its files may be edited."""

import shutil
from pathlib import Path

from tests.support.project import PROJECT

PACKAGE = "my_shop"
SHOP = "millrace.examples.shop"


def own_shop(folder: Path) -> Path:
    """Copy the shop into a folder, as the package `my_shop`, and return that package."""
    package = folder / PACKAGE
    shutil.copytree(PROJECT / "examples" / "shop", package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in package.rglob("*.py"):
        file.write_text(file.read_text().replace(SHOP, PACKAGE))
    return package


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text that the file has once."""
    text = file.read_text()
    assert text.count(old) == 1, (file, old)
    file.write_text(text.replace(old, new))
