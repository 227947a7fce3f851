"""Metrics, alert rules and the dashboard name only existing metrics."""

import json
import re

import dagster as dg
import yaml

from millrace.operations.alerts.findings import ALERT_AFTER_S
from millrace.operations.metrics.store import StoreMetrics
from millrace.platform_defs.cli import app
from millrace.platform_defs.metrics.dagster import metrics_of as metrics_of_dagster
from millrace.platform_defs.standing import KINDS, DagsterStanding
from tests.support.pages.commands import commands
from tests.support.pages.documents import quoted, table
from tests.support.project import PROJECT

FOLDER = PROJECT / "docs" / "monitoring"


def named(text: str) -> set[str]:
    return set(re.findall(r"millrace_[a-z_]+", text))


def exposed(dsn: str) -> set[str]:
    store = StoreMetrics(dsn)
    with dg.instance_for_test() as instance:
        families = [*store.collect(), *metrics_of_dagster(DagsterStanding(instance))]
    store.close()
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    return names | {"millrace_dagster_up"}


def test_what_is_told_of_metrics_is_what_there_is(dsn: str) -> None:
    metrics = exposed(dsn)
    assert {quoted(row[0])[0] for row in table("docs/monitoring.md", "metric")} == metrics
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(shown) > 10
    assert named(" ".join([*expressions, *shown])) <= metrics
    # the dashboard shows all metrics of alerts
    of_alerts = {name for name in metrics if name.startswith("millrace_alerts_")}
    assert len(of_alerts) > 2
    assert of_alerts <= named((FOLDER / "dashboard.json").read_text())


def test_the_table_of_kinds_is_what_is_judged() -> None:
    judged = (PROJECT / "sql" / "functions" / "operations" / "standing.sql").read_text()
    severities = dict(re.findall(r"\('(\w+)', '(page|ticket|note)', ", judged))
    severities |= {kind: of.severity for kind, of in KINDS.items()}
    kinds = {quoted(row[0])[0]: row[-1] for row in table("docs/monitoring.md", "kind")}
    assert {kind for kind, severity in severities.items() if severity != "note"} <= set(kinds)
    assert [kind for kind, severity in kinds.items() if severities.get(kind, severity) != severity] == []
    assert set(ALERT_AFTER_S) <= set(kinds)
    text = (FOLDER / "alerts.yml").read_text() + judged
    there = commands(app)
    named = re.findall(r"\bmillrace ((?:[a-z-]+ ?)+)", text)
    assert [words for words in named if not any(f"{words} ".startswith(f"{command} ") for command in there)] == []
