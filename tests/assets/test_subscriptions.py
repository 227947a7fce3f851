"""Subscriptions in Dagster: consumers of the log that Dagster does not run, with their lag."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.assets.subscriptions import LATE_S, asset_key, subscription_objective
from millrace.assets.verdicts import LAG_CHECK
from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from millrace.examples.shop.events import register_shop
from millrace.handlers.declaration import subscription
from millrace.platform_defs.checks import lag_check
from millrace.platform_defs.loading import build_defs
from millrace.testing import event, given
from tests.support.elsewhere import postgres_at
from tests.support.factories import append_to, pump, register_orders, set_clock
from tests.support.running import in_process
from tests.support.running.shop import PACKAGE, own_shop


@subscription(view="mails", deciders=["order"], events=["placed"])
def send(event: Delivery) -> None:
    """Send a mail.

    To the customer.
    """


@subscription(view="unread")
async def read(event: Delivery) -> None: ...


DECLARED = Declarations(subscriptions={each.view: each for each in (send, read)})
MAILS = dg.AssetKey(["subscriptions", "mails"])


def tick(
    instance: dg.DagsterInstance, dsn: str, cursor: str | None = None, sensor: str = "watch_subscriptions"
) -> dg.SensorResult:
    return in_process.tick(instance, dsn, DECLARED, sensor, cursor)


def observed(result: dg.SensorResult) -> dict[str, dict[str, object]]:
    return {
        event.asset_key.path[-1]: {name: value.value for name, value in event.metadata.items()}
        for event in result.asset_events
    }


def test_a_subscription_is_behind_the_log_and_nothing_materializes_it() -> None:
    graph = build_defs(declarations=DECLARED).resolve_asset_graph()
    node = graph.get(MAILS)
    assert not node.is_executable
    assert dg.AssetKey(["event_store", "events"]) in graph.get_ancestor_asset_keys(MAILS)
    assert str(node.description).startswith("Send a mail. `millrace run handlers` runs it")
    assert node.metadata["handler"] == f"{__name__}.send"
    assert (node.metadata["deciders"], node.metadata["events"]) == (["order"], ["placed"])
    other = graph.get(dg.AssetKey(["subscriptions", "unread"]))
    assert str(other.description).startswith(f"The handler {__name__}.read.")
    assert other.metadata["deciders"] == other.metadata["events"] == "all"
    without = build_defs(declarations=replace(DECLARED, subscriptions={}))
    assert {sensor.name for sensor in without.sensors or []} == {"poll_views"}


def test_the_lag_is_that_of_the_store(instance: dg.DagsterInstance, dsn: str, store: PlatformStore) -> None:
    register_orders(store)
    store.register_view("mails", "-infinity", deciders=["order"], events=["placed"], max_attempts=1)
    first = tick(instance, dsn)
    assert first.skip_reason == dg.SkipReason("none of 1 subscriptions is behind; never consumed: unread")
    assert observed(first)["mails"]["lag"] == 0
    # as the daemon stores the observations of a tick
    for seen in first.asset_events:
        instance.report_runless_asset_event(seen)
    (record,) = instance.fetch_observations(MAILS, limit=2).records
    assert record.asset_observation
    assert record.asset_observation.metadata["lag"].value == 0
    assert observed(tick(instance, dsn, first.cursor)) == {}
    append_to(store, "o-1", "o-2")
    pump(store, "mails")
    (event, _) = store.lease_events("mails", 10)
    store.fail_event("mails", event.decider_id, event.offset, "no such street", event.lease_token)
    behind = tick(instance, dsn, first.cursor)
    assert behind.skip_reason == dg.SkipReason("behind: mails; never consumed: unread")
    (info,) = store.view_info("mails")
    told = observed(behind)
    assert list(told) == ["mails"]
    assert told["mails"] | {"lag_seconds": 0} == {
        "lag": info.lag, "lag_seconds": 0, "lag_is_exact": 1, "in_flight": 1, "waiting": 0, "dead_letters": 1,
        "consumers": 0, "enabled": 1,
    }  # fmt: skip
    assert info.lag == 2


def test_a_process_shows_what_it_hears_and_its_timers(
    instance: dg.DagsterInstance, dsn: str, store: PlatformStore
) -> None:
    unpaid = declared("millrace.examples.shop", ["subscriptions"]).subscriptions["unpaid_orders"]
    shown = Declarations(subscriptions={unpaid.view: unpaid})
    node = build_defs(declarations=shown).resolve_asset_graph().get(asset_key(unpaid))
    assert str(node.description).startswith("Cancels an order that is not paid in time.")
    assert node.metadata["hears"]["over"] == ["order_cancelled", "payment_received"]
    assert node.metadata["hears"]["confirmed"] == ["refused Cancel"]
    assert node.metadata["commands"] == ["order"]
    register_shop(store)
    placed = [event("order", f"o-{n}", "order_placed", customer_id="c-1", channel="web") for n in range(2)]
    given(*placed, dsn=dsn).when(unpaid)
    told = observed(in_process.tick(instance, dsn, shown, "watch_subscriptions", None))["unpaid_orders"]
    first, _ = store.scheduled_events("process:unpaid_orders")
    assert (told["timers_waiting.pay"], told["lag"]) == (2, 0)
    assert told["next_timer"] == first.due_at.isoformat(timespec="seconds")


def test_a_room_of_subscriptions_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(declared("millrace.examples.shop", ["subscriptions"]).subscriptions) == ["mails", "unpaid_orders"]
    package = own_shop(tmp_path)
    (package / "subscriptions" / "again.py").write_text(
        "from millrace import subscription\n\n\n@subscription(view='orders')\ndef handle(event): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [fault.error.partition(",")[0] for fault in declared(PACKAGE).faults] == ["view orders is declared twice"]


def test_a_subscription_is_red_after_five_minutes(instance: dg.DagsterInstance, dsn: str, store: PlatformStore) -> None:
    def shown(cursor: str | None) -> tuple[dg.SensorResult, list[bool]]:
        """Return the result of the sensor, and whether the hourly checks of both pass."""
        results = [lag_check(subscription_objective(each))(postgres=postgres_at(dsn)) for each in (send, read)]
        return tick(instance, dsn, cursor, "watch_freshness"), [cast("dg.AssetCheckResult", r).passed for r in results]

    register_orders(store)
    store.register_view("mails", "-infinity", deciders=["order"])
    set_clock(store.connection, (datetime.now(UTC) - timedelta(seconds=LATE_S + 1)).isoformat())
    append_to(store, "o-1")
    set_clock(store.connection, "")
    pump(store, "mails")
    late, passed = shown(None)
    assert (late.skip_reason, passed) == (dg.SkipReason("late: subscriptions/mails"), [False, True])
    (event,) = store.lease_events("mails")
    store.ack_event("mails", event.decider_id, event.offset)
    fresh, passed = shown(late.cursor)
    assert (fresh.skip_reason, passed) == (dg.SkipReason("none of 2 views is late"), [True, True])
    said = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(MAILS, LAG_CHECK), limit=10)
    assert [record.status.value for record in said] == ["SUCCEEDED", "FAILED"]
