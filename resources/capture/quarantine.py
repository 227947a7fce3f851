"""Tries quarantined changes again: what could not be decoded is decoded from its message once more.

Belongs here: that. Not here: what is appended, and in which order (`requeue_changes` in `sql/functions`).
"""

from dataclasses import replace

from millrace.resources.capture.declaration import Capture
from millrace.resources.capture.decoding.changes import Change, ChangeDecoder
from millrace.resources.capture.decoding.pgoutput import PgoutputError
from millrace.resources.capture.store import CaptureStore, QuarantinedChange, RegisteredTable, Requeued


def requeue(store: CaptureStore, capture: Capture, reason: str) -> Requeued:
    """Decode again what could not be decoded, then let what has no fault any more become events, each row's in order.

    What still cannot be decoded stays where it is.

    Raises:
        StreamWentOn: The row of a change, whose key was unknown, has later events: the change can only be discarded.
    """
    tables = store.captured_tables(capture.name)
    after = 0
    while changes := store.quarantined_changes(capture.name, after):
        for quarantined in changes:
            found = _decoded(capture, tables, quarantined)
            if found and found.decider_id is not None and found.data is not None:
                store.repair_change(quarantined.quarantine_id, found.decider_id, found.data)
        after = changes[-1].quarantine_id
    return store.requeue_changes(capture.name, reason=reason)


def _decoded(capture: Capture, tables: list[RegisteredTable], of: QuarantinedChange) -> Change | None:
    """The change from its message; None for one that has none, or that still cannot be decoded at all."""
    if of.raw is None or of.relation is None or of.data is not None:
        return None
    assert of.commit_lsn is not None
    assert of.commit_idx is not None
    assert of.xid is not None
    assert of.committed_at is not None
    keys = {(table.schema_name, table.table_name): table.key_columns for table in tables}
    decoder = ChangeDecoder(
        [replace(table, key=tuple(keys.get((table.schema, table.table)) or ()) or None) for table in capture.tables],
        capture.name,
        of.source_generation,
        of.xid,
    )
    change = Change(
        of.commit_lsn, of.commit_idx, of.xid, of.committed_at, of.decider, of.decider_id, of.action, of.event_id, of.command_id,
        None, of.fault, of.raw, of.relation,
    )  # fmt: skip
    try:
        return decoder.restore(change)
    except PgoutputError:
        return None
