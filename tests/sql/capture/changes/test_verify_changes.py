"""A replay of the log: it stores and changes nothing, and another history raises an alarm."""

from dataclasses import replace
from uuid import uuid4

import pytest

from millrace.resources.capture.decoding.change import Change
from millrace.resources.errors import ChangesDiffer, Malformed, UnknownCapture
from tests.support.capturing.captures import (
    BEGAN,
    Source,
    faulty,
    inserted,
    later,
    source,
    truncated,
    updated,
    with_data,
)
from tests.support.factories import refusal, rows

__all__ = ["source"]


def stored(source: Source) -> object:
    return rows(
        source.store.connection, "select w::text, c::text from event_store.wal_events w, event_store.captures c"
    )


def test_a_replay_compares_and_changes_nothing(source: Source) -> None:
    changes = [*source.commit(inserted(1, "ä\\u\"'"), faulty(1), faulty(None)), *source.commit(truncated(), updated(2))]
    before = stored(source)
    assert source.store.verify_changes("c", changes) == 5
    assert source.store.verify_changes("c", []) == 0
    assert stored(source) == before
    source.emit()
    assert source.store.verify_changes("c", changes[1:3]) == 2


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("xid", lambda c: replace(c, xid=1)),
        ("decider", lambda c: replace(c, decider="table:public.u")),
        ("decider_id", lambda c: replace(c, decider_id="[2]")),
        ("action", lambda c: replace(c, action="deleted")),
        ("data", lambda c: with_data(c, record={"id": 1, "v": 2})),
        ("data", lambda c: replace(c, data=None, fault="unreadable")),
    ],
)
def test_the_same_position_with_other_content_raises_an_alarm(source: Source, what: str, change: object) -> None:
    assert callable(change)
    source.commit(inserted(0))
    (original,) = source.commit(inserted(1))
    altered: Change = change(original)
    refused = refusal(ChangesDiffer, lambda: source.store.verify_changes("c", [altered]))
    assert str(original.commit_lsn) in str(refused)
    assert refused.detail is not None
    assert refused.detail.endswith(f"stored with another {what}")


def test_a_change_keeps_the_id_that_it_was_stored_with_whichever_a_newer_version_would_give_it(source: Source) -> None:
    (change,) = source.commit(inserted(1))
    assert source.store.verify_changes("c", [replace(change, event_id=str(uuid4()))]) == 1
    source.emit()
    assert [str(each) for (each,) in rows(source.store.connection, "select event_id from event_store.events")] == [
        change.event_id
    ]


def test_a_change_that_is_not_stored_raises_an_alarm(source: Source) -> None:
    changes = source.commit(inserted(1))
    more = [*changes, replace(changes[0], commit_idx=1)]
    refused = refusal(ChangesDiffer, lambda: source.store.verify_changes("c", more))
    assert "change 1 of commit" in str(refused)


def test_numbers_are_compared_as_numbers_and_keys_in_any_order(source: Source) -> None:
    (change,) = source.commit(inserted(1))
    assert change.data is not None
    assert source.store.verify_changes("c", [replace(change, data=change.data.replace('"v": 1', '"v":   1'))]) == 1


def test_a_change_that_could_not_be_read_and_now_can_is_the_same(source: Source) -> None:
    (known, unknown) = source.commit(faulty(1), faulty(None))
    readable = [replace(known, data="{}", fault=None), replace(unknown, data="{}", fault=None, decider_id="[7]")]
    assert source.store.verify_changes("c", readable) == 2


def test_what_was_purged_is_passed_over_and_what_was_not_is_compared(source: Source) -> None:
    changes = source.commit(inserted(1), inserted(2), inserted(3))
    source.emit()
    assert source.store.purge_wal_events("c", later(10**9), 2) == 2
    assert source.store.verify_changes("c", changes) == 1
    refusal(ChangesDiffer, lambda: source.store.verify_changes("c", [replace(changes[2], xid=1)]))
    assert BEGAN.tzinfo is not None


def test_what_is_no_array_of_changes_is_refused(source: Source) -> None:
    source.commit(inserted(1))
    for changes in (
        "null",
        "{}",
        '[{"commit_lsn": "x", "commit_idx": 1}]',
        '[{"commit_lsn": "0/1", "commit_idx": "x"}]',
    ):
        refusal(
            Malformed,
            lambda c=changes: source.store._value(int, "select event_store.verify_changes('c', %s::jsonb)", (c,)),  # type: ignore[misc]
        )
    refusal(UnknownCapture, lambda: source.store.verify_changes("none", []))
