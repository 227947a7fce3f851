"""`millrace run service`: one service by itself, and its notifications to systemd."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.local.supervisor import end_leftovers, services_down
from millrace.platform_defs.local.watched import watch
from millrace.settings import Settings
from tests.support.patience import patience, wait_until
from tests.support.running.deployment import MILLRACE


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(patience())
        yield listening


def test_the_sequencer_is_watched(tmp_path: Path, dsn: str, store: PlatformStore, systemd: socket.socket) -> None:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MILLRACE_", "SPARK_"))},
        "MILLRACE_HOME": str(tmp_path),
        "MILLRACE_DSN": dsn,
        "MILLRACE_DAGSTER_DSN": dsn,
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
    }
    with subprocess.Popen([MILLRACE, "run", "service", "sequence"], env=env, stdout=subprocess.PIPE, text=True) as one:
        try:
            assert [systemd.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
            assert store.is_attended()
            assert services_down(tmp_path) == []
            one.send_signal(signal.SIGTERM)
            assert one.communicate(timeout=patience())[0] == "Starting sequence ...\nStopping sequence ...\n"
            assert one.returncode == 0
        finally:
            one.kill()
            assert end_leftovers(tmp_path / "watched" / "sequence") == []
    wait_until(lambda: not store.is_attended(), "nobody attends the log")


@pytest.mark.parametrize(
    ("dsn_of", "refusal"), [("postgresql://u@/x", "There is no service 'spark'"), (None, "MILLRACE_DSN is not set")]
)
def test_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn_of: str | None, refusal: str) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("MILLRACE_DAGSTER_DSN", "postgresql://u@/y")
    with pytest.raises(MillraceError, match=refusal):
        watch("spark", Settings(home=tmp_path, dsn=dsn_of), Event(), print)
