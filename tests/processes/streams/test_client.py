"""The clients that Durable Streams has keep a read model's table, without code of ours."""

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from millrace.streams.app import serving_streams
from millrace.streams.followers import Followers
from tests.streams.support import Rows, token_of
from tests.support.factories import Connect
from tests.support.patience import patience
from tests.support.running.programs import ran

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="it installs packages with npm")
PACKAGES = ("@durable-streams/client@0.2.6", "@durable-streams/state@0.3.1")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the script, beside the packages that it imports."""
    folder = tmp_path_factory.mktemp("client")
    ran("npm", "install", "--no-audit", "--no-fund", "--prefix", folder, *PACKAGES)
    return Path(shutil.copy(Path(__file__).with_name("keep_table.mjs"), folder))


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_the_packages_keep_a_table(live: str, script: Path, dsn: str, connect: Connect) -> None:
    rows = Rows(connect())
    with serving_streams(Followers(dsn), "127.0.0.1", 0) as port:
        url = f"http://127.0.0.1:{port}/models/by_day"
        command: list[str | Path] = ["node", script, url, live, token_of(dsn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            changes = (
                partial(rows.merge, "mon"),
                partial(rows.merge, "mon", "tue"),
                rows.replace,
                partial(rows.merge, "end"),
            )
            for change in changes:
                # the client has the change before, and says its offset
                assert running.stderr.readline()
                change()
                rows.sequence()
            out, error = running.communicate(timeout=patience())
    assert running.returncode == 0, error
    assert json.loads(out) == {day: json.loads(row) for day, row in rows.present().items()}
