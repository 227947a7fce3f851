"""Our own code in one file, for Spark to bring to wherever its tasks run.

Belongs here: what is in the file. Not here: handing it to a session (`spark`).

Tasks import the source `event_log`, and what read models are declared with. What these import in turn and is not ours
(pyarrow, pandas, the ADBC driver, psycopg) must be installed where the tasks run.
"""

import atexit
import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import millrace

PACKAGES = ("millrace",)
# the oldest that a zip can say: the same code makes the same file, whenever it was checked out
_DATE = (1980, 1, 1, 0, 0, 0)


@cache
def shipped_code() -> Path:
    """Our packages as a zip that Python imports from; its name says what is in it. It is there until this process ends."""
    content = zip_of(Path(millrace.__file__).parents[1])
    folder = Path(tempfile.mkdtemp(prefix="millrace-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # a session that is shared keeps what it got before: other code needs another name
    path = folder / f"millrace-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    path.write_bytes(content)
    return path


def zip_of(root: Path) -> bytes:
    """The modules of our packages below a folder as a zip, the same for the same modules."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for package in PACKAGES:
            # in a checkout the rooms of `millrace` are links
            for path in sorted(
                Path(folder, file)
                for folder, _, files in os.walk(root / package, followlinks=True)
                for file in files
                if file.endswith(".py")
            ):
                archive.writestr(zipfile.ZipInfo(str(path.relative_to(root)), _DATE), path.read_bytes())
    return content.getvalue()
