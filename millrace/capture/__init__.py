"""Change capture: the changes of other databases' tables become events."""

from millrace.capture.declaration import Capture, CapturedTable

__all__ = ["Capture", "CapturedTable"]
