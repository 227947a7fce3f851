"""Asset checks: promises that Dagster looks after, every hour and on demand.

Belongs here: what is checked and how bad a breach is. Not here: repairing anything.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC

import dagster as dg

from millrace.assets.captures.asset import CHANGE_EVENTS, WAL_EVENTS
from millrace.assets.consumption import LAG_CHECK, Objective, lag_evaluation, lag_metadata, model_objective
from millrace.assets.declarations import Declarations, Fault
from millrace.assets.faults import faults_by_asset
from millrace.assets.subscriptions import subscription_objective
from millrace.resources.capture.declaration import Capture
from millrace.resources.capture.health import capture_health
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import MillraceError
from millrace.resources.postgres.resource import PostgresResource
from millrace.resources.producers import ProducerStore
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.known_names import LOOKED_AT, unknown_names
from millrace.resources.sequencer import held_up, said_of

RECENT = 10_000
NAMES_CHECK = "names_are_known"

PRODUCERS = dg.AssetKey(["event_store", "producers"])
EVENT_LOG = dg.AssetKey(["event_store", "event_log"])
CHECKPOINTS = dg.AssetKey(["event_store", "checkpoints"])
STREAM_LOCKS = dg.AssetKey(["event_store", "stream_locks"])


def objectives(declared: Declarations) -> list[Objective]:
    """Return what read models and subscriptions promise."""
    return [
        *map(model_objective, declared.models.values()),
        *map(subscription_objective, declared.subscriptions.values()),
    ]


def all_checks(declared: Declarations) -> list[dg.AssetChecksDefinition]:
    """Make every check there is."""
    return [
        offsets_are_dense,
        log_is_not_held_up,
        messages_are_settled,
        leases_are_in_time,
        no_dead_letters,
        *(lag_check(objective) for objective in objectives(declared)),
        *(names_check(model) for model in declared.models.values()),
        *([slots_check(declared.captures), no_quarantined_changes] if declared.captures else []),
        *(loads_check(key, faults) for key, faults in faults_by_asset(declared).items()),
    ]


@dg.asset_check(
    asset=EVENT_LOG,
    description=f"The newest {RECENT:,} positions of each log partition follow each other without a gap.",
)
def offsets_are_dense(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Count the newest positions of each log partition."""
    with postgres.store() as store:
        gaps = store.log_gaps(RECENT)
    return dg.AssetCheckResult(passed=not gaps, metadata={"log_partitions_with_gaps": gaps})


@dg.asset_check(asset=EVENT_LOG, description="No open transaction keeps everybody from giving events their positions.")
def log_is_not_held_up(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Look for a session that holds the sequencer's row, and goes on holding it."""
    with postgres.store() as store:
        holder = held_up(store)
    return dg.AssetCheckResult(passed=holder is None, metadata={"held_by": said_of(holder)} if holder else {})


@dg.asset_check(
    asset=PRODUCERS,
    description="No transaction of a producer is open after its deadline: a sequencer runs, and nobody holds its producer.",
)
def messages_are_settled(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Look for transactions that nobody ended after their deadline."""
    with postgres.store() as store:
        overdue = ProducerStore(store.connection).overdue_transactions()
    return dg.AssetCheckResult(
        passed=not overdue,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "overdue": [
                f"{each.producer_id}, partition {each.partition}: message {each.sequence},"
                f" begun {each.begun_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
                for each in overdue
            ]
        },
    )


@dg.asset_check(
    asset=CHECKPOINTS, description="No lease is past its time: whoever held it ended without giving it back."
)
def leases_are_in_time(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Look for leases that expired."""
    with postgres.store() as store:
        expired = store.expired_leases()
    return dg.AssetCheckResult(
        passed=not expired,
        # the next claim takes them over by itself
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"expired": [f"{lease.view}: {lease.lease_owner}" for lease in expired]},
    )


@dg.asset_check(
    asset=STREAM_LOCKS, description="No stream was given up after its last attempt: each one waits for an operator."
)
def no_dead_letters(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Count the dead letters of each view."""
    with postgres.store() as store:
        parked = {row.view: row.dead_letters for row in store.view_info() if row.dead_letters}
    return dg.AssetCheckResult(
        passed=not parked,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"dead_letters": sum(parked.values()), "views": parked},
    )


def lag_check(objective: Objective) -> dg.AssetChecksDefinition:
    """Make the check that a view is no later than it may be."""

    @dg.asset_check(
        asset=objective.asset,
        name=LAG_CHECK,
        description=f"No event that it takes has waited for more than {objective.max_lag_s} s.",
    )
    def check(postgres: PostgresResource) -> dg.AssetCheckResult:
        with postgres.store() as store:
            view = objective.view(store)
            found = lag_evaluation(objective, lag_metadata(store.view_lag(view) if view else []))
        return dg.AssetCheckResult(passed=found.passed, severity=found.severity, metadata=found.metadata)

    return check


def names_check(model: ReadModel) -> dg.AssetChecksDefinition:
    """Make the check that a read model names what the store has; a name that it has not yet may come later."""

    @dg.asset_check(
        asset=dg.AssetKey(["read_models", model.name]),
        name=NAMES_CHECK,
        description=(
            "Its deciders and events are registered, and its fields are in each version of the newest"
            f" {LOOKED_AT:,} events that has been appended."
        ),
    )
    def check(postgres: PostgresResource) -> dg.AssetCheckResult:
        with postgres.connect() as connection:
            unknown = unknown_names(connection, model)
        return dg.AssetCheckResult(
            passed=not unknown, severity=dg.AssetCheckSeverity.WARN, metadata={"unknown": unknown} if unknown else {}
        )

    return check


def loads_check(asset: dg.AssetKey, faults: Sequence[Fault]) -> dg.AssetChecksDefinition:
    """Make the check that a file of declarations loads; it is there only while the file does not, and fails."""

    @dg.asset_check(
        asset=asset,
        name="declaration_loads",
        description=f"The file that declares it loads. Now it fails: {faults[0]}",
    )
    def check() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, metadata={"fails": [str(fault) for fault in faults]})

    return check


def slots_check(captures: Mapping[str, Capture]) -> dg.AssetChecksDefinition:
    """Make the check that every capture's slot is there, is read, and holds back a bounded part of its source's log."""

    @dg.asset_check(
        asset=WAL_EVENTS,
        name="slots_are_healthy",
        description="Each capture has its slot, lacks no changes, is not late, and its source keeps a bounded log for it.",
    )
    def check(postgres: PostgresResource) -> dg.AssetCheckResult:
        problems: dict[str, list[str]] = {}
        stopped: list[str] = []
        retained = 0
        for capture in captures.values():
            try:
                health = capture_health(postgres.current_dsn(), capture)
            except MillraceError as error:
                problems[capture.name] = [str(error)]
            else:
                retained += health.retained_bytes
                problems[capture.name] = health.problems(capture)
                stopped += health.stopped_problems
        return dg.AssetCheckResult(
            passed=not any(problems.values()),
            metadata={
                "retained_wal_bytes": retained,
                "problems": {name: found for name, found in problems.items() if found},
                "stopped_tables": stopped,
            },
        )

    return check


@dg.asset_check(
    asset=CHANGE_EVENTS,
    description="Every captured change became an event: none is quarantined, none waits behind a quarantined one of its row.",
)
def no_quarantined_changes(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Count the quarantined changes of each capture."""
    with postgres.store() as store:
        waiting = {
            row.capture: row.quarantined + row.held
            for row in CaptureStore(store.connection).capture_info()
            if row.quarantined + row.held
        }
    return dg.AssetCheckResult(
        passed=not waiting,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"quarantined": sum(waiting.values()), "captures": waiting},
    )
