"""No plan of a function is JIT-compiled: without sequential scans, the cost of reading one row is 10^10."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres
from tests.support.factories import append_to, register_orders, value
from tests.support.filled_store import fill
from tests.support.running.own_server import own_server

# Debian's servers are the usual ones for `--postgres`; the wheel's has no LLVM
SERVERS = [PROGRAMS, *(Path(f"/usr/lib/postgresql/{major}/bin") for major in (18, 17, 16, 15))]


def use(store: PlatformStore) -> None:
    """Call the frequent functions of services and operators, with and without work to do."""
    append_to(store, "o-1", "o-2")
    for _ in range(2):
        store.sequence_events()
        store.dispatch_events("invoices")
        for event in store.stream_events("invoices", 10):
            store.ack_event("invoices", event.decider_id, event.offset)
        if leases := store.claim_batch("orders", "me"):
            store.commit_batch("orders", leases)
    store.partition_info()
    store.view_info()
    store.view_lag("orders")
    store.poll_views()
    append_to(store, "o-1", "o-2")
    for _ in range(2):
        store.claim_views(["orders"], "me")
        store.owned_leases("me")
        store.locked_streams("me")
        store.extend_owner("me", 60)
        store.poll_views(["orders"])


@pytest.fixture(scope="module")
def compiling() -> Iterator[EmbeddedPostgres]:
    """Start a server that can JIT-compile, as most builds can; the tests' own server cannot."""
    for programs in SERVERS:
        if not (programs / "postgres").exists():
            continue
        with own_server(programs=programs) as server:
            with psycopg.connect(server.dsn("postgres")) as connection:
                able = value(connection, "select pg_jit_available()")
            if able:
                yield server
                return
    pytest.skip("no Postgres on this machine compiles plans: install the package postgresql, which brings LLVM")


def test_a_server_that_compiles_plans_compiles_none_of_ours(compiling: EmbeddedPostgres) -> None:
    compiling.create_database("store")
    dsn = compiling.dsn("store")
    migrate(dsn)
    plans: list[str] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
        connection.execute("load 'auto_explain'")
        # log each plan that a function runs, with its JIT compilation
        connection.execute(
            """
            select set_config('auto_explain.log_min_duration', '0', false),
              set_config('auto_explain.log_analyze', 'on', false),
              set_config('auto_explain.log_nested_statements', 'on', false),
              set_config('auto_explain.log_level', 'notice', false)
            """
        )
        store = register_orders(PlatformStore(connection))
        fill(connection)
        use(store)
        connection.execute("vacuum analyze")
        use(store)
        assert len(plans) > 200
        assert [plan for plan in plans if "JIT:" in plan] == []

        connection.execute("set enable_seqscan = off")
        connection.execute("select snapshot from event_store.sequencer").fetchall()
        assert "JIT:" in plans[-1], "this server compiles what costs much"
