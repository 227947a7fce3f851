"""A capture's calls cost the same however long somebody holds an old snapshot."""

from tests.sql.test_held_snapshots import SLACK, held_snapshot
from tests.support.capturing.captures import Source, inserted, source
from tests.support.factories import Connect, buffers

__all__ = ["source"]


def test_a_capture_reads_no_more_pages_the_more_it_stored(source: Source, connect: Connect) -> None:
    connection = source.store.connection

    def go_on(rounds: range) -> None:
        for number in rounds:
            source.commit(inserted(number))
            source.emit()

    def read() -> dict[str, int]:
        calls = {
            "extend": "select event_store.extend_capture('c', %s)",
            "emit": "select * from event_store.emit_changes('c', %s)",
        }
        for call in calls.values():
            connection.execute(call, (source.token,))  # what a session looks up once is looked up
        return {name: buffers(connection, call, source.token) for name, call in calls.items()}

    with held_snapshot(connect(autocommit=False)):
        go_on(range(300))
        before = read()
        go_on(range(300, 600))
        after = read()
    assert {name: (before[name], pages) for name, pages in after.items() if pages > before[name] + SLACK} == {}
