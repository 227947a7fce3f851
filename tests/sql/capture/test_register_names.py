"""A decider keeps the way in which its rows are named: by a key, or by nothing but their places in the log."""

import pytest

from millrace.resources.capture.store import CaptureStore, TableRegistration
from millrace.resources.errors import DeciderCaptured
from tests.support.capturing.captures import Source, deleted, faulty, inserted, source, table, truncated
from tests.support.factories import rows

__all__ = ["source"]

KEYED = ["id"]
NAMELESS: list[str] = []
PLACE = (1, "0/1000", 0)


def register(source: Source, key: list[str] | None, fingerprint: str, name: str = "t", decider: str = "t") -> bool:
    declared = TableRegistration("public", name, f"table:public.{decider}", key, fingerprint)
    return source.store.register_capture("c", "slot_c", "pub_c", [declared, table("beside")])


def registered(source: Source) -> list[tuple[object, ...]]:
    return rows(source.store.connection, "select c from event_store.captured_tables c order by table_name")


@pytest.mark.parametrize(
    ("before", "after", "key", "said"),
    [
        (KEYED, NAMELESS, 7, r"such as \[7\] of rows that a key names; nothing names the rows of public\.t now"),
        (None, NAMELESS, 7, r"such as \[7\] of rows that a key names; nothing names the rows of public\.t now"),
        (NAMELESS, KEYED, PLACE, r'such as \[1,"0/1000",0\] of rows that nothing names; a key names .* public\.t now'),
        # a key that is unknown, because the table is stopped
        (NAMELESS, None, PLACE, r'such as \[1,"0/1000",0\] of rows that nothing names; a key names .* public\.t now'),
    ],
)
def test_live_streams_keep_their_decider_from_rows_that_are_named_otherwise(
    source: Source, before: list[str] | None, after: list[str] | None, key: object, said: str
) -> None:
    register(source, before, "2")
    source.commit(deleted(1), inserted(key))
    source.emit()
    found = registered(source)
    with pytest.raises(DeciderCaptured, match=rf"(?s)table:public\.t has live streams, {said}.*another decider"):
        register(source, after, "3")
    assert registered(source) == found
    # it may be declared otherwise in all else
    assert register(source, before, "3")
    assert register(source, after, "4", decider="other")


@pytest.mark.parametrize(("before", "after", "key"), [(KEYED, NAMELESS, 7), (NAMELESS, KEYED, PLACE)])
def test_where_no_stream_is_live_rows_may_be_named_otherwise(
    source: Source, before: list[str], after: list[str], key: object
) -> None:
    register(source, before, "2")
    source.commit(inserted(key), inserted((1, "0/2000", 0)), truncated())
    source.emit_all()
    assert register(source, after, "3")


def test_what_is_stored_and_what_waits_counts_as_live(source: Source) -> None:
    register(source, KEYED, "2")
    source.commit(faulty(7))
    with pytest.raises(DeciderCaptured, match="changes of it are stored that are no events yet"):
        register(source, NAMELESS, "3")
    source.emit()
    with pytest.raises(DeciderCaptured, match=r"such as \[7\]"):
        register(source, NAMELESS, "3")


def test_a_table_that_was_taken_out_meanwhile_is_refused_as_well(source: Source) -> None:
    store = source.store
    register(source, KEYED, "2")
    source.commit(inserted(7))
    source.emit()
    store.register_capture("c", "slot_c", "pub_c", [table("beside")])
    with pytest.raises(DeciderCaptured, match=r"such as \[7\]"):
        register(source, NAMELESS, "3")
    assert register(source, KEYED, "3")


def test_rows_that_nothing_named_go_on_after_they_were_taken_out(source: Source) -> None:
    register(source, NAMELESS, "2")
    source.commit(inserted(PLACE))
    source.emit()
    source.store.register_capture("c", "slot_c", "pub_c", [table("beside")])
    assert register(source, NAMELESS, "2")


def test_the_live_stream_is_found_behind_thousands_that_ended(source: Source) -> None:
    register(source, KEYED, "2")
    source.commit(*(inserted(n) for n in range(1500)), *(deleted(n) for n in range(1500)), inserted("last"))
    source.emit_all()
    with pytest.raises(DeciderCaptured, match=r'such as \["last"\]'):
        register(source, NAMELESS, "3")


def test_a_decider_of_another_capture_is_told_as_such(source: Source) -> None:
    register(source, KEYED, "2")
    source.commit(inserted(7))
    source.emit()
    other = CaptureStore(source.store.connection)
    declared = TableRegistration("public", "w", "table:public.t", NAMELESS, "1")
    with pytest.raises(DeciderCaptured, match=r"belongs to public\.t of capture c"):
        other.register_capture("d", "slot_d", "pub_d", [declared])
