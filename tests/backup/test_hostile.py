"""A backup that somebody else wrote: its checksums are right, and it opens nothing."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.resources.backup.backup import backup
from millrace.resources.backup.manifest import MANIFEST
from millrace.resources.backup.restore import restore
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore
from tests.support.backups import tables
from tests.support.factories import append_to, register_orders

Body = dict[str, Any]


def rewrite(folder: Path, change: Callable[[Body], None]) -> None:
    """Change a manifest and put the right checksum on it."""
    body = json.loads((folder / MANIFEST).read_text())["body"]
    change(body)
    text = json.dumps(body, sort_keys=True, ensure_ascii=False)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(f'{{"checksum": "{checksum}", "body": {text}}}\n')


def table(body: Body, name: str = "deciders") -> dict[str, Any]:
    (found,) = (each for each in body["tables"] if each["table"] == name)
    return dict(found)


def another_table(body: Body) -> None:
    body["tables"].append({**table(body), "table": "migrations", "path": table(body)["path"]})


def another_column(body: Body) -> None:
    body["tables"][0]["columns"].append("transaction_id")


def absolute_path(body: Body) -> None:
    body["tables"][0]["path"] = "/etc/passwd"


def path_upwards(body: Body) -> None:
    body["tables"][0]["path"] = f"state/../../{body['tables'][0]['path']}"


def offset_at_its_end(body: Body) -> None:
    body["last_offset"] = 2**63 - 1


def token_at_its_end(body: Body) -> None:
    body["lease_token"] = 2**63 - 1


def negative_position(body: Body) -> None:
    body["partitions"][0]["earliest_position"] = -1


def partition_of_text(body: Body) -> None:
    body["files"][0]["partition"] = "../../x"


def number_of_another_type(body: Body) -> None:
    body["last_offset"] = 1e300


CHANGES = (
    another_table, another_column, absolute_path, path_upwards, offset_at_its_end, token_at_its_end, negative_position,
    partition_of_text, number_of_another_type,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_asks_for_more_than_a_backup_has_is_refused(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, change: Callable[[Body], None]
) -> None:
    assert filled
    backup(dsn, tmp_path)
    rewrite(tmp_path, change)
    before = tables(restored)
    with pytest.raises(MillraceError):
        restore(target, tmp_path)
    assert tables(restored) == before
    append_to(register_orders(restored), "o-1")


def test_a_link_that_leads_out_of_the_backup_is_refused(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    assert filled
    backup(dsn, tmp_path / "backup")
    (state,) = (tmp_path / "backup" / "state").iterdir()
    shutil.move(state, tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MillraceError, match="names a file outside of the backup"):
        restore(target, tmp_path / "backup")
    assert tables(restored)["events"] == []
