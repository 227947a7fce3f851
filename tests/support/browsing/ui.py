"""Dagster's webserver behind our gate, with a test's own instance and code location."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from millrace.platform_defs.dagster_internals.web import gated
from millrace.platform_defs.local.services import free_port
from tests.support.patience import patience, wait_until

STUB = """
import dagster as dg

@dg.asset
def greeting():
    return 1

defs = dg.Definitions(assets=[greeting], executor=dg.in_process_executor)
"""
PAUSE = "mutation { setAutoMaterializePaused(paused: true) }"
PAUSED = "{ instance { autoMaterializePaused } }"
REPORTED = (
    '{ assetOrError(assetKey: {path: ["greeting"]}) { ... on Asset { assetMaterializations(limit: 1) { runId } } } }'
)


@dataclass(frozen=True)
class Ui:
    """A running UI; its own requests are those of a script on this machine."""

    port: int
    token: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, query: str) -> Any:  # noqa: ANN401 - JSON
        bearer = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        answer = requests.post(f"{self.url}/graphql", json={"query": query}, headers=bearer, timeout=patience())
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def was_changed(self) -> bool:
        """Return whether any request had an effect: the mutation, or a reported asset."""
        reported = self.ask(REPORTED)["assetOrError"].get("assetMaterializations")
        return bool(self.ask(PAUSED)["instance"]["autoMaterializePaused"] or reported)


@contextmanager
def running_ui(folder: Path, *, token: str | None = None, hosts: str = "") -> Iterator[Ui]:
    """Run a UI with active automation."""
    (folder / "home").mkdir()
    (folder / "stub.py").write_text(STUB)
    ui = Ui(free_port(), token)
    strange = ("MILLRACE_", "DAGSTER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    env |= {"DAGSTER_HOME": str(folder / "home"), "MILLRACE_UI_HOSTS": hosts, "PYTHONWARNINGS": "ignore"}
    if token:
        env["MILLRACE_UI_TOKEN"] = token
    program = [sys.executable, "-m", "millrace.platform_defs.dagster_internals.web"]
    options = ["-f", str(folder / "stub.py"), "-h", "127.0.0.1", "-p", str(ui.port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*program, *options], env=env, stdout=log, stderr=log, cwd=folder)
        try:
            wait_until(lambda: process.poll() is not None or gated(ui.url, token), "the UI answers")
            assert process.poll() is None, (folder / "log").read_text()
            ui.ask("mutation { setAutoMaterializePaused(paused: false) }")
            yield ui
        finally:
            process.terminate()
            process.wait(patience())
