"""Takes pictures of the running UI with a headless Chromium, for review and for documents.

Belongs here: the pages, and the call of a headless browser. Not here: starting Millrace.

    python scripts/take_screenshots.py [--folder .millrace/screenshots] [--url http://127.0.0.1:3000]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import requests

from millrace.settings import Settings

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
TAKE_SECONDS = 120
FLAGS = (
    "--headless",
    "--no-sandbox",  # as root the browser refuses a sandbox; it only visits our own pages
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1600,1000",
    "--virtual-time-budget=20000",
)
# file name -> page
PAGES = {
    "lineage": "/asset-groups/",
    "lineage-event-store": "/locations/millrace/asset-groups/event_store/lineage",
    "lineage-consumption": "/locations/millrace/asset-groups/consumption/lineage",
    "lineage-change-capture": "/locations/millrace/asset-groups/change_capture/lineage",
    "lineage-read-models": "/locations/millrace/asset-groups/read_models/lineage",
    "sensor": "/locations/millrace/sensors/poll_orders",
    "read-model": "/assets/read_models/orders?view=overview",
    "read-model-partitions": "/assets/read_models/orders?view=partitions&partition=p00",
    "read-model-events": "/assets/read_models/orders?view=events",
    "read-model-checks": "/assets/read_models/orders?view=checks",
    "view-events": "/assets/consumption/view_events?view=overview",
    "wal-events": "/assets/change_capture/wal_events?view=overview",
    "automation": "/automation",
    "runs": "/runs",
}


def main() -> None:
    """Take every picture; exit code 1 if one fails, 0 without a browser."""
    parser = argparse.ArgumentParser(description="Take screenshots of the running Millrace UI.")
    settings = Settings()
    folder = settings.home / "screenshots"
    parser.add_argument("--folder", type=Path, default=folder, help="where they go (MILLRACE_HOME/screenshots)")
    parser.add_argument("--url", default=f"http://127.0.0.1:{settings.port}", help="the UI (by MILLRACE_PORT)")
    arguments = parser.parse_args()
    browser = next((found for program in PROGRAMS if (found := shutil.which(program))), None)
    if browser is None:
        print(f"No screenshots were taken: none of {', '.join(PROGRAMS)} is installed.")
        return
    try:
        requests.get(f"{arguments.url}/server_info", timeout=5).raise_for_status()
    except requests.RequestException:
        sys.exit(f"No screenshots were taken: no UI answers at {arguments.url}. Start it with `make run`.")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        file = arguments.folder.resolve() / f"{name}.png"
        take(browser, arguments.url + page, file)
        print(file)


def take(browser: str, url: str, file: Path) -> None:
    """Take one picture with a new browser, so that no state is shared."""
    file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="millrace-browser-", ignore_cleanup_errors=True) as profile:
        command = command_line(browser, url, file, Path(profile))
        try:
            completed = subprocess.run(command, capture_output=True, text=True, timeout=TAKE_SECONDS, check=False)  # noqa: S603 - our own pages
        except subprocess.TimeoutExpired:
            sys.exit(f"The browser did not show {url} within {TAKE_SECONDS} s.")
    if not file.exists():
        sys.exit(f"The browser took no picture of {url}: {completed.stderr.strip()[-500:]}")


def command_line(browser: str, url: str, file: Path, profile: Path) -> list[str]:
    """Return the command that takes a picture of a page with a headless browser."""
    return [browser, *FLAGS, f"--user-data-dir={profile}", f"--screenshot={file}", url]


if __name__ == "__main__":
    main()
