"""The parts of a store that a backup keeps."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psycopg import sql

from millrace.backup.manifest import MANIFEST
from millrace.backup.state_tables import STATE_TABLES
from millrace.event_store.platform import PlatformStore


def tables(store: PlatformStore) -> dict[str, list[dict[str, Any]]]:
    """Return every row of every table that a backup keeps, without the values that differ between clusters."""
    found = {}
    for table in (*STATE_TABLES, "events", "event_log", "partitions"):
        source, _ = STATE_TABLES.get(table, (f"event_store.{table}", ()))
        query = sql.SQL("select to_jsonb(t) - %s::text[] from {} t").format(sql.SQL(source))
        passing = ["transaction_id", "lease_pid", "archived_position", "revision"]
        loaded = [row for (row,) in store.connection.execute(query, (passing,))]
        found[table] = sorted(loaded, key=lambda row: json.dumps(row, sort_keys=True))
    found["audit_log"] = [row for row in found["audit_log"] if row["operation"] != "restore"]
    # a backup records its moment in its source store
    found["log_marks"] = [row for row in found["log_marks"] if row["reason"] != "backup"]
    return found


def files(folder: Path) -> set[str]:
    """Return the paths of the Parquet files in a backup."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest and update its checksum."""
    body = json.loads((folder / MANIFEST).read_text())["body"]
    change(body)
    text = json.dumps(body, sort_keys=True, ensure_ascii=False)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(f'{{"checksum": "{checksum}", "body": {text}}}\n')
