"""The sensors of captures: each starts a run when its source has changes, unless that run could only fail."""

from dataclasses import replace
from datetime import UTC

import dagster as dg

from millrace.capture.declaration import Capture
from millrace.capture.health import has_work
from millrace.capture.setup import GapOpen
from millrace.capture.store import CaptureInfo, CaptureStore, find_capture
from millrace.errors import CaptureInUse, MillraceError
from millrace.platform_defs.sensors import idle_poll, request_capture
from millrace.resources.postgres import PostgresResource


def capture_sensor(capture: Capture) -> dg.SensorDefinition:
    """Make the sensor `poll_<capture>` of a declared capture."""

    @dg.sensor(
        name=f"poll_{capture.name}",
        job_name="capture",
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Captures the changes of {', '.join([*(t.name for t in capture.tables), *capture.patterns])} when there are some.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        with postgres.store() as store:
            info = find_capture(CaptureStore(store.connection), capture.name)
        held = info is not None and info.leased
        try:
            if info is not None:
                require_startable(context.instance, info, held=held)
            # a capture is running: do not ask the source
            due = held or has_work(postgres.current_dsn(), capture)
        except MillraceError as error:
            return dg.SensorResult(skip_reason=f"{capture.name}: {error}")
        return request_capture(context, postgres, replace(idle_poll(capture.name), due=int(due)))

    return poll


def require_startable(instance: dg.DagsterInstance, info: CaptureInfo, *, held: bool) -> None:
    """Refuse a capture whose runs could only fail.

    Raises:
        GapOpen: Changes are lost; an operator must restart the capture.
        CaptureInUse: The owner of the capture's lease is not a run of this instance.
    """
    if info.open_gaps:
        raise GapOpen(
            "Changes of its source are lost.",
            hint=f"Correct the source if it is the wrong one; then: millrace capture restart {info.capture} --reason WHY",
        )
    if held and info.lease_owner is not None and instance.get_run_by_id(info.lease_owner) is None:
        until = info.leased_until and f"{info.leased_until.astimezone(UTC):%H:%M:%S}"
        raise CaptureInUse(f"It is captured by {info.lease_owner}, which is no run here, until {until} UTC.")
