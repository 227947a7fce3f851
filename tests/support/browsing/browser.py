"""A real Chromium without a screen."""

import shutil
import tempfile
from collections.abc import Mapping

import pytest

from tests.support.running.programs import ran

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# without a sandbox: Chromium refuses to run as root with one, and only visits pages of this machine
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--virtual-time-budget=30000", "--dump-dom",
)  # fmt: skip


def found_chromium() -> str:
    """Return the path of an installed Chromium; skip without one."""
    browser = next((found for program in PROGRAMS if (found := shutil.which(program))), None)
    if browser is None:
        pytest.skip("There is no Chromium here: install Debian's package chromium.")
    return browser


def visit(url: str, names: Mapping[str, str] | None = None) -> str:
    """Open a page, let its scripts run, and return the resulting DOM; `names` maps hosts to addresses."""
    browser = found_chromium()
    rules = ", ".join([*(f"MAP {name} {to}" for name, to in (names or {}).items()), "EXCLUDE localhost"])
    with tempfile.TemporaryDirectory(prefix="millrace-browser-") as profile:
        return ran(browser, *FLAGS, f"--user-data-dir={profile}", f"--host-resolver-rules={rules}", url).stdout
