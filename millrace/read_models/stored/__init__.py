"""Read models in Postgres: tables, rows, versions, moments of the past, and differences."""
