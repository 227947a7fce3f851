"""Declaring a change capture: the tables of another Postgres database that become events."""

from millrace.resources.capture.declaration import Capture, CapturedTable

__all__ = ["Capture", "CapturedTable"]
