"""A captured change that is not an event, as the store keeps it."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from millrace.capture.decoding.pgoutput import Lsn
from millrace.event_store import parsed


@dataclass(frozen=True)
class QuarantinedChange:
    """A change that is not an event: it has a `fault`, or, if that is None, waits behind one of its stream that has."""

    quarantine_id: int
    capture: str
    source_generation: int
    commit_lsn: Lsn | None
    commit_idx: int | None
    xid: int | None
    committed_at: datetime | None
    decider: str
    decider_id: str | None
    action: str
    event_id: UUID
    command_id: UUID
    data_json: str | None
    fault: str | None
    raw: bytes | None
    relation: bytes | None
    quarantined_at: datetime

    @cached_property
    def data(self) -> Any:  # noqa: ANN401 - it is what JSON holds
        """The data that its event would have; raises `UnreadableData` if Python cannot read it."""
        return None if self.data_json is None else parsed(self.data_json, f"quarantined change {self.quarantine_id}")
