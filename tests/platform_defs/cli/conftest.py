"""A store with a view, a package of declarations, and a command as a user types it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli import main
from tests.support.factories import append_to, pump

Typed = Callable[..., tuple[object, str, str]]
Declare = Callable[..., None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Return a function that runs a command and returns its exit code, its output and its errors."""

    def type_(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return type_


@pytest.fixture
def view(orders: PlatformStore) -> PlatformStore:
    """Make a store with events of two streams and a rows view v that parks at the first failure."""
    orders.register_view("v", "-infinity", max_attempts=1)
    append_to(orders, "a", "a", "b")
    pump(orders, "v")
    return orders


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Declare]:
    """Write the files of a package in the current folder, which MILLRACE_DECLARATIONS names."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MILLRACE_DECLARATIONS", "checked_here")
    # a cached module cannot be told from a new text of the same size and second
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**files: str) -> None:
        forget()
        (tmp_path / "checked_here").mkdir(exist_ok=True)
        for name, text in files.items():
            (tmp_path / "checked_here" / name).with_suffix(".py").write_text(text)

    yield write
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "checked_here"]:
        del sys.modules[name]
