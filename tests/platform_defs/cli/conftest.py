"""A store with a view, and a command as a user types it."""

import sys
from collections.abc import Callable

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli import main
from tests.support.factories import append_to, pump

Typed = Callable[..., tuple[object, str, str]]


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
