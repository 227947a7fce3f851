"""The event store of a test as a Dagster resource."""

from millrace.resources.postgres import PostgresResource


def postgres_at(dsn: str) -> PostgresResource:
    """Return the resource for another store than the environment names, which only code can say."""

    class Elsewhere(PostgresResource):
        def current_dsn(self) -> str:
            return dsn

    return Elsewhere()
