"""A real log as a new user would use it: imported, then with their own read models.

The expected rows of the read models are computed from the file with Python's csv module.
"""

import csv
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from millrace import count, field, last, max_, min_, read_model, stream_id, testing
from millrace.event_store.platform import PlatformStore
from millrace.importer.imported_events import Columns
from millrace.read_models.declared.declaration import ReadModel
from tests.support.factories import rows
from tests.support.import_logs import run
from tests.support.sql_calls import get_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, STREAMS, KINDS = 8_577, 1_434, 27
COLUMNS = Columns(("case:concept:name",), "concept:name", ("time:timestamp",))


@read_model(view="receipt_cases", deciders=["permit"], key=["case_id"])
class ReceiptCases:
    """One row per permit application: how long it took and where it stands."""

    case_id = stream_id()
    events = count()
    begun_at = min_("data.time:timestamp", type="timestamp")
    ended_at = max_("data.time:timestamp", type="timestamp")
    status = last("event")
    handled_by = last("data.org:group")


@read_model(view="receipt_events", deciders=["permit"], key=["event"])
class ReceiptEvents:
    """One row per kind of event, over all applications."""

    event = field("event")
    occurrences = count()


# mypy does not see that the decorator changes the type
MODELS = cast("tuple[ReadModel, ...]", (ReceiptCases, ReceiptEvents))


def expected_cases(log: list[dict[str, str]]) -> list[tuple[Any, ...]]:
    cases: dict[str, list[dict[str, str]]] = {}
    for row in log:
        cases.setdefault(row["case:concept:name"], []).append(row)
    return [
        (
            case,
            len(own),
            min(datetime.fromisoformat(row["time:timestamp"]) for row in own),
            max(datetime.fromisoformat(row["time:timestamp"]) for row in own),
            own[-1]["concept:name"],
            next((row["org:group"] for row in reversed(own) if row["org:group"]), None),
        )
        for case, own in cases.items()
    ]


def test_a_real_log_is_imported_and_shown_as_its_file_says(
    dsn: str, store: PlatformStore, receipt_log: Path, tmp_path: Path, spark: "SparkSession"
) -> None:
    options = {"columns": COLUMNS, "rejects": tmp_path / "rejects.jsonl"}
    report = run(dsn, receipt_log, **options)
    assert (report.rows, report.appended, report.already_there, report.rejected) == (EVENTS, EVENTS, 0, 0)
    assert (report.streams, report.event_types, report.rejects) == (STREAMS, KINDS, None)
    counts = "select count(*), count(distinct decider_id), count(distinct event) from event_store.events"
    assert rows(store.connection, counts) == [(EVENTS, STREAMS, KINDS)]
    first = get_events(store, "case-10011", "permit")[0]
    assert first.event == "Confirmation of receipt"
    assert first.data["time:timestamp"] == "2011-10-11T13:45:40.276000+02:00"
    assert first.data["case:enddate"] is None
    assert "concept:name" not in first.data
    again = run(dsn, receipt_log, **options)
    assert (again.appended, again.already_there, again.streams) == (0, EVENTS, STREAMS)

    for model in MODELS:
        testing.given(dsn=dsn, spark=spark).when(model)
    with receipt_log.open(newline="", encoding="utf-8") as file:
        log = list(csv.DictReader(file))
    cases, kinds = (rows(store.connection, f"select * from read_models.{model.view}") for model in MODELS)
    assert Counter(cases) == Counter(expected_cases(log))
    assert dict(kinds) == Counter(row["concept:name"] for row in log)
