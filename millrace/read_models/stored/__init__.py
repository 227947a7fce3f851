"""What Postgres has of read models: tables, rows, versions, moments of the past, and what differs."""
