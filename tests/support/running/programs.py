"""A program that runs to its end."""

import subprocess
from typing import Any

from tests.support.patience import patience


def ran(*words: object, code: int | None = 0, patiences: int = 2, **more: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401 - what `run` takes
    """Run a program and return its output; None for `code` accepts any exit code."""
    options = {"capture_output": True, "text": True, "timeout": patiences * patience()} | more
    done = subprocess.run([*map(str, words)], check=False, **options)
    assert code in (None, done.returncode), (done.stdout or "")[-6000:] + (done.stderr or "")[-6000:]
    return done
