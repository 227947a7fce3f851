"""A capture's calls cost the same however long another session holds an old snapshot."""

from millrace.capture.store import CaptureStore
from tests.sql.test_held_snapshots import SLACK, held_snapshot
from tests.support.capturing.captures import Row, Source, inserted, table
from tests.support.factories import Connect, buffers, value


def test_a_capture_reads_no_more_pages_the_more_it_stored(source: Source, connect: Connect) -> None:
    connection = source.store.connection

    def go_on(rounds: range) -> None:
        for number in rounds:
            source.commit(inserted(number))
            source.emit()

    def read() -> dict[str, int]:
        calls = {
            "extend": "select event_store_platform.extend_capture('c', %s)",
            "emit": "select * from event_store_platform.emit_changes('c', %s)",
        }
        for call in calls.values():
            connection.execute(call, (source.token,))  # to warm the session's caches
        return {name: buffers(connection, call, source.token) for name, call in calls.items()}

    with held_snapshot(connect(autocommit=False)):
        go_on(range(300))
        before = read()
        go_on(range(300, 360))
        after = read()
    assert {name: (before[name], pages) for name, pages in after.items() if pages > before[name] + SLACK} == {}


def test_rows_without_names_become_events_at_the_same_cost(connect: Connect) -> None:
    """Each row is its own stream: a lookup never finds anything."""
    unnamed = Source(CaptureStore(connect()), "c", table(key=[]))
    unnamed.begin()
    connection = unnamed.store.connection

    def placed(lsn: int) -> Row:
        return inserted((unnamed.generation, str(unnamed.lsn), lsn))

    def go_on(rounds: int) -> None:
        for _ in range(rounds):
            unnamed.commit(placed(0), placed(1))
            unnamed.emit()

    def read() -> int:
        unnamed.commit(placed(0), placed(1))
        pages = buffers(connection, "select * from event_store_platform.emit_changes('c', %s)", unnamed.token)
        assert value(connection, "select unemitted from event_store_platform.capture_info()") == 0
        return pages

    with held_snapshot(connect(autocommit=False)):
        go_on(200)
        before = read()
        go_on(60)
        after = read()
    assert after <= before + SLACK
    assert value(connection, "select count(*) from event_store.events") == 2 * (200 + 1 + 60 + 1)
