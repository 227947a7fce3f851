"""A dump that is restored into another cluster, with lower or higher transaction ids, keeps the log's order."""

import tempfile
from pathlib import Path

import psycopg
import pytest

from millrace.event_store.migrations import migrate, validate
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import PROGRAMS
from tests.support import factories
from tests.support.install_script import program_environment
from tests.support.pages.documents import chapters
from tests.support.patience import wait_until
from tests.support.running.own_server import own_server
from tests.support.running.programs import ran
from tests.support.sql_calls import get_events


def dump_and_restore(source: str, target: str, *options: str) -> None:
    environment = program_environment()
    with tempfile.TemporaryDirectory(prefix="dump-") as directory:
        dump = str(Path(directory) / "dump")
        ran(PROGRAMS / "pg_dump", "--format=custom", f"--file={dump}", *options, source, env=environment)
        ran(PROGRAMS / "pg_restore", "--exit-on-error", f"--dbname={target}", dump, env=environment)


def transaction_id(connection: psycopg.Connection) -> int:
    return int(factories.value(connection, "select pg_current_xact_id()::text::bigint"))


def use_up_transaction_ids(connection: psycopg.Connection, up_to: int) -> None:
    number = max(up_to - transaction_id(connection), 0)
    connection.execute(
        "create or replace procedure use_up(n int) language plpgsql as "
        "$$ begin for i in 1..n loop perform pg_current_xact_id(); commit; end loop; end $$"
    )
    connection.execute("call use_up(%s)", (number,))


@pytest.mark.parametrize("younger", ["younger when sequenced", "overtaken before it is sequenced", "older"])
def test_a_restored_dump_keeps_the_order(
    store: PlatformStore, dsn: str, connect: factories.Connect, younger: str
) -> None:
    orders = factories.register_orders(store)
    if younger != "older":
        use_up_transaction_ids(orders.connection, transaction_id(orders.connection) + 3000)
    factories.append_to(orders, *[f"o-{n % 5}" for n in range(30)])
    assert orders.sequence_events() == 30
    in_flight = connect(autocommit=False)
    factories.append(PlatformStore(in_flight), "in-flight")
    factories.append_to(orders, *[f"o-{n % 7}" for n in range(20)])
    orders.sequence_events()
    in_flight.commit()  # in progress in the stored snapshot, committed in the dump
    factories.append_to(orders, *[f"o-{n % 7}" for n in range(20)])  # not sequenced in the dump
    before = factories.read_log(orders.connection)
    assert len(before) == 50
    there = transaction_id(orders.connection)

    with own_server("new") as cluster:  # a store brings the roles, which the dump names
        cluster.create_database("restored")
        if younger == "older":
            with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
                use_up_transaction_ids(admin, there + 1000)
        dump_and_restore(dsn, cluster.dsn("restored"))
        validate(cluster.dsn("restored"))
        assert not migrate(cluster.dsn("restored")).functions_replaced
        with psycopg.connect(cluster.dsn("restored"), autocommit=True) as connection:
            restored = PlatformStore(connection)
            if younger == "overtaken before it is sequenced":
                factories.append_to(restored, *[f"new-{n}" for n in range(10)])
                assert transaction_id(connection) < there - 1000
                use_up_transaction_ids(connection, there + 1000)
            for _ in range(3):
                factories.append_to(restored, *[f"o-{n}" for n in range(9)])
                restored.sequence_events()
            while restored.sequence_events():
                pass
            factories.assert_log_holds_every_event_once(connection)
            after = factories.read_log(connection)
            assert set(before) <= set(after)
            offsets = [event.offset for event in get_events(restored, "o-1", "order")]
            factories.assert_rising(offsets)
            # transaction ids of the old cluster recur here: no event may be sequenced twice
            use_up_transaction_ids(connection, there + 2000)
            factories.append_to(restored, "o-1", "o-2")
            assert restored.sequence_events() == 2
            factories.assert_log_holds_every_event_once(connection)


def test_a_store_moved_by_logical_replication_goes_on(store: PlatformStore, dsn: str) -> None:
    orders = factories.register_orders(store)
    orders.register_view("v", "-infinity")
    factories.append_to(orders, *[f"o-{n % 5}" for n in range(30)])
    factories.pump(orders, "v")
    while found := orders.stream_events("v", 10):
        orders.ack_events("v", [event.offset for event in found])
    chapter = chapters("docs/archive_and_backup.md")["Move a store"]
    for statement in chapter[0].text.split("\n\n"):
        orders.connection.execute(statement.encode())
    with own_server("new") as cluster:  # a store brings the roles
        cluster.create_database("moved")
        dump_and_restore(dsn, cluster.dsn("moved"), "--schema-only", "--no-publications")
        with psycopg.connect(cluster.dsn("moved"), autocommit=True) as connection:
            connection.execute(f"create subscription moved connection '{dsn}' publication moved".encode())
            factories.append_to(orders, "late")
            moved = PlatformStore(connection)
            wait_until(
                lambda: (
                    factories.value(connection, "select count(*) from event_store.events") == 31
                    and factories.value(connection, "select bool_and(srsubstate = 'r') from pg_subscription_rel")
                ),
                "all is replicated",
            )
            connection.execute("drop subscription moved")
            factories.append_to(moved, *[f"o-{n % 5}" for n in range(10)])
            while moved.sequence_events():
                pass
            factories.assert_log_holds_every_event_once(connection)
            for n in range(5):
                factories.assert_rising([event.offset for event in get_events(moved, f"o-{n}", "order")])
            factories.pump(moved, "v")
            delivered = {event.decider_id for event in moved.stream_events("v", 20)}
            assert delivered == {"late", *(f"o-{n}" for n in range(5))}
            validate(cluster.dsn("moved"))
