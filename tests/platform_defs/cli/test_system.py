"""The commands on a deployment as a whole, and how the command line comes together."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli import dev
from millrace.platform_defs.cli.system import behind
from millrace.settings import EXAMPLE
from tests.platform_defs.cli.conftest import Typed
from tests.support.command_line import millrace
from tests.support.factories import append_to, register_orders

LOADED = """
import sys
from millrace.platform_defs.cli import main
sys.argv = {argv!r}
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print("LOADED", *sys.modules)
"""
HEAVY = {"dagster", "pyspark", "pyarrow", "pandas"}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Make a package of declarations in the current folder, which MILLRACE_DECLARATIONS names."""
    folder = tmp_path / "mine_only"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("MILLRACE_DECLARATIONS", "mine_only")
    # additions to the command line end with the test
    monkeypatch.setattr(dev.app, "registered_groups", list(dev.app.registered_groups))

    def write(**files: str) -> None:
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine_only"]:
        del sys.modules[name]


def test_the_help_of_the_command_line_is_cheap() -> None:
    for words in (["--help"], ["status", "--help"]):
        script = LOADED.format(argv=["millrace", *words])
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        said, _, loaded = done.stdout.rpartition("LOADED")
        assert "Usage" in said
        assert not HEAVY & set(loaded.split())


def test_the_help_shows_commands_of_users(mine: Callable[..., None], typed: Typed) -> None:
    mine(
        commands="import typer\napp = typer.Typer()\n@app.command('greet')\ndef greet() -> None:\n"
        "    '''Greet somebody.'''\n    typer.echo('hello')\n"
        "@app.command('part')\ndef part() -> None:\n    '''Part from somebody.'''\n"
    )
    code, out, _ = typed("dev", "--help")
    assert (code, "Greet somebody." in out, "simulate" in out) == (0, True, False)
    assert typed("dev", "greet")[:2] == (0, "hello\n")


def test_commands_that_fail_cost_only_themselves(mine: Callable[..., None], typed: Typed) -> None:
    mine(commands="\nimport no_such_thing\n")
    code, out, err = typed("dev", "--help")
    assert (code, "psql" in out) == (0, True)
    assert "mine_only/commands.py:2: ModuleNotFoundError" in err.replace("\n", "")
    mine(commands="app = 7\n")
    assert "its app is no Typer" in typed("dev", "--help")[2]
    # a command of ours does not even load the package
    for ours in (["--help"], ["status", "--help"], ["dev", "psql", "--help"]):
        assert "its app is no Typer" not in typed(*ours)[2]


def test_status_says_which_declarations_fail_and_where(dsn: str, mine: Callable[..., None]) -> None:
    sys.path.insert(0, str(Path.cwd()))
    mine(read_models="\n\nraise OSError('no disk')\n", services="import no_such_thing\n")
    said = millrace("status", dsn=dsn)
    here = Path.cwd() / "mine_only"
    assert f"A declaration fails to load: {here / 'read_models.py'}:3: OSError: no disk" in said
    assert f"A declaration fails to load: {here / 'services.py'}:1: ModuleNotFoundError" in said
    missing = millrace("status", dsn=dsn, MILLRACE_DECLARATIONS="no_such_package")
    assert "There is no package 'no_such_package'" in missing
    assert "fails" not in millrace("status", dsn=dsn, MILLRACE_DECLARATIONS=EXAMPLE)


WITH_PASSWORDS = (
    "postgresql://u:hunter2@127.0.0.1:1/x", "postgresql://u:hunter2/and@127.0.0.1:1/x",
    "postgresql://u:hunter2@127.0.0.1:hunter2/x", "host=127.0.0.1 port=1 password='hunter2 and more' user=u",
    "hunter2", "host=127.0.0.1 hunter2", "password=hunter2 sslmode=hunter2",
)  # fmt: skip


def test_no_error_about_a_dsn_says_its_password(typed: Typed) -> None:
    for dsn in WITH_PASSWORDS:
        for command in ("status", "migrate", "dev psql"):
            code, out, err = typed(*command.split(), "--dsn", dsn)
            assert (code, bool(err), "hunter2" in out + err) == (1, True, False), (command, dsn)


def test_a_backup_is_for_this_account_alone(typed: Typed, dsn: str, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        code, _, err = typed("backup", str(tmp_path / "backup"), "--dsn", dsn)
    finally:
        os.umask(before)
    assert code == 0, err
    assert {path.stat().st_mode & 0o077 for path in [tmp_path / "backup", *(tmp_path / "backup").rglob("*")]} == {0}


def test_what_a_view_does_not_want_is_not_behind(dsn: str, store: PlatformStore) -> None:
    orders = register_orders(store)
    orders.register_view("paid", "-infinity", mode="bulk", events=["paid"])
    orders.register_view("placed", "-infinity", mode="bulk", events=["placed"])
    append_to(orders, "o-1", "o-2")
    orders.sequence_events()
    assert behind(dsn) == ["paid: 0 due", "placed: 2 due"]
