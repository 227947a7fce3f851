"""Every change of settings leaves a line with its author, and no line is ever changed or removed."""

from itertools import product
from typing import LiteralString

import pytest

from millrace.archive.store import ArchiveStore
from millrace.capture.store import CaptureStore, TableRegistration
from millrace.errors import ForbiddenChange
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from tests.sql.event_store.views.test_dead_letters import park
from tests.support.factories import append_to, ids_of_one_partition, rows, set_clock
from tests.support.logins import Login

CHECKSUM = "0" * 64


def operations(store: PlatformStore) -> list[tuple[str, str]]:
    return rows(store.connection, "select operation, done_by from event_store.audit_log order by audit_id")


def test_what_is_done_to_the_log_and_to_captures_is_written_down(orders: PlatformStore, login: Login) -> None:
    owner = login("event_store_owner")
    append_to(orders, "o-1")
    orders.sequence_events()
    ((partition,),) = rows(orders.connection, "select partition from event_store.event_log")
    archive = ArchiveStore(owner)
    archive.list_archive_file(partition, 0, 1, "p/file", 10, CHECKSUM)
    archive.raise_low_water_mark(partition, 1)
    archive.purge_events(partition)
    captures = CaptureStore(owner)
    for _ in range(2):  # the second time nothing changes
        captures.register_capture("c", "slot", "publication", [TableRegistration("public", "t", "table:t", None, "1")])
        captures.record_gap("c", None, None, "the slot was lost")
    captures.unregister_capture("c", "a test")
    PlatformStore(owner).register_decider_event("payment", "paid", "", owner="event_store_owner")
    expected = (
        "list_archive_file", "mark_archived", "raise_low_water_mark", "purge_events", "register_capture", "record_gap",
        "unregister_capture", "register_decider_event",
    )  # fmt: skip
    assert operations(orders) == [(operation, owner.info.user) for operation in expected]


def test_what_is_done_to_a_view_is_written_down_with_reason_and_what_went(orders: PlatformStore) -> None:
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    orders.register_view("v", "-infinity", max_attempts=1)
    first, second, _ = append_to(orders, *ids_of_one_partition(orders.connection, 1) * 2, "other")
    stream = orders.latest_events(1, before_offset=second.offset)[0].decider_id
    park(orders, stream)
    orders.retry_dead_letters("v", "order", stream, reason="the customer is there now")
    orders.retry_dead_letters("v", "order", "never")
    park(orders, stream)
    orders.discard_dead_letter("v", "order", stream, "a test order")
    for reason in ("its receiver moves", "the second time nothing changes"):
        orders.enable_view("v", False, reason=reason)
    orders.enable_view("v")
    orders.lease_events("v", 1, 60)
    orders.end_locks("v", "order", stream, reason="it hangs")
    orders.seek_view("v", "RESET_TO_EARLIEST", partition=0, reason="rows were lost")
    orders.unregister_view("v", "replaced by billing")
    of_the_stream = {"decider": "order", "decider_id": stream}
    query = """
        select operation, reason, detail, view = 'v' and done_by = session_user and done_at = '2030-01-01 00:00:00+00'
        from event_store.audit_log order by audit_id
    """
    written = rows(orders.connection, query)
    assert all(right for *_, right in written)
    assert [(operation, reason) for operation, reason, *_ in written] == [
        ("register_view", None), ("retry_dead_letters", "the customer is there now"),
        ("discard_dead_letter", "a test order"), ("enable_view", "its receiver moves"), ("enable_view", None),
        ("end_locks", "it hangs"), ("seek_view", "rows were lost"), ("unregister_view", "replaced by billing"),
    ]  # fmt: skip
    _, retried, discarded, disabled, enabled, ended, moved, removed = (detail for _, _, detail, _ in written)
    assert retried == {**of_the_stream, "streams": 1}
    failed = {"event": "placed", "event_id": str(first.event_id), "attempts": 1, "last_error": "no such customer"}
    assert {**of_the_stream, **failed, "offset": first.offset}.items() <= discarded.items()
    assert (disabled, enabled) == ({"enabled": False}, {"enabled": True})
    assert ended == {**of_the_stream, "locks": 1}
    nothing = {"position": None, "timestamp": None, "dead_letters_removed": 0}
    assert moved == {
        "kind": "RESET_TO_EARLIEST", "partition": 0, "from_position": 2, "to_position": 0, "locks_removed": 1, **nothing
    }  # fmt: skip
    assert (removed["view"]["view"], removed["view"]["max_attempts"], removed["locks"]) == ("v", 1, 1)
    assert (len(removed["positions"]), sum(removed["positions"].values())) == (16, 1)


def test_another_version_of_the_functions_is_written_down(orders: PlatformStore, dsn: str) -> None:
    assert operations(orders) == []
    orders.connection.execute("update event_store.migrations set name = 'another version' where version = 0")
    migrate(dsn)
    assert operations(orders) == [("migrate", orders.connection.info.user)]


def test_nobody_changes_what_was_audited(orders: PlatformStore) -> None:
    orders.register_view("v")
    before = operations(orders)
    assert before
    changes: tuple[LiteralString, ...] = (
        "update event_store.audit_log set done_by = 'somebody'",
        "delete from event_store.audit_log",
        "truncate event_store.audit_log",
    )
    for setting, change in product(["", "ignore"], changes):
        orders.connection.execute("select set_config('event_store.on_forbidden_change', %s, false)", (setting,))
        with pytest.raises(ForbiddenChange), refusals():
            orders.connection.execute(change)
    assert operations(orders) == before
