"""A migration of a newer version is applied while older code appends and consumes."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from millrace.errors import SchemaMismatch
from millrace.event_store.migrations import migrate, read_migrations, validate
from millrace.event_store.platform import PlatformStore
from tests.support.factories import assert_log_holds_every_event_once, register_orders, rows, value
from tests.support.incidents.clients import Appender, BulkConsumer, going_on, more
from tests.support.incidents.page import PROGRAMS, declare, incident
from tests.support.project import PROJECT
from tests.support.running.programs import ran

# changes a table that every consumer's call reads, and one that every append writes
MIGRATION = """
lock table event_store.views, event_store.sequencer in access exclusive mode;
alter table event_store.views add column synthetic int not null default 7;
alter table event_store.events add column synthetic text;
"""


def newer_version(folder: Path) -> Path:
    """Install this code with one more migration and function as a newer version; return its programs."""
    package = folder / "millrace"
    shutil.copytree(PROJECT / "millrace", package, ignore=shutil.ignore_patterns("__pycache__"))
    version = len(read_migrations()) + 1
    (package / "sql" / "migrations" / f"{version:04}_synthetic.sql").write_text(MIGRATION)
    function = package / "sql" / "functions" / "event_store" / "log" / "sequence_events.sql"
    function.write_text(function.read_text() + "\n-- newer\n")
    programs = folder / "bin"
    programs.mkdir()
    script = (PROGRAMS / "millrace").read_text()
    # on the path before the installed version
    (programs / "millrace").write_text(
        script.replace("import sys\n", f"import sys\nsys.path.insert(0, {str(folder)!r})\n", 1)
    )
    (programs / "millrace").chmod(0o755)
    return programs


def test_the_copy_is_newer_code(tmp_path: Path) -> None:
    programs = newer_version(tmp_path)
    where = "import millrace; print(millrace.__file__)"
    script = re.sub(r"sys\.exit\(.*", where, (programs / "millrace").read_text())
    assert Path(ran(sys.executable, "-c", script, cwd=tmp_path).stdout.strip()) == tmp_path / "millrace" / "__init__.py"


def test_older_code_goes_on_while_the_schema_is_upgraded(store: PlatformStore, dsn: str, tmp_path: Path) -> None:
    declare(tmp_path)
    register_orders(store)
    store.register_view("orders", "-infinity", mode="bulk")
    writers = [Appender(prefix) for prefix in ("a", "b")]
    consumer = BulkConsumer("orders")
    with incident("An upgrade while services run", tmp_path, MILLRACE_DSN=dsn) as operator:
        newer = newer_version(tmp_path / "newer")
        with going_on(dsn, *writers, consumer):
            more(consumer.consumed)
            operator.follow()
            operator.programs = newer
            operator.follow()
            assert value(store.connection, "select min(synthetic) from event_store.views") == 7
            for writer in writers:
                more(writer.acknowledged)
            more(consumer.consumed)
        operator.follow()
    store.sequence_events()
    while value(store.connection, "select sum(behind) from event_store.view_info('orders')"):
        consumer(store)
    # no writer was refused
    assert [writer.refused for writer in writers] == [[], []]
    stored = [event_id for (event_id,) in rows(store.connection, "select event_id from event_store.events")]
    assert sorted(stored) == sorted(writers[0].acknowledged + writers[1].acknowledged) == sorted(consumer.consumed)
    assert_log_holds_every_event_once(store.connection)
    for call in (migrate, validate):
        with pytest.raises(SchemaMismatch, match="newer than this code"):
            call(dsn)
