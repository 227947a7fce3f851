"""Dagster's Postgres storage with pooled connections.

dagster-postgres opens a connection for every statement, which costs the server fifteen times the CPU of the statements
themselves when forty sensors tick. It has no option for that, so its private `_engine` is replaced: dagster is pinned.
"""

from collections.abc import Mapping
from typing import Any, Self

from dagster_postgres import DagsterPostgresStorage
from dagster_postgres.utils import create_pg_engine, pg_url_from_config
from sqlalchemy.engine import make_url

IDLE_CONNECTIONS = 4
MOST_CONNECTIONS = 20


class PooledPostgresStorage(DagsterPostgresStorage):
    """Runs, event log and schedules over one pool: at most 20 connections per process, 4 when idle.

    The webserver's own pools take over in its process, as with the storage this extends.
    """

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,
        inst_data: Any = None,  # noqa: ANN401 - the type is private to Dagster
    ) -> None:
        # A plain postgresql:// means psycopg 3 to SQLAlchemy 2.1, and dagster-postgres speaks psycopg 2 only.
        url = make_url(postgres_url).set(drivername="postgresql+psycopg2")
        super().__init__(url.render_as_string(hide_password=False), should_autocreate_tables, inst_data)
        engine = create_pg_engine(
            self.postgres_url,
            isolation_level="AUTOCOMMIT",
            pool_size=IDLE_CONNECTIONS,
            max_overflow=MOST_CONNECTIONS - IDLE_CONNECTIONS,
            pool_recycle=1800,
            # A restarted Postgres costs one reconnect and no failed run.
            pool_pre_ping=True,
        )
        for storage in (self._run_storage, self._event_log_storage, self._schedule_storage):
            # Fail at once when a new dagster-postgres has no `_engine`, instead of being slow later.
            if not hasattr(storage, "_engine"):
                raise TypeError("dagster-postgres changed: see platform_defs/dagster_internals/storage.py")
            storage._engine = engine

    @classmethod
    def from_config_value(
        cls,
        inst_data: Any,  # noqa: ANN401 - the type is private to Dagster
        config_value: Mapping[str, Any],
    ) -> Self:
        """Build the storage from the `config` under `storage: custom:` in dagster.yaml."""
        return cls(
            postgres_url=pg_url_from_config(config_value),
            should_autocreate_tables=config_value.get("should_autocreate_tables", True),
            inst_data=inst_data,
        )
