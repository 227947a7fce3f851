"""The keys with which a capture seals personal columns. Not here: which columns these are (`declaration`)."""

from millrace.capture.declaration import Capture
from millrace.personal.sealer import Sealer
from millrace.settings import Settings


def sealer_of(capture: Capture) -> Sealer | None:
    """Return a sealer with the keys of the folder MILLRACE_KEYS; None for a capture without personal columns.

    Raises:
        InvalidSetting: There is no such folder, or it lacks a file.
    """
    personal = any(table.personal for table in capture.tables)
    return Sealer.from_folder(Settings().keys_folder) if personal else None
