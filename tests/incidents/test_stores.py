"""Incidents of a store: a transaction that stays open, and a database that is gone."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from millrace.event_store.platform import PlatformStore
from tests.backup.conftest import filled, new_target, restored, target
from tests.support.backups import tables
from tests.support.factories import (
    Connect,
    append,
    append_to,
    assert_log_holds_every_event_once,
    move_clock,
    register_orders,
    rows,
    value,
)  # fmt: skip
from tests.support.incidents.page import declare, incident
from tests.support.patience import wait_until

__all__ = ["filled", "new_target", "restored", "target"]


def waiting(connection: psycopg.Connection) -> int:
    """Return how many committed events have no position."""
    return int(
        value(
            connection,
            "select count(*) from event_store.events e where not exists"
            ' (select from event_store.event_log l where l."offset" = e."offset")',
        )
    )


def lives(observer: psycopg.Connection, session: psycopg.Connection) -> bool:
    return bool(value(observer, "select count(*) from pg_stat_activity where pid = %s", session.info.backend_pid))


def test_who_holds_the_sequencer_in_an_open_transaction_is_named_and_ended(
    store: PlatformStore, dsn: str, connect: Connect, tmp_path: Path
) -> None:
    declare(tmp_path)
    register_orders(store)
    holder, writer = connect(autocommit=False), connect(autocommit=False)
    append_to(PlatformStore(holder), "undone")
    PlatformStore(holder).sequence_events()
    append_to(PlatformStore(writer), "undone, too")
    append_to(store, *[f"order-{n}" for n in range(10)])
    store.sequence_events()
    assert waiting(store.connection) == 10
    # without a timeout: the store would have ended an idle session by then
    holder.execute("set local idle_in_transaction_session_timeout = 0")
    move_clock(store.connection, by_s=40)
    with incident("A transaction stays open", tmp_path, MILLRACE_DSN=dsn, ADMIN_DSN=dsn) as operator:
        said = operator.follow()
        assert f"Process {holder.info.backend_pid} of login postgres" in said.replace("\n", " ")
        wait_until(lambda: not lives(store.connection, holder), "the end of the holder's session")
        store.sequence_events()
        # an open transaction that only appended blocks no sequencing
        assert waiting(store.connection) == 0
        assert str(writer.info.backend_pid) in operator.follow()
    wait_until(lambda: not lives(store.connection, writer), "the end of the writer's session")
    found = rows(store.connection, "select decider_id from event_store.events order by 1")
    assert found == [(f"order-{n}",) for n in range(10)]
    assert_log_holds_every_event_once(store.connection)


def everything(store: PlatformStore) -> dict[str, list[dict[str, Any]]]:
    store.sequence_events()
    return tables(store)


def test_a_restored_store_is_as_it_was_and_takes_again_what_it_lacks(
    filled: PlatformStore, dsn: str, target: str, restored: PlatformStore, tmp_path: Path
) -> None:
    declare(tmp_path)
    kept, lost = (append(filled, f"order-{n}") for n in range(2)), uuid4()
    (again, _) = kept
    with incident("Restore from a backup", tmp_path, MILLRACE_DSN=dsn, NEW_DSN=target) as operator:
        operator.follow()
        before = everything(filled)
        append(filled, "late", event_id=lost)
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("drop schema event_store cascade")
        operator.follow()
        assert tables(restored) == before
        operator.follow()
    # a service that has the events missing in the backup sends all of them again
    count = "select count(*) from event_store.events"
    stored = value(restored.connection, count)
    assert (
        append(restored, "order-0", event_id=again.event_id, data=again.data, command_id=again.command_id).offset
        == again.offset
    )
    append(restored, "late", event_id=lost)
    assert value(restored.connection, count) == stored + 1
