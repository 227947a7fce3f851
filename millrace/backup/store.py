"""The store's functions for backups: one method per SQL function, same name, same argument order."""

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from millrace.event_store import Json
from millrace.event_store.sql_functions import SqlFunctions


class BackupStore(SqlFunctions):
    """The functions of backups. Every method raises the `MillraceError` of its SQL function."""

    def begin_restore(self) -> None:
        """Allow this transaction to load a backup into an empty store, until `finish_restore`."""
        self._value(str, "select event_store_platform.begin_restore()")

    def finish_restore(
        self,
        partition: Sequence[int],
        earliest_position: Sequence[int],
        high_water_mark: Sequence[int],
        last_offset: int,
        lease_token: int,
        detail: Json,
    ) -> int:
        """Check the loaded rows of a restore and open the store; return the number of its events."""
        return self._value(
            int,
            "select event_store_platform.finish_restore(%s::int[], %s::bigint[], %s::bigint[], %s, %s, %s)",
            (list(partition), list(earliest_position), list(high_water_mark), last_offset, lease_token, Jsonb(detail)),
        )
