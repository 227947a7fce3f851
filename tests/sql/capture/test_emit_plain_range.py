"""Plain changes go from wal_events into events at once, with the same result as one by one."""

from dataclasses import replace
from typing import Any, LiteralString

from millrace.capture.store import Emitted
from tests.support.capturing import captures
from tests.support.capturing.captures import Source, deleted, faulty, inserted, table, truncated, updated, with_data
from tests.support.factories import rows, value

THIS: LiteralString = "where c.ctid = event_store_private.newest_capture('c')"
PLAIN: LiteralString = f"select r.* from event_store.captures c, event_store_private.emit_plain_range(c, 100) r {THIS}"
SAID: LiteralString = "select r.changes, r.to_lsn, r.to_idx from event_store.captures c"
ANY: LiteralString = f"{SAID}, event_store_private.emit_range(c, 100, false) r {THIS}"
READ: LiteralString = "select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables where relname = %s"
EVENTS: LiteralString = (
    "select event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, version, metadata"
    ' from event_store.events order by "offset"'
)


def emitted(source: Source, by: LiteralString) -> tuple[Any, list[tuple[Any, ...]]]:
    """Return the result of a function and the events after it; undo it."""
    connection = source.store.connection
    with connection.transaction(force_rollback=True):
        (said,) = rows(connection, by)
        return said, rows(connection, EVENTS)


def by_both(source: Source, changes: int) -> list[tuple[Any, ...]]:
    """Return the events of `changes` changes, the same by either function."""
    plain, careful = emitted(source, PLAIN), emitted(source, ANY)
    assert plain[0][0] == changes
    assert plain == careful
    assert source.emit() == Emitted(changes, 0, 0, behind=False)
    return plain[1]


def test_the_events_are_those_of_the_careful_way(source: Source) -> None:
    source.commit(inserted(1), inserted(2), inserted(3))
    source.emit()
    source.save(
        [
            *source.changes(updated(1, "later"), inserted(4), updated(4), deleted(4), inserted(4, "again")),
            *(with_data(each, annotations={"user": "ada"}) for each in source.changes(updated(2), inserted(("a", 5)))),
            *(with_data(each, annotations="no object") for each in source.changes(updated(2, 3))),
            *source.changes(deleted(3)),
        ]
    )
    assert by_both(source, 9) == rows(source.store.connection, EVENTS)
    assert emitted(source, PLAIN)[0] == (None, None, None)


def waiting(source: Source, what: str) -> None:
    """Put changes in the quarantine, in streams other than those of rows 1 to 4."""
    if what == "a null key":
        source.commit(faulty(None))
    if what == "another capture's":
        other = Source(source.store, "d", table("u"))
        other.begin()
        other.commit(faulty(1, "u"))
        other.emit()
    if what == "a truncation":
        (change,) = source.changes(truncated())
        source.save([replace(change, data=None, fault="column v: not UTF-8")])
    if what == "a change of the columns":
        (change,) = source.changes(captures.Row((), "schema_changed"))
        source.save([replace(change, decider_id="schema", data=None, fault="column v: not UTF-8")])
    if what in {"a row", "thousands"}:
        # and changes that wait behind it
        source.commit(faulty(7), *(faulty(n) for n in range(100, 2100) if what == "thousands"))
        source.commit(updated(7))
    source.emit_all()


def test_what_waits_beside_the_range_changes_nothing(source: Source) -> None:
    connection = source.store.connection
    source.commit(inserted(1), inserted(3))
    source.emit()
    for what in ("a row", "a null key", "another capture's", "a truncation", "a change of the columns"):
        waiting(source, what)
    assert value(connection, "select count(*) from event_store.quarantined_changes") > 0
    source.commit(updated(1), inserted(2), deleted(3), inserted(("a", 5)), inserted(3))
    by_both(source, 5)


def test_what_waits_holds_no_row_of_another_table_and_none_once_it_is_gone(source: Source) -> None:
    source.store.register_capture("c", "slot_c", "pub_c", [table("t"), table("u")])
    waiting(source, "a row")
    waiting(source, "a null key")
    source.commit(inserted(7, table="u"))
    assert emitted(source, PLAIN)[0][0] == 1
    source.emit()
    for change in source.store.quarantined_changes("c", limit=10):
        if change.decider_id is not None:
            source.store.discard_change(change.quarantine_id, "a test")
    source.commit(inserted(7))
    assert emitted(source, PLAIN)[0][0] == 1


def test_a_truncation_that_waits_behind_another_one_holds_no_row(source: Source) -> None:
    source.commit(inserted(1))
    source.emit()
    waiting(source, "a truncation")
    source.commit(truncated(), inserted(2), inserted(1, "again"))
    done = source.emit_all()
    # the truncation waits; the row that it deleted was already gone by the earlier one, which did not block its rows
    assert (done.held, done.quarantined) == (1, 0)
    assert captures.held(source.store) == [("[]", "truncated", True), ("[]", "truncated", False)]
    assert captures.stream(source.store, 1) == [("inserted", 1), ("deleted", None), ("inserted", "again")]


def test_thousands_that_wait_are_looked_up_by_the_streams_of_the_range(source: Source) -> None:
    connection = source.store.connection
    waiting(source, "thousands")
    connection.execute("analyze event_store.quarantined_changes, event_store.wal_events")
    source.commit(*(inserted(n) for n in range(5000, 5050)))
    with connection.transaction():
        assert source.emit().emitted == 50
        assert value(connection, READ, "quarantined_changes") < 10


def test_about_32_mib_are_taken_at_once(source: Source) -> None:
    source.save([with_data(each, much="x" * 1_000_000) for each in source.changes(*(inserted(n) for n in range(40)))])
    ((changes, *_), found) = emitted(source, PLAIN)
    assert changes == len(found) == 34
    assert source.emit() == Emitted(40, 0, 0, behind=False)


def test_an_event_that_is_stored_already_is_not_stored_again(source: Source) -> None:
    source.commit(inserted(1), updated(1))
    source.emit()
    connection = source.store.connection
    before = rows(connection, EVENTS)
    connection.execute(
        "update event_store.captures set emitted_lsn = begun.lsn, emitted_idx = -1"
        " from (select min(commit_lsn) - 1 as lsn from event_store.wal_events) begun"
    )
    source.emit()
    assert rows(connection, EVENTS) == before
    assert value(connection, "select count(*) from event_store.quarantined_changes") == 0


def test_a_plan_made_while_nothing_was_stored_reads_only_the_changes(source: Source) -> None:
    connection = source.store.connection
    connection.execute("vacuum analyze event_store.wal_events, event_store.events")
    source.commit(inserted(0))
    source.emit()
    source.commit(*[inserted(n) for n in range(1, 2000)])
    with connection.transaction():
        assert source.emit() == Emitted(1999, 0, 0, behind=False)
        assert value(connection, READ, "wal_events") < 10_000
