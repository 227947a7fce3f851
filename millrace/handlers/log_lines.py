"""What consumers report to operators: log lines of key=value, and counters."""

import json
import logging
from dataclasses import dataclass, fields

from millrace.redact import masked, printable

logger = logging.getLogger("millrace.consumers")


@dataclass
class Counters:
    """The work of one consumer since it began; numbers that only grow.

    Attributes:
        leased: Events that it was given.
        handled: Events with a handler that returned, and with an acknowledgement that counts.
        failed: Events with a handler that raised, or took longer than it may.
        given_back: Events that it gave back unhandled, or that a handler wants later.
        lost: Events that another process had locked when the handler was done: they are delivered again.
        hung: Handlers that took longer than they may; their events are counted as failed, too.
        extended: Locks that were extended.
        reconnected: How often it connected anew.
    """

    leased: int = 0
    handled: int = 0
    failed: int = 0
    given_back: int = 0
    lost: int = 0
    hung: int = 0
    extended: int = 0
    reconnected: int = 0

    @property
    def held(self) -> int:
        """How many events it holds without an answer."""
        return self.leased - self.handled - self.failed - self.given_back - self.lost

    def values(self) -> dict[str, int]:
        """Return the counters by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def log_line(level: int, message: str, **values: object) -> None:
    """Write one line: what happened, and the values as key=value."""
    if logger.isEnabledFor(level):
        parts = [message]
        for name, value in values.items():
            text = printable(str(value))
            # a text that a reader of key=value would take for two values
            quoted = not text or set(text) & set(' ="\n\t')
            parts.append(f"{name}={json.dumps(text, ensure_ascii=False) if quoted else text}")
        logger.log(level, " ".join(parts))


def error_text(error: BaseException) -> str:
    """Return an error as the store keeps it: its type and text, without passwords and control characters."""
    try:
        text = str(error)
    except BaseException as other:  # noqa: BLE001 - it is a user's code
        text = f"Its text cannot be shown: __str__ raised {type(other).__name__}."
    return cleaned(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def cleaned(text: str) -> str:
    """Return a text as the store keeps it: without passwords and control characters, and not too long."""
    return printable(masked(text)).encode(errors="replace").decode()[:2000]
