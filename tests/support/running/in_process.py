"""Dagster in the process of a test: an instance in memory, a tick of a sensor, why a run failed."""

from collections.abc import Iterator

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations
from millrace.platform_defs.loading import build_defs
from tests.support.elsewhere import postgres_at


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Yield an empty instance with storage in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def tick(
    instance: dg.DagsterInstance, dsn: str, declarations: Declarations, sensor: str, cursor: str | None = None
) -> dg.SensorResult:
    resources = {"postgres": postgres_at(dsn)}
    defs = build_defs(declarations=declarations, resources=resources)
    context = dg.build_sensor_context(instance, cursor=cursor, definitions=defs, resources=resources)
    result = defs.resolve_sensor_def(sensor)(context)
    assert isinstance(result, dg.SensorResult)
    return result


def reason(result: dg.SensorResult) -> str:
    assert isinstance(result.skip_reason, dg.SkipReason)
    return result.skip_reason.skip_message or ""


def failed_with(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    error = failure.step_failure_data.error
    assert error is not None
    return error.to_string()
