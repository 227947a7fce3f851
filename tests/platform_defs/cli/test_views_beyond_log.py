"""A checkpoint beyond the end of its log partition is found, and said with what helps."""

from pathlib import Path

import pytest

from millrace.platform_defs.cli import app
from millrace.resources.event_store import EventStore, ViewBeyondLog
from tests.platform_defs.cli.test_views import RUNNER
from tests.support.factories import append_to, ids_of_one_partition, register_orders, rows


def test_only_a_checkpoint_beyond_the_end_is_found_and_status_says_what_helps(
    store: EventStore, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    register_orders(store)
    (stream,) = ids_of_one_partition(store.connection, 1, 3)
    for view in ("behind", "at the end", "odd view"):
        store.register_view(view, "-infinity", mode="bulk")
    append_to(store, stream, stream)
    store.commit_batch("at the end", store.claim_batch("at the end", "run"))
    assert store.views_beyond_log() == []
    # what a restore of single tables would do
    store.connection.execute(
        "update event_store.checkpoints set position = 7 where view = 'odd view' and partition = 3"
    )
    assert store.views_beyond_log() == [ViewBeyondLog("odd view", 3, 7, 2)]
    said = RUNNER.invoke(app, ["status", "--json", "--dsn", dsn]).output
    assert "odd view stands at position 7 of log partition 3, which ends at 2" in said
    assert "millrace seek 'odd view' RESET_TO_EARLIEST" in said
    # the remedy is one
    store.seek_view("odd view", "RESET_TO_EARLIEST")
    assert store.views_beyond_log() == []
    leases = store.claim_batch("odd view", "run")
    found = [event.offset for lease in leases for event in store.read_batch("odd view", lease)]
    assert found == [
        offset for (offset,) in rows(store.connection, 'select "offset" from event_store.events order by 1')
    ]
