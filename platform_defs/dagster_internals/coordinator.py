"""Which runs may fill Dagster's queue limits: the runs in MUST_GO_ON have places that no other run takes."""

import dagster as dg

OTHER_TAG = "millrace/other"
BACKFILL_TAG = "dagster/backfill"
# drains, captures, maintenance of the store, the archive
MUST_GO_ON = {"drain", "drain_views", "capture", "apply_schema", "archive", "prune_runs"}


class ReservingRunCoordinator(dg.QueuedRunCoordinator):
    """Dagster's coordinator, which also tags each run that may wait, so that `dagster.yaml` limits these together."""

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Put a run into the queue."""
        run = context.dagster_run
        if run.job_name not in MUST_GO_ON or BACKFILL_TAG in run.tags:
            self._instance.add_run_tags(run.run_id, {OTHER_TAG: "yes"})
        return super().submit_run(context)
