"""The event store of a test as a Dagster resource."""

from millrace.resources.postgres import PostgresResource


def postgres_at(dsn: str) -> PostgresResource:
    """Return the resource for a store other than the environment's, which only code can state."""

    class Elsewhere(PostgresResource):
        def current_dsn(self) -> str:
            return dsn

    return Elsewhere()
