"""Metrics, alert rules and the dashboard speak of what is there."""

import json
import re

import dagster as dg
import typer
import yaml

from millrace.platform_defs.cli import app
from millrace.platform_defs.metrics.dagster import metrics_of as metrics_of_dagster
from millrace.resources.metrics.store import StoreMetrics
from millrace.resources.settings import PROJECT
from tests.support.pages.documents import quoted, table

FOLDER = PROJECT / "docs" / "monitoring"


def named(text: str) -> set[str]:
    return set(re.findall(r"millrace_[a-z_]+", text))


def exposed(dsn: str) -> set[str]:
    """Return the names of all metrics, as they are scraped."""
    store = StoreMetrics(dsn)
    with dg.instance_for_test() as instance:
        families = [*store.collect(), *metrics_of_dagster(instance)]
    store.close()
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families} | {
        "millrace_dagster_up"
    }


def test_the_table_the_alert_rules_and_the_dashboard_name_the_metrics_that_there_are(dsn: str) -> None:
    metrics = exposed(dsn)
    assert {quoted(row[0])[0] for row in table("docs/monitoring.md", "metric")} == metrics
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(shown) > 10
    assert named(" ".join([*expressions, *shown])) <= metrics
    # the dashboard shows what there is of alerts
    of_alerts = {name for name in metrics if name.startswith("millrace_alerts_")}
    assert len(of_alerts) > 2
    assert of_alerts <= named((FOLDER / "dashboard.json").read_text())


def test_the_commands_that_alerts_name_are_there() -> None:
    commands = typer.main.get_group(app).commands
    text = (FOLDER / "alerts.yml").read_text()
    assert set(re.findall(r"`millrace ([a-z-]+)", text)) <= set(commands)
