"""Automation below read models: the runs that Dagster's conditions ask for while a drain records its progress."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from millrace.assets import runs
from millrace.assets.declarations import declared
from millrace.assets.runs import Progress
from millrace.assets.shown_partitions import ShownPartitions
from millrace.platform_defs.loading import build_defs
from tests.support.pages.documents import quoted, table

SHOP = declared("millrace.examples.shop")
BEGUN = datetime(2026, 11, 2, 9, 30, 10, tzinfo=UTC)
COMMITS_S, TICKS_S = 10, 30
When = dg.AutomationCondition
CONDITIONS: dict[str, Any] = {
    "eager()": When.eager(),
    'on_cron("@hourly")': When.on_cron("@hourly"),
    'cron_tick_passed("@hourly") & any_deps_updated().since_last_handled()': (
        When.cron_tick_passed("@hourly") & When.any_deps_updated().since_last_handled()
    ),
}
Asked = Callable[[Sequence[str], Sequence[str]], list[int]]


def below(models: Sequence[str], name: str, condition: dg.AutomationCondition[dg.AssetKey]) -> dg.AssetsDefinition:
    deps = [dg.AssetKey(["read_models", model]) for model in models]

    @dg.asset(name=name, deps=deps, automation_condition=condition)
    def follower() -> None: ...

    return follower


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return a function that counts the runs that each condition asks for in an hour.

    The asset is below some read models, of which some get events all the time.
    """
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def asked(models: Sequence[str], moving: Sequence[str]) -> list[int]:
        followers = [below(models, f"below_{number}", each) for number, each in enumerate(CONDITIONS.values())]
        defs = dg.Definitions.merge(build_defs(declarations=SHOP), dg.Definitions(followers))
        found, cursor = Counter[dg.AssetKey](), None
        with dg.DagsterInstance.ephemeral() as instance:

            def record(model: str) -> None:
                shown = ShownPartitions(instance, dg.DagsterRun("drain_views", run_id="a-drain"), SHOP.models[model])
                shown.make_green({partition: {"position": clock.now} for partition in range(16)}, {})

            for model in models:
                record(model)
            progress = {model: Progress(record) for model in moving}
            for clock.now in range(-TICKS_S, 3600, COMMITS_S):
                for model in moving if clock.now >= 0 else ():
                    progress[model].step(model)
                if clock.now % TICKS_S == 0:
                    result = dg.evaluate_automation_conditions(
                        defs,
                        instance,
                        asset_selection=dg.AssetSelection.assets(*followers),
                        evaluation_time=BEGUN + timedelta(seconds=clock.now),
                        cursor=cursor,
                    )
                    cursor = result.cursor
                    found.update({each.key: result.get_num_requested(each.key) for each in followers})
        return [found[each.key] for each in followers]

    return asked


def test_conditions_ask_for_as_many_runs_as_the_page_says(asked: Asked) -> None:
    rows = table("docs/automation.md", "condition")
    assert [quoted(row[0])[0] for row in rows] == [*CONDITIONS]
    assert asked(["orders"], ["orders"]) == [int(row[1]) for row in rows]
    assert asked(["orders", "payments"], ["orders"]) == [int(row[2]) for row in rows]
    assert asked(["orders"], []) == [0, 0, 0]
