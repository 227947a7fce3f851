"""A capture whose slot gives changes again: they are compared with what is stored, and nothing is stored twice.

Not here: kills, after which the slot does so, too (test_kills).
"""

import pytest

from millrace.resources.errors import ChangesDiffer
from tests.support.capturing.captured import Captured, captured, new_source
from tests.support.factories import value

__all__ = ["captured", "new_source"]


def set_back(captured: Captured, slot: str) -> None:
    """Let the slot stand again where its copy was left."""
    for statement in (
        "select pg_drop_replication_slot(%(slot)s)",
        "select pg_copy_logical_replication_slot('rewound', %(slot)s)",
    ):
        captured.source.connection.execute(statement, {"slot": slot})


def test_a_slot_from_an_earlier_position_changes_nothing_and_other_content_there_raises_an_alarm(
    captured: Captured,
) -> None:
    captured.drain()
    slot = str(value(captured.store, "select slot from event_store.captures"))
    captured.source.connection.execute("select pg_copy_logical_replication_slot(%s, 'rewound')", (slot,))
    captured.source.run("insert into items values (1), (2)", "delete from items where id = 1")
    captured.drain()
    before = captured.changes()
    set_back(captured, slot)
    report = captured.drain()
    assert (report.stored, report.replayed, report.emitted) == (0, 3, 0)
    assert captured.changes() == before
    captured.store.execute("update event_store.wal_events set data = jsonb_set(data, '{record,name}', '\"forged\"')")
    set_back(captured, slot)
    with pytest.raises(ChangesDiffer, match="another data"):
        captured.drain()
    assert captured.changes() == before
