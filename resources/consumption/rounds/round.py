"""One round: claim for all views in one statement, build all in one Spark job, commit each view by itself.

Belongs here: the way from claims to commits, and what happens to a view that fails. Not here: the plan (`plan`), which
views take part (`drain`).

A view's commit is one transaction of its checkpoints and its rows, as in every drain. So a round that dies at any
moment has committed some views and not others, and each is whole.

A stream with a value that its column does not hold fails alone: the round names it and commits the rest of its
view. A view that cannot be built or committed for another reason leaves the round and its leases. A run of its own
looks for the streams that fail, or waits, as long as it takes; the other views do not notice.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from millrace.resources.consumption.build_errors import Fault, cause, fault_of, in_one_line, is_gone
from millrace.resources.consumption.commit import Commit, hand_over, transaction
from millrace.resources.consumption.connection import CONFLICTS
from millrace.resources.consumption.failing_streams import Failure, PartFails
from millrace.resources.consumption.leases import owner_keeper
from millrace.resources.consumption.misread import name_streams
from millrace.resources.consumption.rounds.plan import Built, RoundPlan
from millrace.resources.consumption.rounds.worker_connections import LOCK_TIMEOUT
from millrace.resources.errors import LeaseLost, MillraceError
from millrace.resources.event_store import EventStore, Lease
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.declared.fold import Fold
from millrace.resources.read_models.declared.upcasts import require_known
from millrace.resources.read_models.stored.merge import merge_rows
from millrace.resources.read_models.stored.tables import wait_for_locks_at_most
from millrace.resources.spark.bounded import TookTooLong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Positions that a round reads of all views together, about: so long does none wait for the others. While some view has
# more, each round reads twice as many as the one before, up to the most.
ROUND_EVENTS = 20_000
MOST_EVENTS = 400_000
# a model whose function takes longer than this in one round holds up the others; a larger round may take longer
SLOW_S = 2.0
_RETRIED = (LeaseLost, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


@dataclass
class Outcome:
    """What a round did.

    Attributes:
        commits: By view, what was committed.
        left: By view, why it has to go on by itself.
        slow: The views whose function took so long that the others had to wait.
        full: The views that got as many events as one gets in a round, so that there may be more.
    """

    commits: dict[str, Commit] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    slow: dict[str, str] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)


class Rounds:
    """Builds and commits rounds under the leases of one owner.

    Args:
        dsn: The event store.
        spark: Gives the session.
        owner: The name under which leases are taken: a run's id.
        lease_s: How long a lease lasts, in seconds; leases are extended while Spark builds.
        seconds: How long a round may take.
    """

    def __init__(self, dsn: str, spark: "Callable[[], SparkSession]", owner: str, lease_s: int, seconds: float) -> None:
        self._dsn = dsn
        self._spark = spark
        self._owner = owner
        self._lease_s = lease_s
        self._seconds = seconds
        # positions that the next round reads
        self._events = ROUND_EVENTS
        # whether leases may be left that nobody gave back: the next round begins with it
        self.owes = False
        # by the views and versions that a plan is for
        self._plans: dict[tuple[str, ...], RoundPlan] = {}

    def run(
        self, store: EventStore, models: Sequence[ReadModel], known: Sequence[ReadModel], most: int = MOST_EVENTS
    ) -> Outcome:
        """Claim for some models and build and commit what there is.

        Args:
            store: The event store.
            models: The models to claim for.
            known: All models that may be among them in a later round: the plan is for all of these.
            most: How many positions it reads of all views together.

        Raises:
            Overtaken: The store was told of an upcast that the events were not read with; nothing is committed.

        Raises the errors of `build_errors` where they are of no model.
        """
        if self.owes:
            store.release_owner(self._owner)
            self.owes = False
        outcome = Outcome()
        limit = max(min(self._events, most) // len(models), 1)
        started = time.monotonic()
        claimed = store.claim_views([model.view for model in models], self._owner, limit, self._lease_s)
        if not claimed:
            return outcome
        with owner_keeper(self._dsn, self._owner, self._lease_s):
            built = self._build([model for model in models if model.view in claimed], known)
        if built.is_too_large:
            return self._with_fewer(store, claimed, limit)
        # all models of a drain read with the same upcasts
        require_known(store.connection, models[0].upcasts)
        for model in models:
            leases = claimed.get(model.view, [])
            if not leases:
                continue
            if _positions(leases) >= limit:
                outcome.full.add(model.view)
            try:
                failed = built.failed.get(model.view)
                why = in_one_line(failed) if failed else self._commit(store, model, built, started, outcome)
            except (PartFails, psycopg.Error, MillraceError) as error:
                if store.connection.closed:
                    raise
                why = cause(error)
            if why is not None and built.seconds.get(model.view, 0) >= self._seconds / 2:
                # its time was up, and may be again
                outcome.slow[model.view] = why
            elif why is not None:
                outcome.left[model.view] = why
            if model.view not in outcome.commits:
                self._release(store, model.view, leases)
        self._events = min(self._events * 2, MOST_EVENTS) if outcome.full else ROUND_EVENTS
        return outcome

    def _with_fewer(self, store: EventStore, claimed: Mapping[str, Sequence[Lease]], limit: int) -> Outcome:
        """Give back what was claimed, for a next round of fewer events; views of which one is too many leave."""
        for view, leases in claimed.items():
            self._release(store, view, leases)
        self._events = max(self._events // 8, 1)
        if limit == 1:
            return Outcome(left=dict.fromkeys(claimed, "single events are too large for a round"))
        return Outcome(full=set(claimed))

    def _release(self, store: EventStore, view: str, leases: Sequence[Lease]) -> None:
        try:
            store.release_batch(view, leases)
        except MillraceError:
            pass  # its view is gone, and its leases with it
        except CONFLICTS:
            self.owes = True

    def _commit(
        self, store: EventStore, model: ReadModel, built: Built, started: float, outcome: Outcome
    ) -> str | None:
        """Commit what was built for a model; return why it has to go on by itself, if it has to.

        What is committed is what the task read, whatever was claimed: the store refuses a lease that was taken over.

        Raises:
            PartFails: Streams fail, and a search has to tell which.
        """
        failures: Sequence[Failure] = ()
        if model.view in built.misread:
            built, failures = self._without_failing(store, model, built)
        leases, rows = built.leases.get(model.view, ()), built.rows.get(model.view)
        if not leases:
            return None
        try:
            with transaction(store, model):
                hand_over(store, model, leases, failures)
                store.commit_batch(model.view, leases)
                wait_for_locks_at_most(store.connection, LOCK_TIMEOUT)
                changed = merge_rows(store.connection, model, rows) if rows else 0
        except _RETRIED:
            # the consumer that claims next reads the events again
            return None
        outcome.commits[model.view] = Commit(tuple(leases), changed, time.monotonic() - started, tuple(failures))
        if built.seconds.get(model.view, 0) > SLOW_S * max(self._events / ROUND_EVENTS, 1):
            outcome.slow[model.view] = f"its function took {built.seconds[model.view]:.1f} s of a round"
        return None

    def _without_failing(self, store: EventStore, model: ReadModel, built: Built) -> tuple[Built, Sequence[Failure]]:
        """Return what can be built of a model without the streams of misread events, and these streams.

        Raises:
            PartFails: A search has to tell who fails.
        """
        # rounds try no stream again
        named = name_streams(store, model, built.leases[model.view], built.misread[model.view], retries=False)
        if named.are_followed:
            try:
                with owner_keeper(self._dsn, self._owner, self._lease_s):
                    built = self._plan([model], named.failures).run()
            except Exception as error:
                if is_gone(error):
                    raise
                raise PartFails(cause(error)) from error
            if built.failed or built.misread or built.is_too_large:
                raise PartFails(named.failures[0].error)
        named.require_others(built=bool(built.rows.get(model.view)))
        return built, named.failures

    def _build(self, models: Sequence[ReadModel], known: Sequence[ReadModel]) -> Built:
        """Build what is leased for some models: in one job, and where that fails, each in a job of its own.

        Raises the error if all of them fail, and not because of their events; or if none can be built in time.
        """
        try:
            return self._plan(known).run()
        except Exception as error:
            if is_gone(error) or isinstance(error, psycopg.Error):
                raise
            # one model was tried by itself already
            built, errors = self._build_each(models) if len(known) > 1 else (self._not_built(known[0], error), [error])
            if len(errors) == len(models) and all(fault_of(one) is Fault.SERVER for one in errors):
                raise
            return built

    def _build_each(self, models: Sequence[ReadModel]) -> tuple[Built, list[Exception]]:
        """Build each model in a job of its own; return also the errors of those that fail.

        Raises:
            TookTooLong: Of the first two, neither could be built in time: the others would wait as long for nothing.
        """
        built, errors = Built({}, {}, {}, {}), []
        # first those without a function that may not return
        for model in sorted(models, key=lambda model: isinstance(model, Fold)):
            # whatever it is: a function that cannot be pickled is no error of Spark's
            try:
                built = built.with_(self._plan([model]).run())
            except Exception as error:
                if is_gone(error):
                    raise
                errors.append(error)
                built = built.with_(self._not_built(model, error))
                if len(errors) > 1 and not built.leases and all(isinstance(one, TookTooLong) for one in errors):
                    raise
        return built, errors

    def _not_built(self, model: ReadModel, error: Exception) -> Built:
        took = {model.view: self._seconds} if isinstance(error, TookTooLong) else {}
        return Built({}, {}, {model.view: cause(error)}, took)

    def _plan(self, models: Sequence[ReadModel], without: Sequence[Failure] = ()) -> RoundPlan:
        if without:  # never again
            return RoundPlan(self._spark(), self._dsn, self._owner, models, self._seconds, without)
        key = tuple(sorted(model.view for model in models))
        if key not in self._plans:
            self._plans[key] = RoundPlan(self._spark(), self._dsn, self._owner, models, self._seconds)
        return self._plans[key]


def _positions(leases: Sequence[Lease]) -> int:
    return sum(lease.to_position - lease.from_position for lease in leases)
