"""Processes that end with the tests, even if pytest is killed and no fixture ends anything."""

import shutil
from collections.abc import Sequence
from pathlib import Path


def ending_with_us(command: Sequence[str | Path]) -> list[str | Path]:
    """Return a command that gets a SIGTERM when the thread that starts it ends for any reason.

    Only on Linux, by `setpriv` of util-linux; elsewhere the command is unchanged.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else [*command]
