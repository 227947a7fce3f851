"""The words to declare captures with, and what Dagster shows of them (`asset`).

Declarations are in a user's own package, which takes the words from `millrace`; `millrace.assets.declarations` finds them.
"""

from millrace.resources.capture.declaration import Capture, CapturedTable

__all__ = ["Capture", "CapturedTable"]
