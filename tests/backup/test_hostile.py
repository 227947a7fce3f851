"""A forged backup with right checksums gives no access to anything."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.backup.manifest import MANIFEST
from millrace.backup.restore import restore
from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from tests.support.backups import rewrite, tables
from tests.support.factories import append_to, refusal, register_orders

Body = dict[str, Any]
RESTORE = """
import sys
from pathlib import Path
import pyarrow as pa
from millrace.backup.restore import restore
from millrace.errors import MillraceError
for folder in sys.argv[2:]:
    try:
        restore(sys.argv[1], Path(folder))
    except MillraceError as error:
        print(type(error).__name__, pa.default_memory_pool().max_memory(), *str(error).split())
"""


def table(body: Body, name: str = "deciders") -> dict[str, Any]:
    (found,) = (each for each in body["tables"] if each["table"] == name)
    return dict(found)


def another_table(body: Body) -> None:
    body["tables"].append({**table(body), "table": "migrations", "path": table(body)["path"]})


def another_column(body: Body) -> None:
    body["tables"][0]["columns"].append("transaction_id")


# a place in the manifest, and its false value
LIES: tuple[tuple[tuple[str | int, ...], object], ...] = (
    (("tables", 0, "path"), "/etc/passwd"),
    (("tables", 0, "path"), "state/../../deciders.parquet"),
    (("last_offset",), 2**63 - 1),
    (("lease_token",), 2**63 - 1),
    (("partitions", 0, "earliest_position"), -1),
    (("files", 0, "partition"), "../../x"),
    (("last_offset",), 1e300),
)


def told(place: tuple[str | int, ...], lie: object, body: Any) -> None:  # noqa: ANN401 - JSON
    *way, last = place
    for step in way:
        body = body[step]
    body[last] = lie


def test_a_manifest_asks_for_no_more_than_it_has(saved: Path, restored: PlatformStore, target: str) -> None:
    whole = (saved / MANIFEST).read_text()
    before = tables(restored)
    changes: list[Callable[[Body], None]] = [another_table, another_column, *(partial(told, *each) for each in LIES)]
    for change in changes:
        (saved / MANIFEST).write_text(whole)
        rewrite(saved, change)
        refusal(MillraceError, lambda: restore(target, saved))
    assert tables(restored) == before
    append_to(register_orders(restored), "o-1")


# bytes of a value, number of repetitions, expected error: each decodes to 260 MB or more
LARGE = (
    (967_000, 270, "has a row that no store has"),
    (17_000_000, 16, "A value of column description has 17,000,000 bytes"),
)


def test_a_small_file_that_decodes_to_much_takes_little(
    saved: Path, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    """Not here: every way in which a file may decode to much (`archive/test_bounded.py`)."""
    folders = [tmp_path / str(number) for number in range(len(LARGE))]
    for folder, (size, times, _) in zip(folders, LARGE, strict=True):
        shutil.copytree(saved, folder)
        rewrite(folder, partial(repeated, folder, size, times))
    command = [sys.executable, "-c", RESTORE, target, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line, (_, _, said) in zip(done.stdout.splitlines(), LARGE, strict=True):
        kind, most, text = line.split(" ", 2)
        assert kind == "BackupDamaged"
        assert said in text
        assert int(most) < 128 * 2**20
    append_to(register_orders(restored), "o-1")


def repeated(folder: Path, size: int, times: int, body: Body) -> None:
    """Rewrite the deciders of a backup: `times` deciders, each with a description of `size` bytes."""
    (found,) = (each for each in body["tables"] if each["table"] == "deciders")
    text = {name: pa.array([None] * times, pa.string()) for name in found["columns"]}
    text |= {name: pa.array([f"d{n}" for n in range(times)]) for name in ("decider", "event")}
    text |= {"description": pa.array(["x" * size] * times), "event_version": pa.array(["1"] * times)}
    path = folder / found["path"]
    pq.write_table(pa.table({name: text[name] for name in found["columns"]}), path, compression="zstd")
    assert path.stat().st_size < 150_000
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    found |= {"rows": times, "bytes": path.stat().st_size, "checksum": content}


def test_a_link_that_leads_out_is_refused(saved: Path, restored: PlatformStore, target: str, tmp_path: Path) -> None:
    (state,) = (saved / "state").iterdir()
    shutil.move(state, tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MillraceError, match="names a file outside of the backup"):
        restore(target, saved)
    assert tables(restored)["events"] == []
