"""Tries quarantined changes again: decodes their messages once more, with the code and the declaration of now."""

from dataclasses import replace

from millrace.capture.declaration import Capture
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.changes import ChangeDecoder
from millrace.capture.decoding.pgoutput import PgoutputError
from millrace.capture.facts import with_registered
from millrace.capture.quarantined_change import QuarantinedChange
from millrace.capture.sealing import sealer_of
from millrace.capture.store import CaptureStore, RegisteredTable, Requeued


def requeue(store: CaptureStore, capture: Capture, reason: str) -> Requeued:
    """Retry to decode changes, then append those that no longer have a fault, the changes of each row in order.

    A change that still cannot be decoded stays in the quarantine, and so do the later changes of its row.

    Raises:
        StreamWentOn: The key of a change was unknown, and its row has later events: it can only be discarded.
    """
    sealing = CaptureStore(store.connection, sealer=sealer_of(capture))
    tables = store.captured_tables(capture.name)
    after = 0
    while changes := store.quarantined_changes(capture.name, after):
        for quarantined in changes:
            change = _decoded(capture, tables, quarantined)
            if change and change.decider_id is not None and change.data is not None:
                # from before a column became personal
                sealing.seal_changes([change])
                store.repair_change(quarantined.quarantine_id, change.decider_id, change.data)
        after = changes[-1].quarantine_id
    return store.requeue_changes(capture.name, reason=reason)


def _decoded(capture: Capture, tables: list[RegisteredTable], quarantined: QuarantinedChange) -> Change | None:
    """Decode a change from its message; return None if it has none, or still cannot be decoded."""
    if quarantined.raw is None or quarantined.relation is None or quarantined.data_json is not None:
        return None
    assert quarantined.commit_lsn is not None
    assert quarantined.commit_idx is not None
    assert quarantined.xid is not None
    assert quarantined.committed_at is not None
    keys = {(table.schema_name, table.table_name): table.key_columns for table in tables}
    decoder = ChangeDecoder(
        [
            table if table.keyless else replace(table, key=tuple(keys.get((table.schema, table.table)) or ()) or None)
            for table in with_registered(capture, tables).tables
        ],
        capture.name,
        quarantined.source_generation,
        quarantined.xid,
    )
    change = Change(
        commit_lsn=quarantined.commit_lsn,
        commit_idx=quarantined.commit_idx,
        xid=quarantined.xid,
        committed_at=quarantined.committed_at,
        decider=quarantined.decider,
        decider_id=quarantined.decider_id,
        action=quarantined.action,
        event_id=str(quarantined.event_id),
        command_id=str(quarantined.command_id),
        data=None,
        fault=quarantined.fault,
        raw=quarantined.raw,
        relation=quarantined.relation,
    )
    try:
        return decoder.restore(change)
    except PgoutputError:
        return None
