"""The timelines that the log of a source came through, and up to where two such histories are one log.

Two promoted servers may have given their timelines the same number; the position where each left the timeline before
tells them apart.
"""

from dataclasses import dataclass
from typing import Self

import psycopg

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.source.connection import WALSENDER_HINT, connect_walsender, source_identity
from millrace.errors import MillraceError


class TimelinesUnknown(MillraceError):
    """The source does not tell the timelines that its log came through."""


@dataclass(frozen=True)
class Timelines:
    """The history of a log.

    Attributes:
        left: The timelines before the present one, in order, each with the position where the log left it.
        present: The timeline that is written now.
    """

    left: tuple[tuple[int, Lsn], ...]
    present: int

    def __str__(self) -> str:
        """Write it in the store's form, such as `1 0/3000000, 2`."""
        return ", ".join([*(f"{timeline} {lsn}" for timeline, lsn in self.left), str(self.present)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote."""
        *left, present = text.split(", ")
        pairs = (part.split(" ") for part in left)
        return cls(tuple((int(timeline), Lsn.parse(lsn)) for timeline, lsn in pairs), int(present))

    def common(self, other: "Timelines") -> Lsn | None:
        """Return up to where both are the same log; None if both are the same to the end."""
        if self == other:
            return None
        # the last timeline of a log has no end position
        own_pairs, other_pairs = ([*each.left, (each.present, None)] for each in (self, other))
        common = Lsn(0)
        for (timeline, end), (other_timeline, other_end) in zip(own_pairs, other_pairs, strict=False):
            if timeline != other_timeline:
                break
            if end != other_end:
                return min(lsn for lsn in (end, other_end) if lsn is not None)
            assert end is not None  # equal to the end would be equal
            common = end
        return common


def read_timelines(source: psycopg.Connection) -> Timelines:
    """Return the timelines that the log of the source's server came through.

    Only the replication protocol tells this to a role with no right but `replication`. So a server that was ever
    promoted is asked over a second connection, to the same address.

    Raises:
        TimelinesUnknown: That connection cannot be had, leads to another server, or does not answer.
    """
    identity = source_identity(source)
    if identity.timeline == 1:
        return Timelines((), 1)
    try:
        with connect_walsender(source) as walsender:
            system = walsender.execute("IDENTIFY_SYSTEM").fetchone()
            assert system is not None
            if (system[0], system[1]) != (identity.system_identifier, identity.timeline):
                raise _unknown(f"it is on timeline {identity.timeline}; a second connection found timeline {system[1]}")
            history = walsender.execute(f"TIMELINE_HISTORY {identity.timeline:d}".encode()).pgresult
            assert history is not None
            # as bytes: the reason of a switch is in its author's encoding
            content = history.get_value(0, 1) or b""
    except psycopg.Error as error:
        raise _unknown(str(error).strip()) from error
    # each line has a timeline, where the log left it, and why
    lines = (line.split(None, 2) for line in content.splitlines() if line.strip() and not line.startswith(b"#"))
    left = tuple((int(fields[0]), Lsn.parse(fields[1].decode())) for fields in lines)
    return Timelines(left, identity.timeline)


def _unknown(detail: str) -> TimelinesUnknown:
    return TimelinesUnknown(
        "The source does not say which timelines its log came through, so it may lack changes that are stored.",
        detail=detail,
        hint=WALSENDER_HINT,
    )
