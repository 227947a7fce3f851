"""The SQL functions of read models: one method per function."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.event_store.sql_functions import SqlFunctions


@dataclass(frozen=True)
class Version:
    """A version of a read model, as the database knows it.

    Attributes:
        version: Its number among the model's declarations.
        view: The event store's view that it is consumed as.
        fingerprint: The hash of its declaration.
        serves: Whether the model's SQL view shows it.
        unbuilt: The log partitions with first events that only the archive has, and that no rebuild has read yet.
        approved: Whether it may serve once it has caught up.
    """

    version: int
    view: str
    fingerprint: str
    serves: bool
    unbuilt: list[int]
    approved: bool = True


@dataclass(frozen=True)
class ModelVersion:
    """A read model and one of its versions."""

    model: str
    version: int


class ReadModelStore(SqlFunctions):
    """The SQL functions of read models. Every method raises the `MillraceError` of its SQL function."""

    def model_versions(self, model: str) -> list[Version]:
        """Return the versions of a model, the oldest first."""
        return self._all(Version, "select * from event_store_platform.model_versions(%s)", (model,))

    def version_of_view(self, view: str) -> ModelVersion | None:
        """Return the model, and its version, that is consumed as a view; None if there is none."""
        return self._first(ModelVersion, "select * from event_store_platform.version_of_view(%s)", (view,))

    def lock_model(self, model: str) -> None:
        """Lock the model's versions against other sessions until the transaction ends."""
        self._value(str, "select event_store_platform.lock_model(%s)", (model,))

    def declare_version(
        self,
        model: str,
        version: int,
        view: str,
        fingerprint: str,
        serves: bool,
        unbuilt: list[int],
        approved: bool = True,
    ) -> None:
        """Record a version, in the transaction that makes its tables."""
        self._value(
            str,
            "select event_store_platform.declare_version(%s, %s, %s, %s, %s, %s::int[], %s)",
            (model, version, view, fingerprint, serves, unbuilt, approved),
        )

    def serve_version(self, model: str, version: int) -> None:
        """Make a version the one that people read, in the transaction that replaces the model's SQL view."""
        self._value(str, "select event_store_platform.serve_version(%s, %s)", (model, version))

    def feed_epoch(self, model: str, version: int) -> int | None:
        """Return the epoch of a model's feed, and keep it in this transaction: 0 before it begins.

        None if the version does not serve.
        """
        return self._value(int | None, "select event_store_platform.feed_epoch(%s, %s)", (model, version))  # type: ignore[arg-type]

    def replace_feed(self, model: str, version: int, key: Sequence[str], columns: Sequence[str]) -> int:
        """Begin the next epoch of a model's feed, which says that its rows are to be read anew; return it."""
        call = "select event_store_platform.replace_feed(%s, %s, %s, %s)"
        return self._value(int, call, (model, version, [*key], [*columns]))

    def end_feed(self, model: str) -> None:
        """Let a model tell no more changes."""
        self._value(str, "select event_store_platform.end_feed(%s)", (model,))

    def approve_version(self, model: str, version: int, reason: str | None = None) -> None:
        """Let a version serve once it has caught up; audited, once."""
        self._value(str, "select event_store_platform.approve_version(%s, %s, %s)", (model, version, reason))

    def is_unused_version(self, model: str, version: int, built: int, abandoned_s: int = 86_400) -> bool:
        """Return whether a version does not serve and is older than the built one, or `abandoned_s` seconds old."""
        return self._value(
            bool, "select event_store_platform.is_unused_version(%s, %s, %s, %s)", (model, version, built, abandoned_s)
        )

    def drop_version(self, model: str, version: int) -> None:
        """Forget a version, in the transaction that drops its tables."""
        self._value(str, "select event_store_platform.drop_version(%s, %s)", (model, version))

    def mark_built(self, model: str, version: int, partitions: list[int]) -> None:
        """Record, in the transaction of their rebuild, that log partitions are built from their first events on."""
        self._value(str, "select event_store_platform.mark_built(%s, %s, %s::int[])", (model, version, partitions))

    def purged_discards(self, view: str) -> frozenset[int]:
        """Return the offsets of purged events that were discarded for any version of the model that declares a view."""
        offsets = self._value(list, "select array(select event_store_platform.purged_discards(%s))", (view,))
        return frozenset(offsets)
