"""Declared subscriptions, processes too, as assets: consumers of the log that run outside Dagster, for the lineage."""

import inspect
from collections.abc import Iterable

import dagster as dg

from millrace.assets import OWNERS, Group, in_dagster
from millrace.assets.drains import Objective
from millrace.commands.processes import Process
from millrace.event_store import ViewInfo
from millrace.event_store.platform import PlatformStore
from millrace.handlers.declaration import Subscription

# the store's default for the greatest lag of a view
LATE_S = 300


def asset_key(subscription: Subscription) -> dg.AssetKey:
    """Return the asset of a subscription, which has the name of its view."""
    return dg.AssetKey(["subscriptions", in_dagster(subscription.view, also=".-")])


def subscription_objective(subscription: Subscription) -> Objective:
    """Return the objective of a subscription: the store decides when its view is late."""
    view = subscription.view
    return Objective(
        asset_key(subscription),
        ("view", view),
        LATE_S,
        lambda store: next((poll.view for poll in store.poll_views([view])), None),
    )


def subscription_specs(subscriptions: Iterable[Subscription]) -> list[dg.AssetSpec]:
    """Make an asset of each subscription; `millrace run handlers` runs it, not Dagster."""
    return [
        dg.AssetSpec(
            asset_key(each),
            deps=[dg.AssetKey(["event_store", table]) for table in ("event_log", "stream_locks")],
            # the first sentence of the handler's docstring
            description=(inspect.getdoc(each.handler) or f"The handler {each.name}.").splitlines()[0]
            + " `millrace run handlers` runs it; its lag is looked at every few minutes.",
            group_name=Group.SUBSCRIPTIONS,
            kinds={"python", "postgres"},
            owners=OWNERS,
            metadata={
                "view": each.view,
                "handler": each.name,
                "deciders": [*each.deciders] or "all",
                "events": [*each.events] or "all",
                **({"hears": each.hears(), "commands": each.targets()} if isinstance(each, Process) else {}),
            },
        )
        for each in subscriptions
    ]


def figures_of(subscription: Subscription, info: ViewInfo, store: PlatformStore) -> dict[str, float | str]:
    """Return the state of a view, as metadata that Dagster plots: its lag, as shown everywhere, and its streams.

    Of a process also the number of timers that wait, by name, and when the next one is due.
    """
    timers = store.waiting_timers(subscription.decider) if isinstance(subscription, Process) else []
    return {
        "lag": info.lag,
        "lag_seconds": round(info.lag_seconds, 3),
        "lag_is_exact": int(info.exact),
        "in_flight": info.in_flight,
        "waiting": info.waiting,
        "dead_letters": info.dead_letters,
        "consumers": info.consumers,
        "enabled": int(info.enabled),
        **{f"timers_waiting.{each.name}": each.waiting for each in timers},
        **({"next_timer": min(each.next_at for each in timers).isoformat(timespec="seconds")} if timers else {}),
    }
