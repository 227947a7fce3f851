"""What the bytes of logical replication mean. Pure: nothing here talks to a database."""
