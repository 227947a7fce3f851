"""The values that the changes of a transaction share, while it is decoded."""

from dataclasses import dataclass
from datetime import datetime

from millrace.capture.decoding.pgoutput import Lsn

# how many transaction ids the 32 bits of a message distinguish
SHORT_XIDS = 2**32


@dataclass(slots=True)
class Transaction:
    """The values that the changes of a transaction share, and the index of the next one.

    Attributes:
        lsn: Where it commits.
        xid: Its id, of 64 bits.
        committed_at: When it committed.
        ids: The beginning of its event ids; the change's index follows.
        command_id: The command id of its changes.
        after_idx: The JSON of every change after its index.
        annotations: The JSON of the annotations in force; empty if there are none.
        next_idx: The index of the next change.
    """

    lsn: Lsn
    xid: int
    committed_at: datetime
    ids: str
    command_id: str
    after_idx: str
    annotations: str = ""
    next_idx: int = 0


def whole_xid(xid: int, reference: int) -> int:
    """Return the transaction id of 64 bits that ends in `xid` and is nearest to `reference`, before or after it.

    Ids that a server can still meet lie within 2^31 of each other.
    """
    epoch = reference - reference % SHORT_XIDS
    candidates = (epoch - SHORT_XIDS + xid, epoch + xid, epoch + SHORT_XIDS + xid)
    nearest = min(candidates, key=lambda whole: abs(whole - reference))
    # no id is below 0
    return nearest if nearest >= 0 else nearest + SHORT_XIDS
