"""The public modules: their names, a cheap import of `millrace`, and examples that need nothing else."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
from tests.support.project import PROJECT

PUBLIC = (
    "archive",
    "capture",
    "commands",
    "event_schemas",
    "ops",
    "personal",
    "producers",
    "read_models",
    "rows",
    "spark",
    "tracing",
)
FACES = {"millrace", *(f"millrace.{module}" for module in PUBLIC)}
# modules that are wholly public
WHOLE = {"millrace.errors", "millrace.reports"}

HEAVY = {"dagster", "pyspark", "psycopg", "pyarrow", "pandas", "requests"}
# packages that a user's own code may need in addition
PACKAGES = {
    *["psycopg", "psycopg_pool", "pydantic", "dagster", "pyspark", "typer", "tenacity", "starlette", "standardwebhooks"]
}


def test_a_tree_without_symbolic_links_says_so_at_its_first_import(tmp_path: Path) -> None:
    package = tmp_path / "millrace"
    package.mkdir()
    for file in (PROJECT / "millrace").iterdir():
        if file.is_symlink():
            (package / file.name).write_text(str(file.readlink()))
        elif file.is_file():
            (package / file.name).write_bytes(file.read_bytes())
    # without site-packages, where an editable installation leads to this tree
    command = [sys.executable, "-S", "-c", "from millrace import EventStore"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = f"ImportError: {package} has no folder `resources`: it is a checkout"
    assert done.stderr.splitlines()[-1].startswith(said)


@pytest.mark.parametrize("name", sorted(FACES))
def test_every_name_is_there_and_is_what_a_type_checker_takes_it_for(name: str) -> None:
    face = importlib.import_module(name)
    # a module has only these imports and the function that looks up the lazy ones
    taken = {
        alias.name: importlib.import_module(str(node.module))
        for node in ast.walk(ast.parse(Path(str(face.__file__)).read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("millrace.")
        for alias in node.names
    }
    assert sorted(taken.keys() - {"imported_late"}) == sorted(face.__all__)
    assert [each for each in face.__all__ if getattr(face, each) is not getattr(taken[each], each)] == []
    # the next use of a name needs no lookup
    assert set(face.__all__) <= vars(face).keys()


def test_a_name_has_one_place_but_those_that_everybody_needs() -> None:
    places = [name for module in PUBLIC for name in importlib.import_module(f"millrace.{module}").__all__]
    assert sorted(name for name in set(places) if places.count(name) > 1) == []
    # `on` puts events on a stream, and lets a process's method hear one
    assert set(places) & set(millrace.__all__) == {"Capture", "IdempotentProducer", "on"}


def test_a_name_that_is_not_there_is_an_error_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'millrace' has no attribute 'nothing'"):
        _ = millrace.nothing  # type: ignore[attr-defined]


def test_importing_it_imports_nothing_heavy_and_each_name_only_its_own() -> None:
    loaded = loaded_after("import millrace")
    assert not loaded & HEAVY
    assert [name for name in loaded if name.startswith("millrace.")] == ["millrace.late_imports"]
    listing = "import millrace\nfrom millrace import ops\nprint(*dir(millrace), *dir(ops))"
    assert {"EventStore", "consume"} <= loaded_after(listing)
    assert "dagster" not in loaded_after("from millrace import read_model, fold, count, Capture, Conflict")
    services = "import millrace.rows, millrace.errors, millrace.event_schemas, millrace.producers, millrace.tracing"
    assert not loaded_after(f"{services}\nfrom millrace import EventStore, handle") & {"dagster", "pyspark"}
    assert not loaded_after("from millrace.ops import migrate, consume") & {"dagster", "pyspark"}


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
                own = module in FACES | WHOLE or module.startswith("millrace.examples.shop")
                if not own and module.partition(".")[0] not in PACKAGES | sys.stdlib_module_names:
                    wrong.append((str(file.relative_to(PROJECT)), module))
    assert wrong == []
