"""Personal data in events: sealed for each person with a key of its own, so that forgetting a person destroys a key.

Here: what is personal (`Personal`), how a value is sealed (`envelope`), and the keys (`folder`, `Sealer`). Not here:
the table of keys, and which values the store takes, which are in `sql/functions/personal`.
"""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

if TYPE_CHECKING:
    from millrace.personal.declaration import Personal
    from millrace.personal.sealer import Sealer
    from millrace.personal.values import Forgotten, Plain, Sealed

__all__ = ["Forgotten", "Personal", "Plain", "Sealed", "Sealer"]

__getattr__ = imported_late(
    __name__,
    {
        "personal.declaration": "Personal",
        "personal.sealer": "Sealer",
        "personal.values": "Forgotten Plain Sealed",
    },
)
