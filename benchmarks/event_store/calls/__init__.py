"""Lines that measure one call at a time, by the CPU that it takes: of the backend, or of the client."""
