"""Commands: deciders, handling what they decide on, and processes over several streams."""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

if TYPE_CHECKING:
    from millrace.commands.processes import Do, Process, RefusedCommand, on, on_late, on_refused, process, starts

__all__ = ["Do", "Process", "RefusedCommand", "on", "on_late", "on_refused", "process", "starts"]

__getattr__ = imported_late(
    __name__, {"commands.processes": "Do Process RefusedCommand on on_late on_refused process starts"}
)
