"""Every change of settings leaves a line, with who did it, and no line is ever changed or removed."""

from collections.abc import Iterator
from itertools import product
from typing import LiteralString

import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.capture.store import CaptureStore, TableRegistration
from millrace.resources.errors import ForbiddenChange
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.migrations import migrate
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import append_to, rows
from tests.support.logins import Login, logins

CHECKSUM = "0" * 64


@pytest.fixture
def login(orders: EventStore) -> Iterator[Login]:
    with logins(orders.connection) as made:
        yield made


def operations(store: EventStore) -> list[tuple[str, str]]:
    return rows(store.connection, "select operation, done_by from event_store.audit_log order by audit_id")


def test_what_is_done_to_the_log_and_to_captures_is_written_down(orders: EventStore, login: Login) -> None:
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
    EventStore(owner).register_decider_event("payment", "paid", "", owner="event_store_owner")
    expected = (
        "list_archive_file", "mark_archived", "raise_low_water_mark", "purge_events", "register_capture", "record_gap",
        "unregister_capture", "register_decider_event",
    )  # fmt: skip
    assert operations(orders) == [(operation, owner.info.user) for operation in expected]


def test_another_version_of_the_functions_is_written_down(orders: EventStore, dsn: str) -> None:
    assert operations(orders) == []
    orders.connection.execute("update event_store.migrations set name = 'another version' where version = 0")
    migrate(dsn)
    assert operations(orders) == [("migrate", orders.connection.info.user)]


def test_nobody_changes_what_was_audited(orders: EventStore) -> None:
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
