"""A view of a drain: its version of the model, its report, whether it takes part, and why not."""

from dataclasses import dataclass, field
from pathlib import Path

from millrace.drain.report import DrainReport
from millrace.drain.serving import Serving
from millrace.event_store import DrainState, ViewPoll
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.merge import forget_dead_batches
from millrace.read_models.stored.versions import attach_version, current_version, newest_version, unbuilt_partitions


@dataclass
class Member:
    """A view in rounds.

    Attributes:
        declared: The read model as it is declared.
        model: The version that is built; None until the view joined once.
        report: Its work so far.
        view: The event store's view that it is consumed as, as far as that is known.
        joined: Whether rounds claim for it.
        is_new: Whether nothing was committed since it joined.
        away: Why it left, if it did.
        next_at: When rounds claim for it again, by the monotonic clock.
    """

    declared: ReadModel
    model: ReadModel | None = None
    report: DrainReport = field(default_factory=DrainReport)
    joined: bool = False
    is_new: bool = True
    away: str | None = None
    next_at: float = float("-inf")
    _found: str | None = None
    _newest: int = 0
    _serving: Serving | None = None
    _slow: bool = False

    @property
    def view(self) -> str:
        """The event store's view that it is consumed as; before a version is registered, the declared one."""
        return self.model.view if self.model else self._found or self.declared.view

    def find(self, store: PlatformStore) -> None:
        """Look up the view of the declaration, if that version exists already."""
        if self.model is None and self._found is None:
            found = current_version(store.connection, self.declared)
            self._found = found.view if found else None

    def join(self, store: PlatformStore, owner: str, archive: Path | None, *, alone: bool = False) -> None:
        """Attach to the version that the declaration stands for; make that version if there is none.

        A version that has to be rebuilt from the archive first leaves at once, unless it is `alone`.

        Raises the errors of `versions.ensure_version`.
        """
        model = attach_version(store.connection, self.declared, archive, owner)
        if not alone and unbuilt_partitions(store.connection, model):
            store.detach_consumer(model.view, owner)
            self.leave("its first events are in the archive only, and a run of its own rebuilds it")
            return
        forget_dead_batches(store.connection, model)
        self._newest = newest_version(store.connection, model)
        if self.model is None or self._serving is None or self.model.view != model.view:
            self.model, self._serving = model, Serving(model)
        self.joined, self.is_new, self.away = True, True, None
        self.report.in_the_way = None

    def leave(self, why: str, *, slow: bool = False) -> None:
        """Stop taking part for now; a run of its own consumes the view meanwhile.

        A slow view does not come back to this drain: it would be slow again.
        """
        self.joined, self.away, self._slow = False, why, slow

    def may_join(self, poll: ViewPoll | None, own_drain: DrainState) -> bool:
        """Return whether it may take part: no other consumer has the view, and its own run, if any, ended well."""
        if self._slow or (self.away is not None and own_drain.failures):
            return False
        if poll is None:  # not registered yet, or removed
            return self.model is None
        return poll.enabled and not poll.consumers

    def serve(self, store: PlatformStore) -> str | None:
        """Begin to serve this version if it has caught up and does not serve yet; return the obstacle, if any."""
        if self._serving is not None:
            self._serving.begin(store, self.report)
        return str(self.report.in_the_way) if self.report.in_the_way else None

    def is_overtaken(self, store: PlatformStore) -> bool:
        """Return whether newer code has made another version of the model since this one joined."""
        return self.model is not None and newest_version(store.connection, self.model) > self._newest
