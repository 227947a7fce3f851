"""The connection that tasks read Arrow through."""

import subprocess
import sys

import pytest

from millrace.resources.event_log_source import Unreadable
from millrace.resources.event_log_source.arrow import arrow_connection
from millrace.resources.event_store import EventStore
from millrace.resources.settings import PROJECT
from tests.support.building.event_log_reads import fill
from tests.support.factories import append_to

MANY = "select g, repeat('x', 1000) as text from generate_series(1, 100000) g"


@pytest.fixture
def log(store: EventStore) -> EventStore:
    """Log partition 0 holds five events, partition 1 three, partition 2 one, all others none."""
    return fill(store)


def test_all_statements_see_one_snapshot(log: EventStore, dsn: str) -> None:
    count = "select count(*) as events, max(position) from event_store.event_log"
    with arrow_connection(dsn) as connection:
        assert connection.rows(count) == [(9, 4)]
        append_to(log, "another")
        log.sequence_events()
        assert connection.rows(count) == [(9, 4)]
        with pytest.raises(Unreadable, match="read-only transaction"):
            connection.rows("delete from event_store.event_log")
    with arrow_connection(dsn) as connection:
        ((events, _),) = connection.rows(count)
        assert events == 10


def test_a_statement_that_fails_after_its_first_rows_is_an_error_and_no_end(dsn: str) -> None:
    with arrow_connection(dsn) as connection:
        batches = connection.batches("select 1 / (90000 - g), repeat('x', 1000) from generate_series(1, 100000) g")
        assert next(batches).num_rows > 0
        with pytest.raises(Unreadable, match="division by zero"):
            list(batches)


def test_what_is_not_read_to_its_end_ends_with_the_next_statement_and_with_the_connection(dsn: str) -> None:
    with arrow_connection(dsn) as connection:
        batches = connection.batches(MANY)
        assert next(batches).num_rows > 0
        assert connection.rows("select 1 as one") == [(1,)]
        with pytest.raises(Unreadable):
            list(batches)
        batches = connection.batches(MANY)
        first = next(batches)
    with pytest.raises(Unreadable):
        list(batches)
    assert first.num_rows > 0


def test_another_statement_follows_when_the_rows_are_read(dsn: str) -> None:
    with arrow_connection(dsn) as connection:
        assert sum(batch.num_rows for batch in connection.batches(MANY)) == 100_000
        assert connection.rows("select 'a' as same, 'b' as other where false") == []
        assert connection.rows("select 1 as one union all select 2 order by one") == [(1,), (2,)]


@pytest.mark.usefixtures("log")
def test_a_task_imports_no_pandas_which_takes_longer_than_a_small_batch(dsn: str) -> None:
    script = (
        "import sys\n"
        "from pyspark.sql.types import LongType, StructField, StructType\n"
        "from millrace.resources.event_log_source import EventLogSource\n"
        f"source = EventLogSource({{'dsn': {dsn!r}, 'columns': '[\"offset\"]'}})\n"
        "reader = source.reader(StructType([StructField('offset', LongType())]))\n"
        "rows = sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))\n"
        "print(rows, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["9", "False"]
