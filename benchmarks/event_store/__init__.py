"""The event store against fstore-sql's schema and against a bare COPY, side by side on one server."""
