"""The face `millrace`: what is public is there, it is cheap to import, and examples need nothing else."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
from millrace.resources.settings import PROJECT

HEAVY = {"dagster", "pyspark", "psycopg", "pyarrow", "pandas", "requests"}
# what a user's own code may need besides
PACKAGES = {"psycopg", "psycopg_pool", "dagster", "pyspark", "typer", "tenacity", "starlette", "standardwebhooks"}


def test_every_name_is_there_and_is_what_a_type_checker_takes_it_for() -> None:
    tree = ast.parse(Path(millrace.__file__).read_text())
    checked = {
        name.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert sorted(checked) == sorted(millrace.__all__)
    for name, module in checked.items():
        assert getattr(millrace, name) is getattr(importlib.import_module(str(module)), name)
    assert set(millrace.__all__) <= set(dir(millrace))


def test_a_name_that_is_not_there_is_an_error_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'millrace' has no attribute 'nothing'"):
        _ = millrace.nothing  # type: ignore[attr-defined]


def test_importing_it_imports_nothing_heavy_and_each_name_only_its_own() -> None:
    loaded = loaded_after("import millrace")
    assert not loaded & HEAVY
    assert not [name for name in loaded if name.startswith("millrace.")]
    assert "dagster" not in loaded_after("from millrace import read_model, fold, count, Capture, Conflict")
    assert not loaded_after("from millrace import EventStore, ExactlyOnce, migrate") & {"dagster", "pyspark"}


def loaded_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if "." not in name or name.startswith("millrace.")}


def test_examples_import_what_their_users_may() -> None:
    wrong = []
    for file in sorted((PROJECT / "examples").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                top = module.partition(".")[0]
                allowed = top in PACKAGES or top in sys.stdlib_module_names
                own = module == "millrace" or module.startswith("millrace.examples.shop")
                if not (allowed or own):
                    wrong.append((str(file.relative_to(PROJECT)), module))
    assert wrong == []
