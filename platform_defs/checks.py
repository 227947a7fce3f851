"""Asset checks: promises that Dagster verifies, every hour and on demand."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import starmap
from pathlib import Path
from typing import Any

import dagster as dg

from millrace.assets import privacy
from millrace.assets.captures.asset import CHANGE_EVENTS, WAL_EVENTS
from millrace.assets.declarations import Declarations, Fault
from millrace.assets.declared_events import asset_key, by_decider
from millrace.assets.drains import Objective, lag_evaluation, lag_metadata, late_ones, model_objective
from millrace.assets.errors_in_runs import faults_by_asset
from millrace.assets.subscriptions import subscription_objective
from millrace.assets.tables import missing_indexes
from millrace.assets.verdicts import APPROVAL_CHECK, INDEXES_CHECK, LAG_CHECK, LOADS_CHECK, NAMES_CHECK
from millrace.capture.declaration import Capture
from millrace.capture.health import capture_health
from millrace.drain.build_errors import cause, failures
from millrace.drain.diff import diff_with_serving
from millrace.errors import MillraceError
from millrace.event_schemas.model import DeclaredEvent
from millrace.event_schemas.registering import State, schemas_by_event, states_in_store
from millrace.event_store.key_rotation import KeyStore
from millrace.operations.privacy import opened_forgotten, unconfirmed
from millrace.platform_defs.names import OF_STORE, SLOTS
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.shown.known_names import unknown_names, unknown_properties
from millrace.read_models.stored.differences import examples, last_diff
from millrace.read_models.stored.versions import current_version, waiting_version
from millrace.resources.postgres import PostgresResource
from millrace.resources.spark import SparkResource
from millrace.settings import Settings

RECENT = 10_000

PRODUCERS = dg.AssetKey(["event_store", "producers"])
EVENT_LOG = dg.AssetKey(["event_store", "event_log"])
CHECKPOINTS = dg.AssetKey(["event_store", "checkpoints"])
SCHEDULED_EVENTS = dg.AssetKey(["event_store", "scheduled_events"])
STREAM_LOCKS = dg.AssetKey(["event_store", "stream_locks"])


def objectives(declared: Declarations) -> list[Objective]:
    """Return the freshness objectives of read models and subscriptions."""
    return [
        *map(model_objective, declared.models.values()),
        *map(subscription_objective, declared.subscriptions.values()),
    ]


def all_checks(declared: Declarations, archive: Path) -> list[dg.AssetChecksDefinition]:
    """Make every check; `archive` is the folder that old events are read from."""
    return [
        offsets_are_dense,
        rotation_is_confirmed,
        forgotten_keys_open_nothing,
        *STANDING_CHECKS,
        *(lag_check(objective) for objective in objectives(declared)),
        *starmap(schemas_check, by_decider(declared.events).items()),
        *(names_check(model) for model in declared.models.values()),
        *(approval_check(model, archive) for model in declared.models.values() if model.serve == "approved"),
        *(indexes_check(model) for model in declared.models.values() if model.indexes),
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


@dg.asset_check(
    asset=privacy.KEY,
    description="No file of an ended epoch is left in a folder of keys, and no forgotten key waits longer than planned.",
)
def rotation_is_confirmed(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Look for what keeps copies of forgotten keys openable."""
    with postgres.connect() as connection:
        store = KeyStore(connection)
        found = unconfirmed(store.key_counts(), store.key_holders())
    return dg.AssetCheckResult(passed=not found, metadata={"found": found})


@dg.asset_check(
    asset=privacy.KEY,
    description="Nothing in the store and in the folder MILLRACE_KEYS opens sealed values of the newest events whose key"
    " is forgotten.",
)
def forgotten_keys_open_nothing(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Try it; where there is no folder, or no key, nothing is tried."""
    folder = Settings().keys
    with postgres.connect() as connection:
        store = KeyStore(connection)
        tried, opening = opened_forgotten(store, folder) if folder and store.key_counts() else (0, [])
    return dg.AssetCheckResult(passed=not opening, metadata={"tried": tried, "keys that open": opening})


def standing_check(name: str, asset: dg.AssetKey, description: str) -> dg.AssetChecksDefinition:
    """Make the check that nothing of its kind is wrong in the store; only the SQL function `standing` decides."""
    kind = OF_STORE[name]

    @dg.asset_check(asset=asset, name=name, description=description)
    def check(postgres: PostgresResource) -> dg.AssetCheckResult:
        with postgres.store() as store:
            found = [problem for problem in store.standing() if problem.kind == kind]
        grave = any(problem.severity == "page" for problem in found)
        return dg.AssetCheckResult(
            passed=not found,
            severity=dg.AssetCheckSeverity.ERROR if grave else dg.AssetCheckSeverity.WARN,
            metadata={"found": len(found), **{problem.subject: str(problem) for problem in found}},
        )

    return check


STANDING_CHECKS = (
    standing_check(
        "log_is_not_held_up",
        EVENT_LOG,
        "No open transaction keeps everybody from giving events their positions.",
    ),
    standing_check(
        "messages_are_settled",
        PRODUCERS,
        "No transaction of a producer is open after its deadline: a sequencer runs, and no session holds its producer.",
    ),
    standing_check(
        "leases_are_in_time",
        CHECKPOINTS,
        "No lease is past its time. The owner of one that is ended without releasing it.",
    ),
    standing_check(
        "no_dead_letters",
        STREAM_LOCKS,
        "No stream was given up after its last attempt: each one waits for an operator.",
    ),
    standing_check(
        "nothing_is_overdue",
        SCHEDULED_EVENTS,
        "No scheduled event waits after its time: a sequencer runs, and none is held back.",
    ),
)
no_quarantined_changes = standing_check(
    "no_quarantined_changes",
    CHANGE_EVENTS,
    "Every captured change became an event: none is quarantined, none waits behind a quarantined one of its row.",
)


def lag_check(objective: Objective) -> dg.AssetChecksDefinition:
    """Make the check that a view's lag is within its objective."""

    @dg.asset_check(
        asset=objective.asset,
        name=LAG_CHECK,
        description=f"No event that it takes has waited for more than {objective.max_lag_s} s.",
    )
    def check(postgres: PostgresResource) -> dg.AssetCheckResult:
        with postgres.store() as store:
            view = objective.view(store)
            figures = lag_metadata(store.view_lag(view) if view else [])
            found = lag_evaluation(objective, figures, passed=objective.stands_for not in late_ones(store))
        return dg.AssetCheckResult(passed=found.passed, severity=found.severity, metadata=found.metadata)

    return check


def names_check(model: ReadModel) -> dg.AssetChecksDefinition:
    """Make the check that the store has the names that a read model uses; a missing name may still come."""

    @dg.asset_check(
        asset=dg.AssetKey(["read_models", model.name]),
        name=NAMES_CHECK,
        description="Its deciders and events are registered, and its fields are in the schemas of these events.",
    )
    def check(postgres: PostgresResource) -> dg.AssetCheckResult:
        with postgres.store() as store:
            kinds = schemas_by_event(store, [])
        unknown = [*unknown_names(model, kinds), *(message for message, _ in unknown_properties(model, kinds))]
        return dg.AssetCheckResult(
            passed=not unknown, severity=dg.AssetCheckSeverity.WARN, metadata={"unknown": unknown} if unknown else {}
        )

    return check


def approval_check(model: ReadModel, archive: Path) -> dg.AssetChecksDefinition:
    """Make the check that no changed declaration waits for approval; one that waits is compared once."""

    @dg.asset_check(
        asset=dg.AssetKey(["read_models", model.name]),
        name=APPROVAL_CHECK,
        description=f"No changed declaration waits for: millrace view approve {model.name}",
    )
    def check(postgres: PostgresResource, spark: SparkResource) -> dg.AssetCheckResult:
        dsn = postgres.current_dsn()
        with postgres.connect() as connection:
            waiting = waiting_version(connection, model)
            if waiting is None:
                return dg.AssetCheckResult(passed=True)
            diff = last_diff(connection, model)
        try:
            diff = diff or diff_with_serving(dsn, model, lambda: spark.spark_session, archive=archive)
            with postgres.connect() as connection:
                rows = [asdict(example) for example in examples(connection, diff)]
            found: dict[str, Any] = {"diff": str(diff.outcome), "table": f"read_models.{diff.name}", "rows": rows}
        except failures() as error:
            found = {"diff": f"It could not be compared: {cause(error)}"}
        return dg.AssetCheckResult(
            passed=False, severity=dg.AssetCheckSeverity.WARN, metadata={"version": waiting.version, **found}
        )

    return check


def indexes_check(model: ReadModel) -> dg.AssetChecksDefinition:
    """Make the check that a read model has the indexes that it declares."""

    @dg.asset_check(
        asset=dg.AssetKey(["read_models", model.name]),
        name=INDEXES_CHECK,
        description=f"Its rows have the declared indexes: {'; '.join(map(str, model.indexes))}.",
    )
    def check(postgres: PostgresResource) -> dg.AssetCheckResult:
        with postgres.connect() as connection:
            built = current_version(connection, model)
            missing = missing_indexes(connection, built) if built else {}
        return dg.AssetCheckResult(passed=not missing, severity=dg.AssetCheckSeverity.WARN, metadata=missing)

    return check


def schemas_check(decider: str, events: Sequence[DeclaredEvent]) -> dg.AssetChecksDefinition:
    """Make the check that the store has a decider's events as they are declared; a new event is no error."""

    @dg.asset_check(
        asset=asset_key(decider),
        name="schemas_match_code",
        description="The store has the schema of each event as it is declared.",
    )
    def check(postgres: PostgresResource) -> dg.AssetCheckResult:
        with postgres.store() as store:
            found = states_in_store(store, events, keep=False)
        wrong = any(each.is_wrong for each in found)
        return dg.AssetCheckResult(
            passed=all(each.state is State.REGISTERED for each in found),
            severity=dg.AssetCheckSeverity.ERROR if wrong else dg.AssetCheckSeverity.WARN,
            metadata={
                str(each.event): f"{each.state}. {each.error}" for each in found if each.state is not State.REGISTERED
            },
        )

    return check


def loads_check(asset: dg.AssetKey, faults: Sequence[Fault]) -> dg.AssetChecksDefinition:
    """Make the check that a file of declarations loads; it exists only while the file fails to, and fails."""

    @dg.asset_check(
        asset=asset,
        name=LOADS_CHECK,
        description=f"The file that declares it loads. Now it fails: {faults[0]}",
    )
    def check() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, metadata={"fails": [str(fault) for fault in faults]})

    return check


def slots_check(captures: Mapping[str, Capture]) -> dg.AssetChecksDefinition:
    """Make the check that every capture's slot is there, is read, and holds back a bounded part of its source's log."""

    @dg.asset_check(
        asset=WAL_EVENTS,
        name=SLOTS,
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
