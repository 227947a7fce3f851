"""The keys with which a capture seals personal columns. Not here: which columns these are (`declaration`)."""

from millrace.capture.declaration import Capture
from millrace.errors import InvalidSetting
from millrace.personal.sealer import Sealer
from millrace.settings import Settings


def sealer_of(capture: Capture) -> Sealer | None:
    """Return a sealer with the keys of the folder MILLRACE_KEYS; None for a capture without personal columns.

    Raises:
        InvalidSetting: There is no such folder, or it lacks a file.
    """
    personal = [table.name for table in capture.tables if table.personal]
    if not personal:
        return None
    folder = Settings().keys
    if folder is None:
        raise InvalidSetting(
            f"Capture {capture.name} seals columns of {', '.join(personal)}, and MILLRACE_KEYS is not set.",
            hint="Name the folder of the keys of personal data in it.",
        )
    return Sealer.from_folder(folder)
