"""One round: claim, build, commit; for many views at once, or for one by itself with all that is due.

Not here: the plan for many (`collected`), the path for many events and the search for failing streams (`staged`), which
views take part (`loop`).

Each view's commit is one transaction. So a round that dies has committed some views and not others, each as a whole.

A stream with a value that its column cannot hold fails alone. A view that fails for another reason leaves a round of
many and gives back its leases. A round of that view by itself then searches for failing streams.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from millrace.drain.build_errors import Blame, blame_of, build_errors, cause, in_one_line, is_gone, spark_is_gone
from millrace.drain.collected import Built, RoundPlan, fits
from millrace.drain.commit import Commit, Work, commit
from millrace.drain.connection import CONFLICTS
from millrace.drain.failing_streams import Failure, PartFails
from millrace.drain.leases import lease_keeper, owner_keeper
from millrace.drain.limits import Limits
from millrace.drain.misread import MisreadEvent, NothingBuilds, require_some, without_misread
from millrace.drain.staged import StagedBuilds
from millrace.errors import LeaseLost, MillraceError, Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.patience import POLL_S
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.fold import Fold
from millrace.read_models.declared.upcasts import Overtaken
from millrace.read_models.stored.merge import StagedRowsLost
from millrace.spark.bounded import TookTooLong
from millrace.spark.parallelism import BATCH_EVENTS, batch_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# About how many positions a round reads for all views together, so that none waits long. While some view has more, each
# round reads twice as many as the one before, up to MOST_EVENTS. More of a single view are staged.
ROUND_EVENTS = 20_000
MOST_EVENTS = 400_000
# a model with a function slower than this in one round holds up the others; a larger round may take longer
SLOW_S = 2.0
# a round of one view stops after this many log partitions that took too long, each by itself
MOST_LATE = 2
_RETRIED = (LeaseLost, StagedRowsLost, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


@dataclass
class Outcome:
    """The results of a round so far.

    Attributes:
        commits: By view, its commits.
        leaving: By view, why it needs a run of its own.
        slow: By view, how its function made the others wait.
        full: The views that reached the round's limit of events, so that there may be more.
        failed: For a view by itself, the log partitions that made no progress, and why.
        claimed: Whether there was something to claim.
        on_commit: Called for each commit at once, if it is given.
    """

    commits: dict[str, list[Commit]] = field(default_factory=dict)
    leaving: dict[str, str] = field(default_factory=dict)
    slow: dict[str, str] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    claimed: bool = False
    on_commit: Callable[[str, Commit], None] | None = None

    def add(self, view: str, commit: Commit) -> None:
        """Note a commit."""
        self.commits.setdefault(view, []).append(commit)
        if self.on_commit is not None:
            self.on_commit(view, commit)


class Rounds:
    """Builds and commits rounds under the leases of one owner.

    Attributes:
        has_leases_to_release: Whether leases may still have to be given back: the next round begins with that.
        collects: Whether a view by itself takes the path for few events, if it has few: not after a failure.
        builds: The other path.

    Args:
        dsn: The event store.
        spark: Gives the session.
        owner: The name under which leases are taken: a run's id.
        lease_s: How long a lease lasts, in seconds; leases are extended while Spark builds.
        limits: How much runs side by side, and for how long.
    """

    def __init__(self, dsn: str, spark: "Callable[[], SparkSession]", owner: str, lease_s: int, limits: Limits) -> None:
        self.has_leases_to_release = False
        self.collects = True
        self._spark = spark
        self._limits = limits
        self._seconds = min(limits.round_s, limits.build_s)
        self.builds = StagedBuilds(dsn, spark, owner, lease_s, limits)
        # positions that the next round reads, and that a view by itself claims
        self._events = ROUND_EVENTS
        self._batch = BATCH_EVENTS
        # the plans, by the views and versions that they are for
        self._plans: dict[tuple[str, ...], RoundPlan] = {}
        self._warm: set[tuple[str, ...]] = set()

    def run(
        self, store: PlatformStore, models: Sequence[ReadModel], planned: Sequence[ReadModel], outcome: Outcome
    ) -> None:
        """Claim for some models, then build and commit the claimed events.

        Args:
            store: The event store.
            models: The models to claim for.
            planned: All models that a later round may claim for: the plan covers all of them.
            outcome: Records what the round does.

        Raises:
            Overtaken: The events were read without an upcast that the store has now.

        Raises the errors of `build_errors` that no model causes.
        """
        limit = max(self._events // len(models), 1)
        works = self._claim(store, models, limit, outcome)
        if not works:
            return
        with self._keep_leases():
            built = self._build([work.model for work in works], planned)
        if built.is_too_large:
            self._give_back(store, works, limit, outcome)
            return
        for work in works:
            view = work.model.view
            why = in_one_line(built.failed[view]) if view in built.failed else None
            try:
                if why is None:
                    self._commit(store, work, built, outcome)
            except Overtaken:
                raise
            except (PartFails, psycopg.Error, MillraceError) as error:
                if store.connection.closed:
                    raise
                why = cause(error)
            if why is not None and built.seconds.get(view, 0) >= self._seconds / 2:
                # it ran out of time and may do so again
                outcome.slow[view] = why
            elif why is not None:
                outcome.leaving[view] = why
            if view not in outcome.commits:
                self._release(store, work)
        self._events = min(self._events * 2, MOST_EVENTS) if outcome.full else ROUND_EVENTS

    def warm_up(self, known: Sequence[ReadModel]) -> None:
        """Open the session, and run the plan without a lease: the first round with events is as fast as the next one.

        An error is left to that round.
        """
        if known and _key(known) not in self._warm:
            self._warm.add(_key(known))
            with suppress(Exception):
                self._plan(known).run()

    def run_alone(self, store: PlatformStore, model: ReadModel, outcome: Outcome, most: int | None = None) -> None:
        """Claim for one view, also its retries, and build and commit the events without the streams that fail.

        Few events that did not fail take the path of all rounds; all others are staged. A failure that streams do not
        cause sets its log partition aside until its lease ends; other log partitions proceed. They also proceed if a
        build does not end: Spark is told to stop in time.

        Claims `most` positions; None: as many as suit the session.

        Raises:
            Overtaken: The events were read without an upcast that the store has now.
            Unreachable: Spark went away.
        """
        works = self._claim(store, [model], most or self._batch, outcome, alone=True)
        if not works:
            return
        (work,) = works
        if self.collects and self._collected(store, work, outcome):
            # a view that is slow in one task is built by many
            self.collects = model.view not in outcome.slow
        else:
            self._staged(store, work, outcome)
            self.collects = not outcome.full and not any(
                commit.failures for commits in outcome.commits.values() for commit in commits
            )
        if most is None and outcome.full:
            # there is more. If the session does not answer, the next batch raises the reason
            with suppress(*build_errors()):
                self._batch = batch_size(self._spark(), self._limits.cores)

    def _keep_leases(self) -> AbstractContextManager[None]:
        return owner_keeper(self.builds.dsn, self.builds.owner, self.builds.lease_s)

    def _claim(
        self, store: PlatformStore, models: Sequence[ReadModel], limit: int, outcome: Outcome, *, alone: bool = False
    ) -> list[Work]:
        owner, lease_s = self.builds.owner, self.builds.lease_s
        if self.has_leases_to_release:
            store.release_owner(owner)
            self.has_leases_to_release = False
        if alone:
            (model,) = models
            leases = store.claim_batch(model.view, owner, limit, lease_s)
            works = [Work(model, tuple(leases), tuple(store.locked_partitions(model.view, leases)))] if leases else []
        else:
            claimed = store.claim_views([model.view for model in models], owner, limit, lease_s)
            works = [Work(model, tuple(claimed[model.view])) for model in models if model.view in claimed]
        outcome.claimed = bool(works)
        outcome.full |= {work.model.view for work in works if work.positions >= limit}
        return works

    def _give_back(self, store: PlatformStore, works: Sequence[Work], limit: int, outcome: Outcome) -> None:
        """Give back the leases, for a next round of fewer events; a view leaves if one event is too many."""
        for work in works:
            self._release(store, work)
            if limit == 1:
                outcome.leaving[work.model.view] = "single events are too large for a round"
            else:
                outcome.full.add(work.model.view)
        self._events = max(self._events // 8, 1)

    def _release(self, store: PlatformStore, work: Work) -> None:
        try:
            store.release_batch(work.model.view, work.leases)
        except MillraceError:
            pass  # its view is gone, and its leases with it
        except CONFLICTS:
            self.has_leases_to_release = True

    def _collected(self, store: PlatformStore, work: Work, outcome: Outcome) -> bool:
        """Build and commit the work of a view by itself without staging it; return whether that was possible."""
        model = work.model
        if not fits(model) or work.retries or work.positions > ROUND_EVENTS:
            return False
        try:
            with self._keep_leases():
                built = self._build([model], [model])
            if model.view not in built.failed and not built.is_too_large:
                self._commit(store, work, built, outcome)
        except Overtaken:
            raise
        except build_errors(PartFails, MillraceError) as error:
            # the other path finds out what is at fault
            if store.connection.closed or isinstance(error, Unreachable):
                raise
            if is_gone(error):
                raise spark_is_gone(error) from error
        return model.view in outcome.commits

    def _staged(self, store: PlatformStore, work: Work, outcome: Outcome) -> None:
        """Build and commit the work of a view by itself; if that fails, each log partition alone."""
        try:
            outcome.add(work.model.view, self.builds.build(store, work))
        except NothingBuilds as error:
            # not each by itself: among few streams, a search would blame all of them for a shared reason
            outcome.failed |= {lease.partition: str(error) for lease in work.leases}
        except (*_RETRIED, psycopg.errors.LockNotAvailable):
            # the consumer that claims next reads the events again
            store.release_batch(work.model.view, work.leases)
        except build_errors(TookTooLong) as error:
            if isinstance(error, psycopg.Error) and store.connection.closed:
                raise  # nothing is wrong with the batch
            if is_gone(error):
                raise spark_is_gone(error) from error
            if len(work.leases) > 1:
                self._each(store, work, outcome, is_late=isinstance(error, TookTooLong))
            else:
                # it keeps its lease, so that no drain tries again before the lease ends
                outcome.failed[work.leases[0].partition] = cause(error)

    def _each(self, store: PlatformStore, work: Work, outcome: Outcome, *, is_late: bool) -> None:
        """Build and commit log partitions one by one; `is_late` says that all together took too long.

        If some take too long by themselves, too, the rest waits for the next drain: each of them might.
        """
        late = 0
        # another order in each drain, so that no log partition is always behind one that does not end
        turns = random.sample(work.leases, len(work.leases)) if is_late else work.leases
        for number, lease in enumerate(turns, start=1):
            others, view = turns[number:], work.model.view
            locked = tuple(one for one in work.locked if one.partition == lease.partition)
            # keep the leases of the others, as their turn may come late
            with lease_keeper(self.builds.dsn, view, partial(tuple, others), self.builds.lease_s):
                self._staged(store, Work(work.model, (lease,), locked), outcome)
            late += is_late and lease.partition in outcome.failed
            if late >= MOST_LATE:
                why = f"not tried: {outcome.failed[lease.partition]}"
                outcome.failed |= {one.partition: why for one in others}
                return

    def _commit(self, store: PlatformStore, work: Work, built: Built, outcome: Outcome) -> None:
        """Commit the collected rows of a model.

        It commits the leases that the task read, not the claimed ones: the store refuses a lease that was taken over.

        Raises:
            PartFails: Streams fail, and a search has to find them.
        """
        view = work.model.view
        if view not in built.leases:
            return
        first = (_read(work, built), built.misread.get(view, ()))

        def build(without: tuple[Failure, ...]) -> tuple[Work, Sequence[MisreadEvent]]:
            return self._again(work, without) if without else first

        def streams_at(offsets: Sequence[int]) -> list[tuple[int, str, str, int]]:
            with self._second_try():
                return self.builds.streams_at(work, offsets)

        read, failures = without_misread(build, streams_at)
        if not read.leases:
            return
        read = replace(read, failures=failures)
        require_some(store, self.builds.owner, view, len(read.rows or ()), failures)
        # the consumer that claims next reads the events again
        with suppress(*_RETRIED):
            outcome.add(view, commit(store, read, POLL_S))
            if built.seconds.get(view, 0) > SLOW_S * max(self._events / ROUND_EVENTS, 1):
                outcome.slow[view] = f"its function took {built.seconds[view]:.1f} s of a round"

    @contextmanager
    def _second_try(self) -> Iterator[None]:
        """Keep the leases in a `with` block; if the block fails, a search has to find the reason."""
        try:
            with self._keep_leases():
                yield
        except Exception as error:
            if is_gone(error):
                raise
            raise PartFails(cause(error)) from error

    def _again(self, work: Work, without: tuple[Failure, ...]) -> tuple[Work, Sequence[MisreadEvent]]:
        """Build the leased events of a model without failing streams: some leases may have ended since."""
        with self._second_try():
            built = self._plan([work.model], without).run()
        if built.failed or built.is_too_large:
            raise PartFails(without[0].error)
        return _read(work, built), built.misread.get(work.model.view, ())

    def _build(self, models: Sequence[ReadModel], planned: Sequence[ReadModel]) -> Built:
        """Build the leased events of some models: in one job, and if that fails, each in a job of its own.

        Raises the error if all of them fail, and not because of their events; or if none can be built in time.
        """
        try:
            return self._plan(planned).run()
        except Exception as error:
            if is_gone(error) or isinstance(error, psycopg.Error):
                raise
            # one model was tried by itself already
            built, errors = (
                self._build_each(models) if len(planned) > 1 else (self._not_built(planned[0], error), [error])
            )
            if len(errors) == len(models) and all(blame_of(one) is Blame.SERVER for one in errors):
                raise
            return built

    def _build_each(self, models: Sequence[ReadModel]) -> tuple[Built, list[Exception]]:
        """Build each model in a job of its own; return also the errors of those that fail.

        Raises:
            TookTooLong: Neither of the first two could be built in time: the others would wait as long for nothing.
        """
        built, errors = Built({}, {}, {}, {}), []
        # first the models without a function: a function may never return
        for model in sorted(models, key=lambda model: isinstance(model, Fold)):
            # any error: a function that cannot be pickled raises none of Spark's
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
        seconds = {model.view: self._seconds} if isinstance(error, TookTooLong) else {}
        return Built({}, {}, {model.view: cause(error)}, seconds)

    def _plan(self, models: Sequence[ReadModel], without: Sequence[Failure] = ()) -> RoundPlan:
        if without:  # used once
            return RoundPlan(self._spark(), self.builds.dsn, self.builds.owner, models, self._seconds, without)
        key = _key(models)
        if key not in self._plans:
            self._plans[key] = RoundPlan(self._spark(), self.builds.dsn, self.builds.owner, models, self._seconds)
        return self._plans[key]


def _key(models: Iterable[ReadModel]) -> tuple[str, ...]:
    return tuple(sorted(model.view for model in models))


def _read(work: Work, built: Built) -> Work:
    """Return work as a task has read it: with the leases that it read under, and the rows."""
    view = work.model.view
    return replace(work, leases=tuple(built.leases.get(view, ())), rows=built.rows.get(view))
