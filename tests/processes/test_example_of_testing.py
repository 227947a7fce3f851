"""The example of `millrace.testing` runs as a user's own test does, with Spark and Postgres in its process."""

import os
import re
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest

from millrace import testing
from tests.support.project import PROJECT
from tests.support.running.programs import ran

pytestmark = pytest.mark.timeout(1200)


def test_the_example_runs_and_leaves_nothing(tmp_path: Path) -> None:
    lines = (testing.__doc__ or "").splitlines()
    example = textwrap.dedent("\n".join(line for line in lines if not line or line.startswith("    ")))
    (tmp_path / "test_orders.py").write_text(example)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYTEST_", "MILLRACE_"))}
    # not tmp_path: other runs of pytest close its parents to the account that Postgres runs as
    with tempfile.TemporaryDirectory(prefix="millrace-") as temporary:
        env |= {"PYTHONPATH": str(PROJECT), "TMPDIR": temporary, "PYTHONDONTWRITEBYTECODE": "1"}
        options = ("-q", "-n", "1", "-W", "error", "--tb", "native", "-p", "no:cacheprovider")
        done = ran(sys.executable, "-m", "pytest", *options, cwd=tmp_path, env=env, patiences=3)
        # other programs have folders there
        left = [path.name for path in Path(temporary).iterdir() if path.name.startswith("millrace")]
    assert re.search(r"\b3 passed", done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["test_orders.py"]
    assert left == []
    assert not any(temporary in command for command in commands())


def commands() -> list[str]:
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
