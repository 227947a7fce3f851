"""Whether a standby that takes over from the source would have the slot, and everything that it gave out.

From PostgreSQL 17 on, the primary tells this to a role without other rights. Before, standbys have no slots of their
primary. Only the standby knows whether it synchronizes slots.
"""

import psycopg

from millrace.capture.source.slot import FAILOVER_VERSION, SlotState


def standby_notes(source: psycopg.Connection, slot: SlotState | None) -> tuple[str, ...]:
    """Return what keeps a standby from taking over without a gap, a sentence each, with its remedy."""
    if slot is None or source.info.server_version < FAILOVER_VERSION:
        return ()
    found = []
    if not slot.failover:
        found.append(
            f"slot {slot.slot} is no failover slot, so a standby that takes over does not have it: psql"
            f" 'dbname={slot.database} replication=database' -c 'ALTER_REPLICATION_SLOT {slot.slot} (FAILOVER true)'"
        )
    row = source.execute(
        "select current_setting('synchronized_standby_slots'),"
        " exists (select from pg_replication_slots where slot_type = 'physical' and active)"
    ).fetchone()
    assert row is not None
    waited_for, followed = row
    if followed and not waited_for:
        found.append(
            "the source waits for no standby (synchronized_standby_slots is empty), so one that takes over may lack what is"
            " captured by then: name the slots of its standbys there"
        )
    return tuple(found)
