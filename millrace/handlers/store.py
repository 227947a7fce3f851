"""The store's functions for pushes: one method per SQL function, same name, same argument order."""

from dataclasses import dataclass

from millrace.event_store.sql_functions import SqlFunctions


@dataclass(frozen=True)
class PushOptions:
    """Where and how events are pushed, all as of one moment: of an earlier URL another role may have been in charge."""

    edge_function_url: str | None
    push_format: str
    push_upcast: bool
    push_unseal: bool


class PushStore(SqlFunctions):
    """The functions for pushes. Every method raises the `MillraceError` of its SQL function."""

    def push_options(self, view: str) -> PushOptions:
        """Return how events of a view are pushed."""
        return self._one(PushOptions, "select * from event_store_platform.push_options(%s)", (view,))

    def push_secrets(self, view: str) -> list[str]:
        """Return the secrets that pushes of a view are signed with, the current one first."""
        return self._values(str, "select event_store_platform.push_secrets(%s)", (view,))

    def set_push_secret(self, view: str, secret: str, keep_s: int = 86_400, reason: str | None = None) -> None:
        """Sign a view's pushes with a secret; the secret before also signs for `keep_s` seconds."""
        self._value(str, "select event_store_platform.set_push_secret(%s, %s, %s, %s)", (view, secret, keep_s, reason))

    def drop_push_secret(self, view: str, reason: str | None = None) -> None:
        """Stop signing a view's pushes."""
        self._value(str, "select event_store_platform.drop_push_secret(%s, %s)", (view, reason))
