"""A drain: repeats rounds while there is work, for many views or for one by itself.

In a drain of many views, a view takes part while no other consumer has it: it leaves while a run of its own lasts. It
also leaves if it fails, is slow, or waits for a lock; it comes back after its own run ended well. The consumers of a
view show whether a drain serves it: the drain is attached to the views that take part, and to no other.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psycopg

from millrace.drain.build_errors import cause, failures, is_gone, spark_is_gone
from millrace.drain.collected import fits
from millrace.drain.commit import Commit
from millrace.drain.connection import CONFLICTS, connect_patiently, end_interrupted
from millrace.drain.decision import alone_behind
from millrace.drain.indexing import Indexing
from millrace.drain.limits import DEFAULTS, LEASE_S, Limits
from millrace.drain.member import Member
from millrace.drain.rebuild import Rebuild
from millrace.drain.report import no_progress
from millrace.drain.round import Outcome, Rounds
from millrace.errors import MillraceError, PartitionLeased, Unreachable
from millrace.event_store import ViewPoll
from millrace.event_store.platform import PlatformStore
from millrace.event_store.wake_ups import Wakeups
from millrace.patience import ASK_S, PATIENCE_S, PAUSE_S, POLL_S
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.upcasts import Overtaken, stored_upcasts
from millrace.read_models.stored.tables import wait_for_locks_at_most
from millrace.read_models.stored.versions import current_version, register_declared, unbuilt_partitions, with_upcasts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# how often to check whether another consumer has taken a view: for many views a check costs as much as a round
MEMBERS_EVERY_S = 2 * PAUSE_S
# the drain ends after this many rounds in a row that failed for a reason that is not a view's
FAILURES = 3
# why a view leaves without a failure
OWN_RUN = "a run of its own consumes it"
DISABLED = "its view is disabled"

OnCommit = Callable[[Member, Commit], None]
OnChange = Callable[[Member], None]


class Drain:
    """A drain of many views, or of one by itself. The end of a `with` block gives back every lease.

    Attributes:
        members: The views that it may consume, whether they take part or not.
        owner: The name under which leases are taken.
        overtaken: The read models with a declaration or a shape of events that changed since; if any, the drain ends.

    Args:
        dsn: The event store.
        models: The read models as they are declared. A drain of many leaves out those that one plan cannot build.
        spark: Gives the session; asked only when there is something to build.
        owner: The name under which leases are taken: a run's id.
        lease_s: How long a lease outlives its owner, in seconds.
        archive: The folder of the archive; new versions of models may need it.
        limits: How much runs side by side, and for how long.
        on_commit: Called for each commit, between rounds.
        on_change: Called for each view that joins or leaves.
        has_new_code: Whether the code of the declarations has changed: then a drain of many ends after its round.
        alone: Whether it drains one view, with all that is due: streams to retry, a search for failing ones, a rebuild
            of events that only the archive has. The view does not leave, and the drain waits for locks.

    Raises, of one view, the errors of `versions.ensure_version`.
    """

    def __init__(
        self,
        dsn: str,
        models: Sequence[ReadModel],
        spark: "Callable[[], SparkSession]",
        owner: str,
        *,
        lease_s: int = LEASE_S,
        archive: Path | None = None,
        limits: Limits = DEFAULTS,
        on_commit: OnCommit = lambda *_: None,
        on_change: OnChange = lambda _: None,
        has_new_code: Callable[[], bool] = lambda: False,
        alone: bool = False,
    ) -> None:
        self.overtaken: list[str] = []
        self.owner = owner
        self._dsn = dsn
        self._archive = archive
        self._on_commit = on_commit
        self._on_change = on_change
        self._has_new_code = has_new_code
        self._alone = alone
        self._rounds = Rounds(dsn, spark, owner, lease_s, limits)
        self._indexing = Indexing(dsn)
        self._members_at = self._attached_at = self._began_at = float("-inf")
        self._failures = 0
        # for one view by itself: the most positions of a batch, and whether nothing is left to rebuild from the archive
        self._most: int | None = None
        self._is_whole = False
        self._store = self._connect()
        try:
            self.members = [Member(model) for model in models] if alone else self._that_fit(models)
            if alone:
                self.members[0].join(self._store, owner, archive, alone=True)
        except BaseException:
            self._store.connection.close()
            raise

    def _that_fit(self, models: Sequence[ReadModel]) -> list[Member]:
        connection = self._store.connection
        upcasts = stored_upcasts(connection)
        for model in models:
            # a refused model is reported when its view joins; no other waits for it
            with suppress(MillraceError, psycopg.errors.LockNotAvailable):
                register_declared(connection, with_upcasts(connection, model, upcasts))
        # all of them with the same upcasts: one read serves all
        upcasts = stored_upcasts(connection)
        return [Member(with_upcasts(connection, model, upcasts)) for model in models if fits(model)]

    def close(self) -> None:
        """Give back every lease, detach from all views, and close the connection.

        Raises, of one view, the error for which its declared indexes were not made.
        """
        failed: dict[str, MillraceError] = {}
        try:
            end_interrupted(self._store.connection)
            try:
                self._give_back()
            except psycopg.OperationalError:
                # the connection was lost unnoticed, or another session held a lock
                self._store.connection.close()
                self._store = self._connect()
                self._give_back()
            failed = self._indexing.end()
            for member in self.members:
                if member.view in failed and not self._alone:
                    # the view's own run tries again, and reports it
                    self._store.end_drain(member.declared.view, self.owner, cause(failed[member.view]))
        finally:
            self._store.connection.close()
            self._indexing.end()
        if self._alone and failed:
            raise failed[self.members[0].view]

    def _give_back(self) -> None:
        self._store.release_owner(self.owner)
        for member in self.members:
            if member.joined:
                # the session may end a moment later, and a removal of the model would be refused meanwhile
                self._store.detach_consumer(member.view, self.owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MillraceError:
            if error is None:
                raise

    def warm_up(self) -> None:
        """Compile the plan of all versions that exist, before any view joins."""
        found = (current_version(self._store.connection, member.declared) for member in self.members)
        self._rounds.warm_up([model for model in found if model is not None])

    def hand_over(self) -> None:
        """Give back every lease and leave every view, so that the next drain can have them at once."""
        self._give_back()
        for member in self.members:
            member.joined = False

    def run(self, *, budget_s: float, idle_s: float, stop: threading.Event | None = None) -> None:
        """Consume until nothing came for `idle_s`, the budget of seconds is used up, or `stop` is set.

        Continues while declared indexes are made. Also ends when a declaration changed, or the store got a new upcast:
        the next drain uses it.

        Raises:
            Unreachable: Spark went away.

        Raises the errors of `build_errors` that no view causes, after some retries.
        """
        stop = stop or threading.Event()
        with nullcontext() if self._alone else Wakeups(self._dsn) as positions:
            self._run(budget_s, idle_s, stop, positions)

    def _run(self, budget_s: float, idle_s: float, stop: threading.Event, positions: Wakeups | None) -> None:
        started = busy_at = time.monotonic()
        for member in self.members:
            member.next_at = started
        while not stop.is_set() and (time.monotonic() - started < budget_s or self._indexing.is_at_work):
            outcome = self._next_round(stop)
            if self.overtaken:
                break
            if idle_s and not self._alone:
                # a version that is new has no plan yet
                self._rounds.warm_up([member.model for member in self.members if member.joined and member.model])
            # where nothing could be built, more events change nothing: the next drain tries again
            is_stuck = self._alone and self.members[0].report.failed and not self.members[0].report.moved
            if outcome is None or outcome.claimed:
                busy_at = time.monotonic()
            elif (is_stuck or time.monotonic() - busy_at >= idle_s) and not self._indexing.is_at_work:
                break
            if self._alone:
                next_at = self.members[0].next_at
            elif self._failures:
                next_at = time.monotonic() + float(POLL_S * 2**self._failures)
            else:
                joined = [member.next_at for member in self.members if member.joined]
                next_at = min([self._members_at + MEMBERS_EVERY_S, *joined])
            self._wait(next_at, stop, positions)

    def _wait(self, until: float, stop: threading.Event, positions: Wakeups | None) -> None:
        """Wait until the next round. New positions end the wait of a quiet view: its delay is the longest wait."""
        wait_s = max(0.0, until - time.monotonic())
        if positions is None or self._failures or wait_s <= POLL_S:
            stop.wait(wait_s)
        elif positions.wait(wait_s, stop) is not None:
            # rounds keep their distance, however often events come
            stop.wait(max(0.0, self._began_at + POLL_S - time.monotonic()))
            for member in self.members:
                member.next_at = min(member.next_at, time.monotonic())

    def _next_round(self, stop: threading.Event) -> Outcome | None:
        """Do a round, unless a declaration changed; None after an error that a retry may mend.

        Raises an error that no view causes if Spark is gone, or after some failures in a row.
        """
        try:
            self._update_members()
            if self.overtaken:
                return Outcome()
            try:
                outcome = self._round(stop)
            except psycopg.OperationalError:
                raise
            except Overtaken:
                self.overtaken = [member.declared.name for member in self.members if member.joined]
                return Outcome()
            except failures() as error:
                if self._alone or isinstance(error, Unreachable):
                    raise
                if is_gone(error):
                    raise spark_is_gone(error) from error
                self._failures += 1
                if self._failures >= FAILURES:
                    raise
                self._store.release_owner(self.owner)
                # it may concern one view, which then leaves
                self._members_at = float("-inf")
                return None
            self._failures = 0
            return outcome
        except CONFLICTS:
            if self._alone:
                raise
            # another session held a lock that a few statements need
            self._rounds.has_leases_to_release = True
            return None
        except psycopg.Error:
            if not self._store.connection.closed:
                raise  # connecting anew would not help
            self._begin_anew()
            return None

    def _round(self, stop: threading.Event) -> Outcome:
        began = self._began_at = time.monotonic()
        joined = [member for member in self.members if member.joined and member.next_at <= began]
        models = [member.model for member in joined if member.model is not None]
        outcome = Outcome(on_commit=self._report_commit if self._alone else None)
        try:
            if models and self._alone:
                self._of_one(joined[0], models[0], outcome, stop)
            elif models:
                joined_models = [member.model for member in self.members if member.joined and member.model is not None]
                self._rounds.run(self._store, models, joined_models, outcome)
        finally:
            # report the commits, also if something failed after them
            for view, commits in outcome.commits.items() if outcome.on_commit is None else ():
                for commit in commits:
                    self._report_commit(view, commit)
            for member in joined:
                member.report.failed |= outcome.failed
        for member in joined:
            view = member.view
            pause_s = POLL_S if view in outcome.commits else max(POLL_S, member.declared.pooling_delay_s)
            # at once only if the round left something behind
            at_once = view in outcome.full or (self._alone and outcome.claimed)
            member.next_at = began if at_once else began + pause_s
            if view in outcome.commits and member.is_new and not self._alone:
                self._store.end_drain(member.declared.view, self.owner)
                member.is_new = False
            in_the_way = member.serve(self._store)
            if self._alone:
                continue
            if view in outcome.leaving or in_the_way:
                self._leave(member, outcome.leaving.get(view) or str(in_the_way))
            elif view in outcome.slow:
                self._leave(member, outcome.slow[view], slow=True)
        return outcome

    def _report_commit(self, view: str, commit: Commit) -> None:
        member = next(one for one in self.members if one.view == view)
        member.report.add(commit)
        self._on_commit(member, commit)

    def _of_one(self, member: Member, model: ReadModel, outcome: Outcome, stop: threading.Event) -> None:
        """Do a round of one view, or rebuild its next log partition that has its first events only in the archive.

        Raises:
            PartitionsFailed: None of the rest can be rebuilt, and the drain cannot proceed without them.
        """
        failed = member.report.failed
        if self._is_whole:
            # the path for few events would read again the events that a failed log partition keeps leased
            self._rounds.collects = self._rounds.collects and not failed
            self._rounds.run_alone(self._store, model, outcome, self._most)
            return
        unbuilt = unbuilt_partitions(self._store.connection, model)
        if unbuilt and set(unbuilt) <= set(failed):
            raise no_progress(model.name, failed)
        # a view with log partitions to rebuild is not idle
        outcome.claimed = True
        for partition in unbuilt:
            if partition in failed:
                continue
            try:
                outcome.add(member.view, self._rebuild(member, (partition,), 0, stop))
            except PartitionLeased:
                continue  # another drain rebuilds it
            except (Overtaken, Unreachable):
                raise
            except MillraceError as error:
                outcome.failed[partition] = str(error)
            return
        if unbuilt:
            stop.wait(model.pooling_delay_s)
        self._is_whole = not unbuilt

    def _rebuild(self, member: Member, partitions: Sequence[int], wait_s: float, stop: threading.Event) -> Commit:
        assert member.model is not None
        rebuild = Rebuild(self._store, self._rounds.builds, member.model, member.declared, self._archive)
        return rebuild.run(partitions, wait_s, stop)

    def _update_members(self) -> None:
        """Let views join and leave, depending on their other consumers, if it is time to check."""
        now = time.monotonic()
        if now - self._members_at < MEMBERS_EVERY_S:
            return
        self._members_at = now
        if not self._alone and self._has_new_code():
            self.overtaken = ["code"]
            return
        if now - self._attached_at >= PATIENCE_S:
            self._attach_again()
            self._attached_at = now
        if self._alone:
            return
        for member in self.members:
            member.find(self._store)
        polls = {poll.view: poll for poll in self._store.poll_views([member.view for member in self.members])}
        own_drains = self._store.drain_states(*(member.declared.view for member in self.members))
        far = alone_behind(polls.values())
        for member in self.members:
            poll = polls.get(member.view)
            if not member.joined and member.view != far and member.may_join(poll, own_drains[member.declared.view]):
                self._join(member)
            elif member.joined and (why := _against(poll)):
                self._leave(member, why)

    def _attach_again(self) -> None:
        """Say that the drain lives: otherwise it counts as dead after 15 minutes."""
        for member in self.members:
            try:
                if member.joined:
                    self._store.attach_consumer(member.view, self.owner)
            except MillraceError as error:
                if self._alone:
                    raise
                self._leave(member, str(error))
        if not self._alone:
            self.overtaken = [one.declared.name for one in self.members if one.is_overtaken(self._store)]

    def _join(self, member: Member) -> None:
        try:
            member.join(self._store, self.owner, self._archive)
            if member.joined and member.model is not None:
                self._indexing.begin(self._store.connection, member.model)
        except (MillraceError, psycopg.Error) as error:
            if self._store.connection.closed:
                raise
            # the statements before the error may have attached it
            self._leave(member, cause(error))
            return
        # it may have left at once
        self._record_change(member)

    def _leave(self, member: Member, why: str, *, slow: bool = False) -> None:
        member.leave(why, slow=slow)
        # its view may be gone
        with suppress(MillraceError):
            self._store.detach_consumer(member.view, self.owner)
        self._record_change(member)

    def _record_change(self, member: Member) -> None:
        if member.away not in {None, OWN_RUN, DISABLED}:
            # this records the failed try; a run of the view's own follows
            self._store.end_drain(member.declared.view, self.owner, member.away)
        self._on_change(member)

    def _begin_anew(self) -> None:
        self._store.connection.close()
        self._store = self._connect()
        # the next round gives the leases back: there a connection that is lost again is replaced, too
        self._rounds.has_leases_to_release = True
        # attachments of the lost session are gone
        self._members_at = self._attached_at = float("-inf")

    def _connect(self) -> PlatformStore:
        connection = connect_patiently(self._dsn)
        # forty views, and a few statements each
        connection.prepared_max = 1000
        if not self._alone:
            # only commits may wait longer than this for a lock
            wait_for_locks_at_most(connection, ASK_S, always=True)
        return PlatformStore(connection)


def _against(poll: ViewPoll | None) -> str | None:
    """Return why a view that takes part has to leave; None if it may stay."""
    if poll is None:
        return "its view was removed"
    if poll.mode != "bulk":
        return "its view is not one of bulk consumers any more"
    if not poll.enabled:
        return DISABLED
    if not poll.enabled:
        return DISABLED
    return OWN_RUN if poll.consumers > 1 else None
