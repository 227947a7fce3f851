"""`millrace run drain` builds a read model without Dagster; after `millrace view reset` it builds the model anew."""

import os
import signal
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from millrace.assets.declarations import declared
from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli import run
from millrace.postgres.logins import too_mighty
from millrace.read_models.stored.versions import ensure_version
from millrace.settings import EXAMPLE
from millrace.spark import spark_session
from tests.support import command_line
from tests.support.command_line import cells, parsed
from tests.support.factories import register_shop_without_schemas, rows, start, value
from tests.support.logins import logins
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession as ConnectSession


BUILT = "select count(*) from read_models.orders"


def millrace(dsn: str, *arguments: str, code: int = 0) -> str:
    return command_line.millrace(*arguments, dsn=dsn, code=code, MILLRACE_DECLARATIONS=EXAMPLE)


def shop(store: PlatformStore) -> None:
    """Register the shop, and make the read model that its orders look up."""
    register_shop_without_schemas(store)
    ensure_version(store.connection, declared(EXAMPLE, ["read_models"]).models["customers"])


def place(store: PlatformStore, decider_id: str) -> None:
    data = {"customer_id": "customer-1"}
    append_events(store, [BatchEvent("order", decider_id, "order_placed", uuid4(), data, uuid4())])


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_builds_once_or_until_stopped_and_anew(dsn: str, store: PlatformStore) -> None:
    shop(store)
    place(store, "order-1")
    assert "1 changes of rows" in millrace(dsn, "run", "drain", "orders", "--once")
    assert value(store.connection, "select order_id from read_models.orders") == "order-1"
    place(store, "order-2")

    def end() -> None:
        wait_until(lambda: value(store.connection, BUILT) == 2, "the new order has its row")
        os.kill(os.getpid(), signal.SIGTERM)

    ending = start(end)
    assert "1 changes of rows" in millrace(dsn, "run", "drain", "orders")
    ending.result(patience())
    assert value(store.connection, "select count(*) from event_store_platform.lease_owners('orders')") == 0
    assert "is removed" in millrace(dsn, "view", "reset", "orders")
    assert "2 changes of rows" in millrace(dsn, "run", "drain", "orders", "--once")


def test_once_says_what_keeps_it_from_all_events(dsn: str, store: PlatformStore) -> None:
    shop(store)
    version = ensure_version(store.connection, declared(EXAMPLE, ["read_models"]).models["orders"])
    place(store, "order-1")
    store.claim_batch(version.view, "killed", 1000, 60)
    others = r"(?s)1 are to come: others hold leases of 1 .*: killed\..*ends a minute after"
    with pytest.raises(MillraceError, match=others):
        millrace(dsn, "run", "drain", "orders", "--once")
    store.release_owner("killed")
    store.enable_view(version.view, False)
    with pytest.raises(MillraceError, match=r"(?s)1 are to come: the view is disabled.*millrace view enable orders"):
        millrace(dsn, "run", "drain", "orders", "--once")


def test_it_outlasts_its_spark(
    dsn: str, store: PlatformStore, spark_remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", f"{spark_remote.partition('/;')[0]}/;session_id={uuid4()}")
    monkeypatch.setattr(run, "ASK_S", 0.1)
    shop(store)
    ensure_version(store.connection, declared(EXAMPLE, ["read_models"]).models["orders"])
    place(store, "order-1")

    def end() -> None:
        wait_until(lambda: value(store.connection, BUILT) == 1, "the first order has its row")
        with spark_session() as same:
            cast("ConnectSession", same).client.release_session()
        place(store, "order-2")
        wait_until(lambda: value(store.connection, BUILT) == 2, "the second order has its row")
        os.kill(os.getpid(), signal.SIGTERM)

    ending = start(end)
    said = millrace(dsn, "run", "drain", "orders")
    ending.result(patience())
    assert "The Spark Connect server went away" in said
    assert "Read model orders: 2 positions" in said


BUILDERS = (
    "run drain orders --once", "verify", "show diff orders", "show as-of orders", "show history order order-1",
    "view approve orders",
)  # fmt: skip


@pytest.mark.parametrize("command", BUILDERS)
def test_who_could_harm_a_superuser_by_a_trigger_makes_it_refused(dsn: str, store: PlatformStore, command: str) -> None:
    with logins(store.connection) as login:
        member = login("event_store_owner")
        for told in (dsn, make_conninfo(dsn, options="-c role=event_store_owner")):
            with pytest.raises(MillraceError, match=r"The login postgres of the store is a superuser: triggers"):
                millrace(told, *command.split())
        assert too_mighty(member.info.dsn, beside_others=True) is None
    assert too_mighty(dsn, beside_others=True) is None


@pytest.mark.usefixtures("spark_remote")
def test_a_model_is_built_as_of_a_time_and_listed(dsn: str, store: PlatformStore) -> None:
    register_shop_without_schemas(store)
    place(store, "order-1")
    mark = store.mark_log("one order")
    assert "orders was built as of no moment" in millrace(dsn, "show", "as-of", "orders")
    place(store, "order-2")
    time = mark.marked_at.isoformat()
    name = f"orders_at_{mark.mark_id}"
    (built,) = parsed(millrace(dsn, "show", "as-of", "orders", time, "--json"))
    assert (built["name"], built["mark_id"], built["rows"], built["failed_streams"]) == (name, mark.mark_id, 1, 0)
    assert rows(store.connection, f"select order_id from read_models.{name}") == [("order-1",)]
    said = millrace(dsn, "show", "as-of", "orders", time, "--keep-days", "30")
    assert "from 1 positions of the log" in said
    assert cells(said)[0][:3] == [f"read_models.{name}", "1", "0"]
    assert cells(millrace(dsn, "show", "as-of", "orders"))[0][:3] == [f"read_models.{name}", "1", "0"]
    with pytest.raises(MillraceError, match=r"(?s)at or before 2001-01-01.*The first one is of"):
        millrace(dsn, "show", "as-of", "orders", "2001-01-01")
    with pytest.raises(MillraceError, match="not a time of a known form"):
        millrace(dsn, "show", "as-of", "orders", "yesterday")
    by_mark, listed = ("--mark", str(mark.mark_id)), ()
    shown = [parsed(millrace(dsn, "show", "as-of", "orders", *more, "--json")) for more in (by_mark, listed)]
    assert shown[0][0] == shown[1][0]
    with pytest.raises(MillraceError, match=r"There is no moment 77 of the log"):
        millrace(dsn, "show", "as-of", "orders", "--mark", "77")


@pytest.mark.usefixtures("spark_remote")
def test_what_a_declaration_changes_is_said(dsn: str, store: PlatformStore) -> None:
    shop(store)
    place(store, "order-1")
    millrace(dsn, "run", "drain", "orders", "--once")
    assert "one of 16: None of 1 rows changes." in millrace(dsn, "show", "diff", "orders", "--sample")
    # as if the model had served other rows
    store.connection.execute("update read_models.orders_state set status = 'other'")
    (found,) = parsed(millrace(dsn, "show", "diff", "orders", "--json", code=1))
    assert (found["differs"], found["found"]["changed"], found["found"]["columns"]) == (True, 1, {"status": 1})
    (example,) = found["examples"]
    assert example == {
        "change": "changed", "key": {"order_id": "order-1"},
        "before": {"status": "other"}, "after": {"status": "order_placed"},
    }  # fmt: skip


@pytest.mark.parametrize("command", ["run drain", "view reset", "show as-of", "show diff"])
def test_a_model_that_nobody_declared_is_refused(dsn: str, command: str) -> None:
    with pytest.raises(MillraceError, match=r"(?s)no read model 'ordrs'.*Declared are: .*orders"):
        millrace(dsn, *command.split(), "ordrs")
