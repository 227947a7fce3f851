"""Incidents of captures: lost changes, and a slot that the source invalidated."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from millrace.capture.setup import GapOpen
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import Captured, captured, new_source
from tests.support.factories import value
from tests.support.incidents.page import declare, incident

__all__ = ["captured", "new_source"]

DECLARATION = '''"""The items of the shop."""

import os

from millrace import Capture
from millrace.capture import CapturedTable

SHOP = Capture("shop", source=lambda: os.environ["SHOP_DSN"], tables=(CapturedTable("items"),))
'''


def variables(captured: Captured, folder: Path) -> dict[str, str]:
    """Declare the capture in a folder; return the environment variables that name it."""
    declare(folder, "captures", "shop", DECLARATION)
    return {"MILLRACE_DSN": captured.dsn, "SHOP_DSN": captured.source.dsn}


def fill(captured: Captured) -> str:
    """Capture three rows and return the slot."""
    captured.source.run("insert into items values (1, 'stays'), (2, 'goes'), (3, 'changes')")
    captured.drain()
    return str(value(captured.store, "select slot from event_store.captures"))


def change(captured: Captured) -> None:
    captured.source.run(
        "delete from items where id = 2", "update items set name = 'changed' where id = 3",
        "insert into items values (4, 'new')",
    )  # fmt: skip


def test_after_a_gap_the_capture_begins_anew_and_has_the_rows_of_the_table(captured: Captured, tmp_path: Path) -> None:
    slot = fill(captured)
    change(captured)
    captured.source.connection.execute("select pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (slot,))
    with pytest.raises(GapOpen):
        captured.drain()
    with incident("A gap in a capture", tmp_path, **variables(captured, tmp_path)) as operator:
        operator.follow()
        operator.follow()
        captured.drain()
        operator.follow()
    assert captured.replayed() == captured.table()
    assert value(captured.store, "select count(*) from event_store_platform.capture_gaps('shop')") == 1


@contextmanager
def little_log_kept(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection]:
    """Limit the log that the server keeps for slots; it has no slots of other tests."""
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("alter system set max_slot_wal_keep_size = '1MB'")
        admin.execute("select pg_reload_conf()")
        yield admin
        admin.execute("alter system reset max_slot_wal_keep_size")
        admin.execute("select pg_reload_conf()")


def test_a_slot_that_the_source_gave_up_is_made_anew(
    captured: Captured, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    slot = fill(captured)
    change(captured)
    with little_log_kept(postgres) as admin:
        status = "select wal_status from pg_replication_slots where slot_name = %s"
        for _ in range(20):
            if value(admin, status, slot) == "lost":
                break
            admin.execute("select pg_switch_wal() from (select txid_current()) written")
            admin.execute("checkpoint")
        assert value(admin, status, slot) == "lost"
    with incident("A capture's slot is lost", tmp_path, **variables(captured, tmp_path)) as operator:
        operator.follow()
        operator.follow()
        captured.drain()
    assert captured.replayed() == captured.table()
    states = captured.source.connection.execute(
        "select wal_status from pg_replication_slots where database = current_database()"
    ).fetchall()
    assert states == [("reserved",)]
