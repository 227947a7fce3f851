"""The recipes of docs/who_may_do_what.md: the rights of each login, and their limits."""

import re
from collections.abc import Callable, Iterator
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest

from millrace.event_store.client import STREAM_PAGE
from millrace.event_store.platform import PlatformStore
from millrace.operations.metrics.store import metrics_of
from millrace.read_models.stored.versions import ensure_version
from tests.commands.test_snapshots import jars
from tests.support.factories import append, append_to, pump, value
from tests.support.pages.documents import chapters

Login = Callable[[str], PlatformStore]
EVENTS: LiteralString = "select data from event_store.events"


@pytest.fixture
def login(orders: PlatformStore) -> Iterator[Login]:
    """Follow the recipes in a store that has the model, with names of the test's own; yield a connector by name."""
    ensure_version(orders.connection, jars)
    blocks = chapters("docs/who_may_do_what.md")["Recipes"]
    names = {name: f"{name}_{uuid4().hex}" for block in blocks for name in re.findall(r"create role (\w+)", block.text)}
    for block in blocks:
        text = re.sub(rf"\b({'|'.join(names)})\b", lambda match: names[match[1]], block.text)
        for statement in text.split(";\n\n"):
            orders.connection.execute(statement.encode())
    opened: list[psycopg.Connection] = []

    def connect(name: str) -> PlatformStore:
        opened.append(psycopg.connect(orders.connection.info.dsn, user=names[name], autocommit=True))
        return PlatformStore(opened[-1])

    yield connect
    for connection in opened:
        connection.close()
    for name in reversed(names.values()):
        orders.connection.execute(f"drop owned by {name}".encode())
        orders.connection.execute(f"drop role {name}".encode())


def refused(store: PlatformStore, *statements: LiteralString) -> None:
    for statement in statements:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            store.connection.execute(statement)


def test_a_service_appends_waits_reads_and_decides(orders: PlatformStore, login: Login) -> None:
    service = login("jar_service")
    service.register_decider_event("jar", "put", "Somebody put sweets into a jar")
    event = append(service, "full", event="put", decider="jar")
    assert not service.wait_for("jars", event, 0)
    orders.sequence_events()
    orders.connection.execute(
        """
        insert into read_models.jars_state (partition, jar_id, _state, _position)
        select l.partition, 'full', '{"sweets": 1}', l.position from event_store.event_log l
        """
    )
    of_now = jars.fingerprint.partition("+")[0]
    state, behind, _ = service.stream_behind_state("jars", of_now, "jar", "full", STREAM_PAGE)
    assert state is not None
    assert (state.state, state.version, behind) == ({"sweets": 1}, 1, [])
    assert value(service.connection, "select count(*) from read_models.jars") is not None
    locks: LiteralString = "select last_error from event_store.stream_locks"
    refused(service, EVENTS, locks, "select event_store_platform.sequence_events()")


def test_a_consumer_shares_its_views_with_its_team_alone(orders: PlatformStore, login: Login) -> None:
    consumer = login("mailer")
    newest: LiteralString = (
        "select rolname from pg_roles where starts_with(rolname, 'mail_team_') order by oid desc limit 1"
    )
    team = value(orders.connection, newest)
    consumer.register_view("mails", "-infinity", owner=team)
    append_to(orders, "o-1")
    pump(orders, "mails")
    assert len(consumer.stream_events("mails")) == 1
    refused(consumer, EVENTS, "select event_store_platform.unregister_view('mails')")


def test_a_reader_reads_models_and_no_event(login: Login, orders: PlatformStore) -> None:
    reader = login("analyst")
    with orders.connection.transaction():
        orders.connection.execute("set local role event_store_owner")
        orders.connection.execute("create table read_models.later (n int)")
    for model in ("jars", "later"):
        assert reader.connection.execute(f"select count(*) from read_models.{model}".encode()).fetchall() == [(0,)]
    refused(reader, EVENTS, "select * from event_store.view_info()", "delete from read_models.later")


def test_an_operator_operates_and_a_watcher_scrapes_and_reads_no_event(login: Login, orders: PlatformStore) -> None:
    orders.register_view("v")
    login("oncall").unregister_view("v")
    watcher = login("watcher")
    assert [*metrics_of(watcher.connection)]
    functions: tuple[LiteralString, ...] = ("latest_events(1)", "audit_log()")
    refused(watcher, EVENTS, *(f"select * from event_store_platform.{each}" for each in functions))


def test_the_login_that_migrated_prepares_a_server_of_ones_own(orders: PlatformStore) -> None:
    admin, names = orders.connection, {name: f"{name}_{uuid4().hex}" for name in ("migrator", "millrace")}
    admin.execute(f"create role {names['migrator']} login createrole".encode())
    admin.execute(f"grant create on database {admin.info.dbname} to {names['migrator']}".encode())
    if admin.info.server_version >= 160000:
        # as the creator of the role has it
        grant = f"grant event_store_owner to {names['migrator']} with admin true, inherit false, set false"
        admin.execute(grant.encode())
    blocks = chapters("docs/operating.md")["Your own Postgres, your own Spark"]
    (text,) = (block.text for block in blocks if block.language == "sql")
    with psycopg.connect(admin.info.dsn, user=names["migrator"], autocommit=True) as migrator:
        for statement in re.sub(r"\bmillrace\b", names["millrace"], text).split(";\n\n"):
            migrator.execute(statement.encode())
        with psycopg.connect(admin.info.dsn, user=names["millrace"], autocommit=True) as runs:
            runs.execute("create table dagster.made ()")
            runs.execute("create table reports.made ()")
            runs.execute("drop table dagster.made, reports.made")
    for name in reversed(names.values()):
        admin.execute(f"drop owned by {name} cascade".encode())
        admin.execute(f"drop role {name}".encode())
