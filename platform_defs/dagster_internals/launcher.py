"""How Dagster's daemon starts a run: it waits for a slow code server."""

from typing import Any

import dagster as dg
import grpc


class PatientRunLauncher(dg.DefaultRunLauncher):
    """Dagster's launcher, except for a code server that does not answer within a minute.

    That server has the request, and the process that it starts continues. The run stays `STARTING`: no retry starts.
    """

    def launch_run(self, context: Any) -> None:  # noqa: ANN401 - the type is private to Dagster
        """Ask the code server to start the process of a run."""
        try:
            super().launch_run(context)
        except dg.DagsterError as error:
            cause = error.__cause__
            if not (isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            self._instance.report_engine_event(
                "Its process takes long to start, and is waited for.", context.dagster_run
            )
