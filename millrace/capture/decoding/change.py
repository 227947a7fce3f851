"""A captured change: what happened to a row, a table or its columns."""

from dataclasses import dataclass
from datetime import datetime

from millrace.capture.decoding.pgoutput import Lsn


# not frozen: making one would take three times as long, and each row makes one
@dataclass(slots=True)
class Change:
    """One change of one row, one truncation of one table, or one change of its columns.

    Attributes:
        commit_lsn: Where its transaction committed. With `commit_idx`, this is the change's position, unique in a
            generation.
        commit_idx: Its index among the changes of its transaction, from 0.
        xid: The id of its transaction, of 64 bits.
        committed_at: When the transaction committed, by the source's clock.
        decider: The decider of its events.
        decider_id: Its row's key as a JSON array, `[]` for a truncation, `schema` for a change of the columns; if no
            columns identify a table's rows, its generation and position as a JSON array; None if not even the key can
            be decoded.
        action: inserted, updated, deleted, truncated or schema_changed.
        event_id: Derived from its position: the same each time it is read.
        command_id: Derived from `commit_lsn`: all changes of a transaction share it.
        data: The event's data, a JSON object, with personal values marked until they are sealed; None if it cannot be
            decoded.
        fault: Why it cannot be decoded, a sentence; None if it can.
        raw: Its message, if it has a fault and no column of its table is hidden.
        relation: The message that describes its table, if it has a fault.
    """

    commit_lsn: Lsn
    commit_idx: int
    xid: int
    committed_at: datetime
    decider: str
    decider_id: str | None
    action: str
    event_id: str
    command_id: str
    data: str | None
    fault: str | None = None
    raw: bytes | None = None
    relation: bytes | None = None
