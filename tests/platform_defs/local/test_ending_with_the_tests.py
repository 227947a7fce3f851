"""A platform that tests started ends with them, even if pytest itself is killed."""

import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from millrace.processes import wait_ended
from tests.support.patience import patience
from tests.support.project import PROJECT

STARTED = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
STARTS_ONE = f"""
import signal, subprocess, sys
from tests.support.running.ending import ending_with_us
# processes of pytest-xdist ignore it, and what they start inherits that
signal.signal(signal.SIGTERM, signal.SIG_DFL)
subprocess.Popen(ending_with_us([sys.executable, "-c", {STARTED!r}]))
signal.pause()
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="There is no setpriv here: install util-linux on Linux.")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_tests_start_ends_when_they_are_killed(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS_ONE], cwd=PROJECT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout
        started = psutil.Process(int(tests.stdout.readline()))
        tests.send_signal(how)
    assert wait_ended([started], patience()) == []
