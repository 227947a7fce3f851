"""The sensors that report to Dagster when a view becomes late or fresh again, and the state of subscriptions."""

import json
from collections.abc import Mapping, Sequence

import dagster as dg

from millrace.assets.declarations import Fault
from millrace.assets.drains import Objective, lag_evaluation, lag_metadata, late_ones
from millrace.assets.subscriptions import asset_key, figures_of
from millrace.assets.verdicts import LOADS_CHECK, repeat_verdicts
from millrace.handlers.declaration import Subscription
from millrace.patience import REST_S, WATCH_S
from millrace.resources.postgres import PostgresResource
from millrace.resources.shared_store import shared_store


def freshness_sensor(
    objectives: Sequence[Objective], faults: Mapping[dg.AssetKey, Sequence[Fault]]
) -> dg.SensorDefinition:
    """Make the sensor `watch_freshness` of views with objectives; its cursor is the names that were reported late.

    Its first tick after a load also reports which declarations fail to load.
    """

    @dg.sensor(
        name="watch_freshness",
        minimum_interval_seconds=WATCH_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Turns the check lag_within_objective of a read model or a subscription red when it becomes late, and green"
            " again."
        ),
    )
    def watch(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        late_before = set(json.loads(context.cursor or "[]"))
        with shared_store(postgres) as store:
            standing = late_ones(store)
            late = set()
            for objective in objectives:
                name = objective.asset.to_user_string()
                view = objective.view(store)
                # a missing view cannot be judged: its last report stays
                is_late = name in late_before if view is None else objective.stands_for in standing
                late |= {name} if is_late else set()
                if view is not None and is_late != (name in late_before):
                    figures = lag_metadata(store.view_lag(view))
                    evaluation = lag_evaluation(objective, figures, passed=not is_late)
                    context.instance.report_runless_asset_event(evaluation)
        # for a run that ended before it could report, or an asset that is materialized without us
        repeat_verdicts(context.instance, [*(objective.asset for objective in objectives), *faults])
        keys = {dg.AssetCheckKey(asset, LOADS_CHECK): found for asset, found in faults.items()}
        for key in keys.keys() - context.instance.event_log_storage.get_latest_asset_check_execution_by_key([*keys]):
            fails = {"fails": dg.MetadataValue.json([str(fault) for fault in keys[key]])}
            context.instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(key.asset_key, key.name, passed=False, metadata=fails)
            )
        summary = f"late: {', '.join(sorted(late))}" if late else f"none of {len(objectives)} views is late"
        return dg.SensorResult(skip_reason=summary, cursor=json.dumps(sorted(late)))

    return watch


def subscription_sensor(subscriptions: Sequence[Subscription]) -> dg.SensorDefinition:
    """Make the sensor `watch_subscriptions`, which observes views that changed; its cursor is its last report."""

    @dg.sensor(
        name="watch_subscriptions",
        minimum_interval_seconds=REST_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Plots how far subscriptions are behind, at their assets. It starts nothing.",
    )
    def watch(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        with shared_store(postgres) as store:
            infos = {info.view: info for info in store.view_info()}
            known = [each for each in subscriptions if each.view in infos]
            now = {each.view: figures_of(each, infos[each.view], store) for each in known}
        reported: dict[str, dict[str, float | str]] = json.loads(context.cursor or "{}")
        absent = sorted(each.view for each in subscriptions if each.view not in infos)
        behind = sorted(view for view, standing in now.items() if standing["lag"])
        summary = f"behind: {', '.join(behind)}" if behind else f"none of {len(now)} subscriptions is behind"
        return dg.SensorResult(
            skip_reason=summary + (f"; never consumed: {', '.join(absent)}" if absent else ""),
            asset_events=[
                dg.AssetObservation(asset_key(each), metadata=now[each.view])
                for each in subscriptions
                if each.view in now and now[each.view] != reported.get(each.view)
            ],
            cursor=json.dumps(now),
        )

    return watch
