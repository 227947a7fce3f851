"""The captured database: its publication, its replication slot, its tables. SQL of a foreign server only."""
