"""The folder of an archive: the store that it belongs to, and the database that extends it.

`archive.json` states both: {"archive": "<identity of the store>", "database": "<cluster>/<database>"}
"""

import json
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from millrace.archive.files import whole_file
from millrace.errors import ForeignArchive
from millrace.event_store import DatabaseIdentity

MARKER = "archive.json"


def claim_folder(root: Path, archive_id: UUID, database: str) -> None:
    """Make a folder the archive of this store, which only this database extends; concurrent calls are allowed.

    A copy of a database has the same store identity, and would replace and sweep files of the original.

    Raises:
        ForeignArchive: The archive belongs to another store or another database, or the folder holds other files.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    marker = root / MARKER
    if not marker.exists():
        foreign = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
        if foreign and not marker.exists():
            raise ForeignArchive(
                f"{root} holds no archive, and is not empty.",
                detail=f"It holds {', '.join(foreign[:5])}.",
                hint="Choose an empty folder.",
            )
        with suppress(FileExistsError):  # another caller was first
            _write_marker(root, archive_id, database, new=True)
    found = require_folder(root, archive_id)
    if found is None:
        _write_marker(root, archive_id, database, new=False)
    elif found != database:
        raise ForeignArchive(
            f"{root} is extended by another database than this copy of it.",
            detail=f"It is {found} (cluster/database) that extends it; this one is {database}.",
            hint="Set MILLRACE_ARCHIVE_DIR to a copy of the folder, unless that database is gone for good, or was this one"
            f' before pg_upgrade. Then remove "database" from {MARKER} there: this one goes on.',
        )


def require_folder(root: Path, archive_id: UUID) -> str | None:
    """Refuse a folder that is not the archive of this store; return the database that extends it, None if none does.

    Raises:
        ForeignArchive: The folder is no archive, or another store's.
    """
    try:
        marker = json.loads((root / MARKER).read_text())
        found, database = marker["archive"], marker.get("database")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForeignArchive(
            f"{root} is no archive.",
            detail=f"{MARKER}: {error}",
            hint="Set MILLRACE_ARCHIVE_DIR to where the archive is.",
        ) from error
    if found != str(archive_id):
        raise ForeignArchive(
            f"{root} is the archive of another event store.",
            detail=f"It is that of {found}; this store's is {archive_id}.",
            hint="Choose another folder. A restored store has an archive of its own.",
        )
    return None if database is None else str(database)


def database_name(identity: DatabaseIdentity) -> str:
    """Return the name by which a folder knows the database that extends it; a copy of the database has another name."""
    return f"{identity.system_identifier}/{identity.database_oid}"


def _write_marker(root: Path, archive_id: UUID, database: str, *, new: bool) -> None:
    text = json.dumps({"archive": str(archive_id), "database": database})
    with whole_file(root / MARKER, new=new) as sink:
        sink.write(text.encode())
