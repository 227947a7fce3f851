"""Imports that are killed at any time go on where they were."""

import signal
import subprocess
import sys
from pathlib import Path

from millrace.resources.event_store import EventStore
from millrace.resources.settings import PROJECT
from tests.support.factories import value
from tests.support.import_logs import assert_each_row_once_in_order, many_rows, run, write_csv
from tests.support.patience import wait_until

CHILD = """
import sys
from pathlib import Path
from millrace.resources.importer.events import Columns
from millrace.resources.importer.importer import import_events
import_events(sys.argv[1], Path(sys.argv[2]), decider="permit", columns=Columns("case", "activity", "at"), batch_size=100)
"""


def test_an_import_killed_at_any_time_goes_on_where_it_was(dsn: str, store: EventStore, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "log.csv", many_rows(20_000, 11))
    for least in (1000, 4000):
        child = subprocess.Popen([sys.executable, "-c", CHILD, dsn, str(file)], cwd=PROJECT)

        def is_far(least: int = least, child: "subprocess.Popen[bytes]" = child) -> bool:
            assert child.poll() is None, "the import ended too early"
            return bool(value(store.connection, "select count(*) > %s from event_store.events", least))

        wait_until(is_far, f"{least} rows are there")
        child.kill()
        assert child.wait() == -signal.SIGKILL
    report = run(dsn, file)
    assert report.already_there > 4000
    assert report.appended > 0
    assert_each_row_once_in_order(store, 20_000, 11)
