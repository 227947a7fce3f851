"""A real Chromium without a screen."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping

import pytest

from tests.support.patience import patience

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # it refuses to run as root with one; it only visits pages of this machine
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=30000",
    "--dump-dom",
)


def found_chromium() -> str:
    """Return where a Chromium is installed; skip without one."""
    browser = next((found for program in PROGRAMS if (found := shutil.which(program))), None)
    if browser is None:
        pytest.skip("There is no Chromium here: install Debian's package chromium.")
    return browser


def visit(url: str, names: Mapping[str, str] | None = None) -> str:
    """Open a page, let its scripts run, and return what the page is then; skip without a browser.

    Args:
        url: The page.
        names: Names of hosts, with the address that each one leads to.
    """
    browser = found_chromium()
    rules = ", ".join([*(f"MAP {name} {to}" for name, to in (names or {}).items()), "EXCLUDE localhost"])
    with tempfile.TemporaryDirectory(prefix="millrace-browser-") as profile:
        done = subprocess.run(
            [browser, *FLAGS, f"--user-data-dir={profile}", f"--host-resolver-rules={rules}", url],
            capture_output=True,
            text=True,
            timeout=2 * patience(),
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout
