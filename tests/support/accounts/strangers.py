"""An unrelated account of this machine."""

import os
import pwd
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.support.running.programs import ran

# not our own Python, which may be in a folder that only our account can read
PYTHON = Path(f"/usr/bin/python{sysconfig.get_python_version()}")
NOBODY = "nobody"


def as_stranger(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a Python program under that account, with readable copies of our packages; skip if not permitted."""
    if os.geteuid() != 0:
        pytest.skip("Only root can run a program under another account: run this test as root.")
    if not PYTHON.exists():
        pytest.skip(f"There is no {PYTHON} for another account: install Debian's package python3.")
    import psycopg

    account, packages = pwd.getpwnam(NOBODY), str(Path(psycopg.__file__).parents[1])
    who: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}
    env = {"PATH": os.defpath, "PYTHONPATH": packages, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    return ran(PYTHON, "-c", program, *arguments, code=None, env=env, **who)
